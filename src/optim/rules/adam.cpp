#include "ddc/optim/rules/adam.h"

#include <ATen/ATen.h>

#include <cmath>

namespace ddc::rules {

at::Tensor adam(const at::Tensor& gradient, int64_t step, AdamMoments& moments,
                const AdamSettings& settings) {
  if (!moments.exp_avg.defined()) {
    moments.exp_avg = at::zeros_like(gradient, at::MemoryFormat::Preserve);
    moments.exp_avg_sq = at::zeros_like(gradient, at::MemoryFormat::Preserve);
  }
  const auto t = static_cast<double>(step);
  const double correction1 = 1 - std::pow(settings.beta1, t);
  const double correction2 = 1 - std::pow(settings.beta2, t);
  moments.exp_avg.mul_(settings.beta1).add_(gradient, 1 - settings.beta1);
  moments.exp_avg_sq.mul_(settings.beta2).addcmul_(gradient, gradient, 1 - settings.beta2);
  // All in one tensor: what a step takes of memory is at most the largest parameter.
  auto result = moments.exp_avg_sq.sqrt().div_(std::sqrt(correction2)).add_(settings.eps);
  return at::addcdiv_out(result, at::zeros({}, result.options()), moments.exp_avg, result,
                         -(settings.lr / correction1));
}

namespace {

bool per_coordinate(SecondMoment mode) {
  return mode == SecondMoment::transported || mode == SecondMoment::body_frame ||
         mode == SecondMoment::body_frame_topk;
}

/// v of one head: the mean square of its gradient, or the matrix of which that is the trace.
at::Tensor head_square(const at::Tensor& gradient, SecondMoment mode) {
  if (mode == SecondMoment::per_head_scalar) return gradient.square().mean({1, 2}, true);
  const auto entries = static_cast<double>(gradient.size(-1));
  return gradient.matmul(gradient.transpose(-1, -2)) / entries;
}

/// The bias-corrected momentum of heads, divided by the root of their second moment.
at::Tensor divided(const at::Tensor& momentum, const at::Tensor& second, SecondMoment mode,
                   double correction2, double eps) {
  if (mode == SecondMoment::per_head_scalar) {
    return momentum / ((second / correction2).sqrt() + eps);
  }
  // The paper's Proposition on per_head_matrix: (v + eps^2)^(-1/2).
  const auto [values, vectors] = at::linalg_eigh(second.to(at::kDouble) / correction2);
  // The gradient's rounding errors reach into directions in which it never points. An eigenvalue that
  // is as small as they make it would turn them into steps.
  const double smallest = second.scalar_type() == at::kDouble ? 1e-6 : 3e-4;
  const auto floor = values.amax(-1, /*keepdim=*/true).clamp_min(0) * smallest;
  const auto root = (at::maximum(values, floor) + eps * eps).rsqrt().unsqueeze(-2);
  return (vectors * root).matmul(vectors.transpose(-1, -2)).to(momentum.options()).matmul(momentum);
}

}  // namespace

at::Tensor adam(const at::Tensor& gradient, int64_t step, const TensorView& view,
                AdamMoments& moments, const AdamSettings& settings) {
  std::vector<const HeadView*> apart;
  bool covered = false;
  for (const auto& head : view.heads) {
    if (per_coordinate(head.gauge.second_moment)) continue;
    apart.push_back(&head);
    covered = covered || head.map.covers_axis();
  }
  at::Tensor displacement;
  if (covered) {
    if (!moments.exp_avg.defined()) moments.exp_avg = at::zeros_like(gradient);
    moments.exp_avg.mul_(settings.beta1).add_(gradient, 1 - settings.beta1);
    displacement = at::empty_like(gradient);
  } else {
    displacement = adam(gradient, step, moments, settings);
  }
  const auto t = static_cast<double>(step);
  const double correction1 = 1 - std::pow(settings.beta1, t);
  const double correction2 = 1 - std::pow(settings.beta2, t);
  if (moments.head_sq.empty()) moments.head_sq.resize(apart.size());
  for (size_t i = 0; i < apart.size(); ++i) {
    const auto& [map, gauge, live] = *apart[i];
    auto momentum = map.take_heads(moments.exp_avg) / correction1;
    if (gauge.second_moment != SecondMoment::none) {
      const auto square = head_square(map.take_heads(gradient), gauge.second_moment);
      auto& second = moments.head_sq[i];
      if (!second.defined()) second = at::zeros_like(square);
      second.mul_(settings.beta2).add_(square, 1 - settings.beta2);
      momentum = divided(momentum, second, gauge.second_moment, correction2, settings.eps);
    }
    map.put_heads_(displacement, momentum * -settings.lr);
  }
  for (const auto& head : view.heads) {
    if (!head.live.defined()) continue;
    const auto adapted = head.map.take(displacement);
    const auto momentum = head.map.take(moments.exp_avg) * -(settings.lr / correction1);
    const auto live = head.live.unsqueeze(-1).to(adapted.device());
    head.map.put_(displacement, at::where(live, adapted, momentum));
  }
  return displacement;
}

std::vector<std::pair<std::string, at::Tensor*>> AdamMoments::tensors() {
  std::vector<std::pair<std::string, at::Tensor*>> result{{"exp_avg", &exp_avg},
                                                          {"exp_avg_sq", &exp_avg_sq}};
  for (size_t i = 0; i < head_sq.size(); ++i) {
    result.emplace_back("head_sq." + std::to_string(i), &head_sq[i]);
  }
  return result;
}

void AdamMoments::turn(const BlockMap& map, const at::Tensor& basis) {
  const auto turned = [&](const at::Tensor& tensor, const at::Tensor& matrices) {
    return map.multiply(matrices.transpose(-1, -2).to(tensor.options()), tensor);
  };
  if (exp_avg.defined()) exp_avg = turned(exp_avg, basis);
  if (exp_avg_sq.defined()) exp_avg_sq = turned(exp_avg_sq, basis.square());
}

}  // namespace ddc::rules
