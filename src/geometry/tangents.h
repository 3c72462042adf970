#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ddc/gauge/gauge.h"
#include "ddc/geometry/curvature.h"
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

/// A random tangent of number `k`, or of all together.
using RandomTangent =
    std::function<at::Tensor(std::optional<size_t> k, const at::Generator& generator)>;

/// Throws, with the name of the first that is not null, if the curvature sees a random tangent of all together: a sum
/// of what is null and what is not is not null.
void check_null(const Curvature& curvature, const RandomTangent& tangent,
                const std::vector<std::string>& names);

}  // namespace ddc
