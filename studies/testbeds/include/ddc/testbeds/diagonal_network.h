#pragma once

#include "ddc/testbeds/testbed.h"

namespace ddc::testbeds {

/// The diagonal linear network beta = u * v (paper, appendix "Per-coordinate gauge drift on a
/// diagonal linear network"): full-batch mean squared error of <x, beta> on a sparse target.
/// Tensors: "u", "v".
///
/// The target is positive and so is beta at the start, so that no coordinate has to pass through
/// zero, where u / v has no meaning.
struct DiagonalNetworkOptions {
  int64_t dimension = 64;
  /// Number of coordinates in which the target is 1; it is 0 in the others.
  int64_t nonzeros = 2;
  /// At least `dimension`, or the data do not determine beta.
  int64_t samples = 128;
  /// sqrt(u v) at the start.
  double scale = 0.3;
  /// At the start log(u / v) is uniform in [-range, range], per coordinate: the symmetry break. The
  /// paper does not give it; its gauge-mode norm, 23.1 over 64 coordinates, is that of a range
  /// of 5.
  double log_ratio_range = 5;
  uint64_t data_seed = 0;
};
Testbed diagonal_network(const DiagonalNetworkOptions& options = {});

}  // namespace ddc::testbeds
