#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "ddc/discover/evaluate.h"
#include "ddc/discover/symmetry_group.h"
#include "ddc/gauge/gauge.h"
#include "ddc/parameters.h"

// The directions in which parameters can be moved without any batch noticing, found by brute force:
// what the gauges of a network should span, measured without knowing any of them.

namespace ddc {

struct StructuralKernelOptions {
  /// Seed of the cotangents.
  uint64_t seed = 0;
  /// Batches are drawn until there are this many rows of the Jacobian per parameter, and then until
  /// further ones do not raise the rank: what depends on the inputs at hand, rather than on the
  /// network, must not be mistaken for structure.
  double rows_per_parameter = 1.25;
  /// And at least so many batches, half of them again for the further ones. A unit that is on in all of
  /// a few batches looks linear.
  int64_t min_batches = 32;
  /// Draw this many batches instead.
  std::optional<int64_t> batches = {};
  /// Number of the first batch; the others count on from it.
  uint64_t first_batch = 0;
  /// Rows per batch, where the outputs are known. (The loss alone gives one.)
  int64_t rows_per_batch = 16;
  /// Only singular values below this, relative to the largest, can be those of null directions.
  double threshold = 1e-6;
  /// Relative accuracy of the rows. What is smaller than it by the number of columns is noise, and gaps
  /// in it mean nothing.
  double rounding = 2.2e-16;
};

struct StructuralKernel {
  int64_t parameters = 0;
  int64_t rank = 0;
  /// parameters - rank.
  int64_t dimension = 0;
  /// Singular values of the Jacobian, largest first.
  std::vector<double> singular_values;
  /// The ratio of the last singular value that counts to the first that does not. A small one says
  /// that the rank is not to be trusted.
  double gap = 0;
  /// Orthonormal, [parameters, dimension]; the parameters flattened in the order of the table.
  at::Tensor basis;
  /// Norms of the Jacobian's columns, one per parameter.
  at::Tensor column_norms;
};

/// Some rows of a Jacobian, [rows, parameters] in float64, for batch number `batch`.
using JacobianRows = std::function<at::Tensor(uint64_t batch)>;

/// The null space of all rows together. Memory: three square matrices of the number of parameters.
StructuralKernel structural_kernel(int64_t parameters, const JacobianRows& rows,
                                   const StructuralKernelOptions& options = {});

/// The same for what the loss sees of a model, by the parameters that require gradients. Tied ones
/// (that share their memory) count once, by the first name.
///
/// Where the outputs are known, one forward pass gives many rows: products of their Jacobian with
/// cotangents drawn at random from what the loss reacts to. Outputs at which dL/doutputs is exactly zero
/// are not read (masked positions), and if it sums to zero over the last axis the loss is blind to a
/// constant added to all logits, as cross-entropy is (and cross-entropy with a z-loss is not). Without
/// outputs, or if the loss is not computed from them, a batch gives one row, the gradient of the loss.
StructuralKernel structural_kernel(const Parameters& params, const Evaluate& evaluate,
                                   const StructuralKernelOptions& options = {});

struct CompletenessOptions {
  uint64_t seed = 0;
  /// Up to so many parameters the count is exact. Above it the Jacobian is only multiplied with.
  int64_t exact_up_to = 20000;
  /// Up to so many parameters the exact count decomposes the Jacobian, above it its square, in a third of the
  /// memory and a tenth of the time.
  int64_t decomposed_up_to = 3500;
  /// Vectors that the estimate draws at random, and steps of the iteration for each.
  int64_t probes = 4;
  int64_t iterations = 200;
  /// Work that the estimate may spend on them. Counted in products of a parameter with an entry of a
  /// batch (a position of a sequence); first probes are cut to it, and then iterations.
  double work = 2e11;
};

/// Counts the directions in which the parameters that require gradients can be moved without any batch
/// noticing (`structural_kernel`), and how many of them are tangents of orbits of `gauges`. Tied parameters
/// count once, parameters that do not require gradients are fixed. Throws, naming the gauge, if one of them
/// moves what the loss sees.
///
/// **Precision.** Directions are distinguished as far as the type of the model allows. In float64 a norm's eps
/// of 1e-5 shows the scale of a residual stream; in float32 it does not, and the scale counts as unexplained.
///
/// **Overlaps.** `explained` is the sum of the gauges' dimensions less their overlaps: sums of tangents of
/// several gauges that cancel, and elements that move what does not require gradients. Overlaps are counted
/// one by one; beyond 16 they are estimated from 16 random vectors.
///
/// **The estimate** is an upper bound. It stores no matrix, but about fifteen vectors of all parameters in
/// float64. It draws random vectors, projects out the orbits, and then, one iteration after the other, what
/// the loss sees; directions that the loss sees weakly are found late. It needs the outputs, and operations
/// that can be differentiated forward.
///
/// **Its cost.** One iteration costs O(parameters^2): it needs 1.5 outputs per parameter, as fewer could not
/// distinguish all parameters. `work` caps first the probes, then the iterations, possibly to none.
///
/// **Reading it.** More iterations lower the bound. A bound of a few dimensions says that nothing large is
/// missing, and not what is. `method` is "exact", "estimate after 12 iterations", or "not counted: after 12
/// iterations the bound is too loose" if the bound is above a fifth of all parameters and more iterations would
/// lower it (for transformers, expect that where parameters are too many for an exact count). Without iterations
/// `unexplained` is all that is neither explained nor dead, and `per_tensor` is empty.
Completeness completeness(const std::vector<Gauge>& gauges, const Parameters& params,
                          const Evaluate& evaluate, const CompletenessOptions& options = {});

}  // namespace ddc
