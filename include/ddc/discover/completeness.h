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
  /// Of the estimate: what may be spent on them. Counted in products of a parameter with an entry of a
  /// batch (a position of a sequence); first probes are cut to it, and then iterations.
  double work = 2e11;
};

/// Counts the directions in which the parameters that require gradients can be moved without any batch
/// noticing (structural_kernel.h), and how many of them are orbits of `gauges`. Tied parameters count
/// once, parameters that do not require gradients hold still. Throws, naming the gauge, if one of them
/// moves what the loss sees.
///
/// Directions are told apart as far as the precision of the model allows. In float64 a norm's eps of 1e-5
/// is enough for the scale of a residual stream to be seen; in float32 it is not, and the scale counts as
/// unexplained.
///
/// The estimate is an upper bound. It draws random vectors, takes out the orbits, and fits what is left by
/// rows of the Jacobian; directions that the loss sees but little are found late. It needs the outputs,
/// operations that can be differentiated forward, and memory for all tangents of the orbits (dimension of
/// the group times parameters). More iterations lower it; a bound of a few dimensions says that nothing
/// large is missing, not what is.
Completeness completeness(const std::vector<Gauge>& gauges, const Parameters& params,
                          const Evaluate& evaluate, const CompletenessOptions& options = {});

}  // namespace ddc
