#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "ddc/discover/evaluate.h"
#include "ddc/parameters.h"

// The directions in which parameters can be moved without any batch noticing, found by brute force:
// what the gauges of a network should span, measured without knowing any of them.

namespace ddc {

struct StructuralKernelOptions {
  /// Of the cotangents.
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
  /// Of the Jacobian, largest first.
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

}  // namespace ddc
