#include "factors.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

namespace ddc::factors {

at::Tensor as_matrices(const at::Tensor& gradient) {
  if (gradient.dim() < 2) return gradient.reshape({-1, 1});
  return gradient.dim() < 4 ? gradient : gradient.flatten(1);
}

at::ScalarType factor_type(const at::Tensor& gradient) {
  return gradient.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

std::vector<int64_t> batch_shape(const at::Tensor& matrices, int64_t rows, int64_t columns) {
  auto shape = matrices.sizes().vec();
  shape[shape.size() - 2] = rows;
  shape[shape.size() - 1] = columns;
  return shape;
}

at::Tensor next_unit(const at::Tensor& unit, const at::Tensor& energy, const at::Tensor& matrices) {
  const auto norm =
      at::linalg_vector_norm(matrices, 2, at::IntArrayRef{-2, -1}, /*keepdim=*/true, at::kDouble);
  // log2(0) is -inf, and its power of two 0 again.
  return at::maximum(unit * energy.sqrt(), norm).log2().ceil().exp2();
}

at::Tensor squared_ratio(const at::Tensor& old_unit, const at::Tensor& unit) {
  return at::where(old_unit > 0, old_unit / unit, 0.0).square();
}

at::Tensor in_units(const at::Tensor& tensor, const at::Tensor& unit, at::ScalarType type) {
  // In float64, where the largest unit of float32 gradients has room.
  return (tensor / at::where(unit > 0, unit, 1.0)).to(type);
}

at::Tensor traces(const at::Tensor& factor) {
  return factor.diagonal(0, -2, -1).sum(-1, /*keepdim=*/true, at::kDouble).unsqueeze(-1);
}

Spectrum spectrum(const at::Tensor& factor, at::ScalarType type) {
  auto [values, vectors] = at::linalg_eigh(factor.to(at::kDouble));
  // An n x n matrix of independent rounding errors has a norm of the order of sqrt(n) of them. The
  // 8 is room for the errors of the products and of the average, and is not critical. In float64
  // there is room to stay far away from them: the root of an eigenvalue near its rounding error is
  // off by as much as it is large.
  const double relative = type == at::kDouble
                              ? 1e-6
                              : 8 * std::sqrt(static_cast<double>(factor.size(-1))) *
                                    std::numeric_limits<float>::epsilon();
  auto noise = values.amax({-1}, /*keepdim=*/true).clamp_min(0) * relative;
  return {values, vectors, noise};
}

}  // namespace ddc::factors
