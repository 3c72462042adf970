#include "linalg/rotation.h"

#include <ATen/ATen.h>

#include <cmath>

namespace ddc {
namespace {

at::Tensor power(const at::Tensor& symmetric, double exponent) {
  const auto [values, vectors] = at::linalg_eigh(symmetric);
  return (vectors * values.pow(exponent).unsqueeze(-2)).matmul(vectors.mT());
}

}  // namespace

at::Tensor best_rotation(const at::Tensor& before, const at::Tensor& after) {
  const auto [u, s, v] = at::linalg_svd(after.matmul(before.mT()));
  return u.matmul(v);
}

double rotation_angle(const at::Tensor& rotation) {
  // Small angles are in R - R^T; the phases of eigenvalues would be accurate to the root of rounding
  // only where eigenvalues meet.
  const auto skew = (rotation - rotation.t()) / 2;
  const double small = skew.norm().item<double>();
  if (small < 1e-3 && (rotation.trace() > 0).item<bool>()) return small;
  return at::linalg_eigvals(rotation).log().abs().norm().item<double>();
}

at::Tensor balanced_sides(const at::Tensor& plus, const at::Tensor& minus) {
  // The geometric mean S = R^-1 (R M_minus R)^(1/2) R^-1 with R = M_plus^(1/2).
  const auto gram = plus.matmul(plus.mT());
  const auto root = power(gram, 0.5);
  const auto inverse_root = power(gram, -0.5);
  const auto s = inverse_root.matmul(power(root.matmul(minus.matmul(minus.mT())).matmul(root), 0.5))
                     .matmul(inverse_root);
  return at::cat({power(s, 0.5).matmul(plus), power(s, -0.5).matmul(minus)}, -1);
}

at::Tensor helmert(int64_t size) {
  auto basis = at::zeros({size, size - 1}, at::kDouble);
  for (int64_t k = 1; k < size; ++k) {
    const double norm = std::sqrt(static_cast<double>(k * (k + 1)));
    basis.select(1, k - 1).narrow(0, 0, k).fill_(1 / norm);
    basis[k][k - 1].fill_(-static_cast<double>(k) / norm);
  }
  return basis;
}

}  // namespace ddc
