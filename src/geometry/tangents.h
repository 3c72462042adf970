#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "ddc/gauge/gauge.h"
#include "geometry/loss_jacobian.h"

namespace ddc {

/// Singular values of stacked tangents (each of length one) below this are zero.
inline constexpr double independent_tangents = 1e-8;

/// Orthonormal columns that span the rows.
at::Tensor span_of(const at::Tensor& rows);

/// The tangents of all orbits, as far as they leave the other parameters alone.
struct Tangents {
  /// [tangents, trainable parameters], each of length one.
  at::Tensor rows;
  /// By row, the gauge that it is (mostly) of.
  std::vector<std::string> gauge;
};

Tangents tangents_of(const std::vector<Gauge>& gauges, const Parameters& params,
                     const Trainable& trainable);

}  // namespace ddc
