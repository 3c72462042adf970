#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <vector>

#include "ddc/optim/shampoo.h"

namespace ddc::tests {

/// (matrix + eps)^-exponent of a positive matrix by its singular values, those below 1e-6 of the largest
/// raised to that, as the rule says.
inline at::Tensor inverse_power(const at::Tensor& matrix, double eps, double exponent) {
  const auto [u, s, vh] = at::linalg_svd(matrix);
  const auto raised = at::maximum(s, s.max() * 1e-6) + eps;
  return u.matmul(at::diag(raised.pow(-exponent))).matmul(u.t());
}

/// Shampoo of one matrix, from its definition: all gradients are kept, and moments are sums over
/// them with explicit weights.
class ReferenceShampoo {
 public:
  ReferenceShampoo(bool left, bool right, const ShampooOptions& settings)
      : left_(left), right_(right), settings_(settings) {}

  at::Tensor operator()(const at::Tensor& gradient) {
    gradients_.push_back(gradient);
    const auto steps = gradients_.size();
    auto left = at::zeros({gradient.size(0), gradient.size(0)}, at::kDouble);
    auto right = at::zeros({gradient.size(1), gradient.size(1)}, at::kDouble);
    auto average = at::zeros_like(gradient);
    const auto total1 = total_weight(settings_.beta1);
    const auto total2 = settings_.beta2 == 1 ? 1 : total_weight(settings_.beta2);
    for (size_t i = 0; i < steps; ++i) {
      const auto age = static_cast<double>(steps - 1 - i);
      const auto& g = gradients_[i];
      const double weight2 = std::pow(settings_.beta2, age) / total2;
      average += g * (std::pow(settings_.beta1, age) / total1);
      left += g.matmul(g.t()) * weight2;
      right += g.t().matmul(g) * weight2;
    }
    const bool due = (steps - 1) % static_cast<size_t>(settings_.precondition_every) == 0;
    if (due || precondition(average).norm().item<double>() > 4 * norm_) {
      const double exponent = left_ && right_ ? 0.25 : 0.5;
      if (left_) left_root_ = inverse_power(left, settings_.eps, exponent);
      if (right_) right_root_ = inverse_power(right, settings_.eps, exponent);
      norm_ = precondition(average).norm().item<double>();
    }
    return precondition(average) * -settings_.lr;
  }

 private:
  at::Tensor precondition(at::Tensor matrix) const {
    if (left_) matrix = left_root_.matmul(matrix);
    if (right_) matrix = matrix.matmul(right_root_);
    return matrix;
  }
  double total_weight(double beta) const {
    double total = 0;
    for (size_t i = 0; i < gradients_.size(); ++i) total += std::pow(beta, static_cast<double>(i));
    return total;
  }

  bool left_;
  bool right_;
  ShampooOptions settings_;
  std::vector<at::Tensor> gradients_;
  at::Tensor left_root_;
  at::Tensor right_root_;
  double norm_ = 0;
};

}  // namespace ddc::tests
