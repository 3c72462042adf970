#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "ddc/geometry/completeness.h"
#include "ddc/testbeds/testbed.h"

// The structural kernel of a testbed, from the whole Jacobian of its outputs: slower than what discovery
// does with the loss, and independent of how it chooses its rows.

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

using NullSpace = StructuralKernel;

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
