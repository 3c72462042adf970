#include "placement/lyapunov.h"

#include <ATen/ATen.h>

namespace ddc {
namespace {

/// Diagonal sums below this share of the largest do not fix a direction.
constexpr double kRank = 1e-12;
constexpr int kNewtonSteps = 3;
constexpr int kIterations = 4;
/// Norm of a step's generator.
constexpr double kLargestStep = 0.5;
/// Matrices of this size are turned back in one Newton step: the rest is of second order, and next time's.
constexpr int64_t kLarge = 257;

at::Tensor dot_of(const at::Tensor& a, const at::Tensor& b) {
  return (a * b).sum({-2, -1}, /*keepdim=*/true);
}

/// a / b, and 0 where b is not positive.
at::Tensor ratio(const at::Tensor& a, const at::Tensor& b) { return at::where(b > 0, a / b, 0.0); }

at::Tensor identity_like(const at::Tensor& m) {
  return at::eye(m.size(-1), m.options()).expand_as(m);
}

at::Tensor inverted_of(const at::Tensor& m) { return std::get<0>(at::linalg_inv_ex(m)); }

}  // namespace

at::Tensor lyapunov(const at::Tensor& m, const at::Tensor& s, int iterations) {
  const auto diagonal = m.diagonal(0, -2, -1);
  const auto sums = diagonal.unsqueeze(-1) + diagonal.unsqueeze(-2);
  const auto fixed = sums > sums.amax({-2, -1}, /*keepdim=*/true) * kRank;
  const auto preconditioner = at::where(fixed, 1 / sums, 0.0);
  auto a = s * preconditioner;
  auto residual = s - (m.matmul(a) + a.matmul(m));
  auto z = residual * preconditioner;
  auto direction = z;
  auto product = dot_of(residual, z);
  for (int i = 0; i < iterations; ++i) {
    const auto image = m.matmul(direction) + direction.matmul(m);
    const auto step = ratio(product, dot_of(direction, image));
    a = a + step * direction;
    residual = residual - step * image;
    z = residual * preconditioner;
    const auto next = dot_of(residual, z);
    direction = z + ratio(next, product) * direction;
    product = next;
  }
  return a;
}

at::Tensor balancing_factor(const at::Tensor& p, const at::Tensor& m) {
  auto plus = p;
  auto minus = m;
  auto total = identity_like(p).clone();
  for (int i = 0; i < kNewtonSteps; ++i) {
    auto e = lyapunov(plus + minus, minus - plus, kIterations);
    // Far from balance a Newton step overshoots.
    e = e / dot_of(e, e).sqrt().div(kLargestStep).clamp_min(1);
    const auto factor = identity_like(p) + e + e.matmul(e) * 0.5;
    const auto inverted = inverted_of(factor);
    plus = factor.matmul(plus).matmul(factor);
    minus = inverted.matmul(minus).matmul(inverted);
    total = factor.matmul(total);
  }
  return total;
}

at::Tensor turn_back(const at::Tensor& overlap) {
  const int64_t size = overlap.size(-1);
  if (size == 2) {
    const auto cosine = overlap.select(-2, 0).select(-1, 0) + overlap.select(-2, 1).select(-1, 1);
    const auto sine = overlap.select(-2, 1).select(-1, 0) - overlap.select(-2, 0).select(-1, 1);
    const auto length = at::hypot(cosine, sine);
    const auto c = at::where(length > 0, cosine / length, 1.0);
    const auto s = at::where(length > 0, sine / length, 0.0);
    return at::stack({at::stack({c, -s}, -1), at::stack({s, c}, -1)}, -2);
  }
  auto current = overlap;
  auto total = identity_like(overlap).clone();
  for (int i = 0; i < (size < kLarge ? kNewtonSteps : 1); ++i) {
    const auto half =
        lyapunov((current + current.mT()) * 0.5, current - current.mT(), kIterations) * 0.5;
    // Cayley's transform of a skew matrix is orthogonal whatever its size.
    const auto skew = (half - half.mT()) * 0.5;
    const auto turn = std::get<0>(
        at::linalg_solve_ex(identity_like(overlap) - skew, identity_like(overlap) + skew));
    current = current.matmul(turn.mT());
    total = turn.matmul(total);
  }
  return total;
}

}  // namespace ddc
