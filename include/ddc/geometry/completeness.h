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
  int64_t exact_up_to = 3500;
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
/// The estimate is an upper bound, and no matrix is stored for it: about fifteen vectors of all parameters in
/// float64. It draws random vectors, takes out the orbits, and then, one iteration after the other, what the
/// loss sees; directions that it sees but little are found late. More iterations lower the bound; one of a
/// few dimensions says that nothing large is missing, not what is. It needs the outputs and operations that
/// can be differentiated forward.
///
/// An iteration evaluates batches that have, between them, 1.5 outputs per parameter: fewer could not tell
/// all parameters apart. Its cost therefore grows with the square of their number. What `work` does not pay
/// for is not done, down to no iteration at all; `method` is "estimate after 12 iterations", and ends with
/// ": too loose to tell" if the bound is above a fifth of all parameters and more iterations would lower
/// it. (For transformers of 10^4 parameters and more expect that. The gauges are checked and counted all the same.)
/// After no iteration `unexplained` is all that is not explained or dead, and `per_tensor` is empty.
///
/// `explained` is the sum of the gauges' dimensions less their overlaps: sums of tangents of several
/// gauges that cancel, and elements that move what does not require gradients. Overlaps are counted one
/// by one; beyond 16 they are estimated from 16 random vectors.
Completeness completeness(const std::vector<Gauge>& gauges, const Parameters& params,
                          const Evaluate& evaluate, const CompletenessOptions& options = {});

}  // namespace ddc
