#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ddc/testbeds/testbed.h"

// The directions in which the parameters can be moved without any output noticing, found by brute
// force: what the gauges of a network should span, measured without knowing any of them.

namespace ddc::testbeds {

struct NullSpaceOptions {
  /// What the loss sees of the outputs: log_softmax of the logits under cross-entropy, else the
  /// outputs themselves.
  bool log_softmax = true;
  /// Batches are drawn until there are this many rows of the Jacobian per parameter, and then until
  /// one more does not raise the rank: what depends on the inputs at hand, rather than on the
  /// network, must not be mistaken for structure.
  double rows_per_parameter = 2;
  /// Draw this many batches instead.
  std::optional<int64_t> batches = {};
  /// Seed of the first batch; the others count on from it.
  uint64_t batch_seed = 1;
  /// Only singular values below this, relative to the largest, can be those of null directions.
  double threshold = 1e-6;
};

struct NullSpace {
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

/// The null space of the Jacobian of the outputs by the parameters (float64), over many batches.
/// One backward pass per entry of the outputs: for networks of a thousand parameters or so.
NullSpace null_space(const Testbed& testbed, const Parameters& params,
                     const NullSpaceOptions& options = {});

/// How far tangent vectors, the columns of [parameters, k], stick out of the null space: the largest
/// over columns of |v - projection of v| / |v|.
double distance_from(const NullSpace& space, const at::Tensor& tangents);

/// Units of the layer with this weight that no output depends on in any of the batches: ReLUs that
/// are never active. Each adds null directions that are no gauge.
int64_t dead_units(const NullSpace& space, const Parameters& params, const std::string& weight);

}  // namespace ddc::testbeds
