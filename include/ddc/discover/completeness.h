#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "ddc/discover/evaluate.h"
#include "ddc/discover/symmetry_group.h"
#include "ddc/gauge/gauge.h"

namespace ddc {

struct CompletenessOptions {
  uint64_t seed = 0;
  /// Up to so many parameters the Jacobian is decomposed, above it is only multiplied with.
  int64_t exact_up_to = 6000;
  /// Of the estimate: vectors that are drawn at random, and steps of the iteration for each.
  int64_t probes = 4;
  int64_t iterations = 200;
};

/// Counts the directions in which the parameters that require gradients can be moved without any batch
/// noticing (structural_kernel.h), and how many of them are orbits of `gauges`. Tied parameters count
/// once, parameters that do not require gradients hold still. Throws, naming the gauge, if one of them
/// moves what the loss sees.
Completeness completeness(const std::vector<Gauge>& gauges, const Parameters& params,
                          const Evaluate& evaluate, const CompletenessOptions& options = {});

}  // namespace ddc
