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
  /// Decay of both optimizers. It shrinks what a shift adds to whether or not the loss sees it.
  double weight_decay = 0;
  uint64_t first_batch = 0;
};

/// Trains with AdamW and with DDCAdam for a few steps from the same point, on the same batches, and
/// measures how far each moves every gauge's coordinate (gauge.h). One entry per gauge.
///
/// A rotation has no coordinate; what is measured is the rotation that takes the weights before a step
/// nearest to those after it, accumulated over the steps, per plane of the block, in the other gauges'
/// units. For a linear gauge both the coordinate log S and this rotation count. DDCAdam's numbers are
/// rounding, but for linear gauges and rotations that share tensors with other gauges: there a step
/// without a part along the orbit still turns the weights by an angle of second order in the learning rate.
///
/// AdamW moves an entry by about `lr` in a step. Where it moves a coordinate by less than the root of the
/// precision times that, the gauge counts as not engaged: the loss does not make it move.
///
/// The parameters are brought back, bit for bit, when it returns or throws, and gradients (`.grad`) are
/// not touched.
std::vector<Engagement> engagement(const std::vector<Gauge>& gauges, const Parameters& params,
                                   const Evaluate& evaluate, const EngagementOptions& options = {});

}  // namespace ddc
