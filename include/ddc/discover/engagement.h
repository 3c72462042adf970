#pragma once

#include <cstdint>
#include <vector>

#include "ddc/discover/evaluate.h"
#include "ddc/discover/symmetry_group.h"
#include "ddc/gauge/gauge.h"

namespace ddc {

struct EngagementOptions {
  int64_t steps = 10;
  double lr = 1e-3;
  uint64_t first_batch = 0;
};

/// Trains with AdamW and with DDCAdam for a few steps from the same point and measures how far each
/// moves every gauge's coordinate. One entry per gauge. The parameters are brought back afterwards.
std::vector<Engagement> engagement(const std::vector<Gauge>& gauges, const Parameters& params,
                                   const Evaluate& evaluate, const EngagementOptions& options = {});

}  // namespace ddc
