#include "ddc/optim/adam.h"

#include <ATen/ATen.h>

#include <cmath>

#include "gauge/block_map.h"
#include "kernels/pass.h"

namespace ddc {
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

/// Head views whose second moment is kept per head.
std::vector<const HeadView*> heads_apart(const TensorView& view) {
  std::vector<const HeadView*> apart;
  for (const auto& head : view.heads) {
    if (!per_coordinate(head.second_moment)) apart.push_back(&head);
  }
  return apart;
}

at::Tensor per_coordinate_step(const AdamMoments& moments, double correction1, double correction2,
                               const AdamOptions& options) {
  // All in one tensor: what a step takes of memory is at most the largest parameter.
  auto result = moments.exp_avg_sq.sqrt().div_(std::sqrt(correction2)).add_(options.eps);
  return at::addcdiv_out(result, at::zeros({}, result.options()), moments.exp_avg, result,
                         -(options.lr / correction1));
}

}  // namespace

OptionList AdamOptions::options() {
  return {{"lr", lr, "learning rate", at_least(0)},
          {"beta1", beta1, "decay of the first moment", fraction()},
          {"beta2", beta2, "decay of the second moment", fraction()},
          {"eps", eps, "added to the root of the second moment", at_least(0)},
          {"weight_decay", weight_decay, "decoupled weight decay", at_least(0)},
          {"maximize", maximize, "ascend"}};
}

StateTensors AdamMoments::tensors() {
  StateTensors result{{"exp_avg", &exp_avg}, {"exp_avg_sq", &exp_avg_sq}};
  for (size_t i = 0; i < head_sq.size(); ++i) {
    result.emplace_back("head_sq." + std::to_string(i), &head_sq[i]);
  }
  return result;
}

StepSettings AdamRule::step_settings(const Options& options) {
  return {.lr = options.lr,
          .weight_decay = options.weight_decay,
          .maximize = options.maximize,
          .beta1 = options.beta1,
          .beta2 = options.beta2,
          .eps = options.eps};
}

AdamMoments AdamRule::init(const TensorView& view, const Options& /*options*/) {
  AdamMoments moments;
  moments.exp_avg = view.zeros();
  bool covered = false;
  for (const auto* head : heads_apart(view)) {
    covered = covered || head->map.covers_axis();
    const int64_t heads = head->map.blocks() * head->map.copies();
    const int64_t side =
        head->second_moment == SecondMoment::per_head_matrix ? head->map.block() : 1;
    moments.head_sq.push_back(
        head->second_moment == SecondMoment::none ? at::Tensor() : view.zeros({heads, side, side}));
  }
  if (!covered) moments.exp_avg_sq = view.zeros();
  return moments;
}

at::Tensor AdamRule::step(const at::Tensor& gradient, int64_t step, const TensorView& view,
                          State& moments, const Options& options) {
  const auto t = static_cast<double>(step);
  const double correction1 = 1 - std::pow(options.beta1, t);
  const double correction2 = 1 - std::pow(options.beta2, t);
  moments.exp_avg.mul_(options.beta1).add_(gradient, 1 - options.beta1);
  at::Tensor displacement;
  if (moments.exp_avg_sq.defined()) {
    moments.exp_avg_sq.mul_(options.beta2).addcmul_(gradient, gradient, 1 - options.beta2);
    displacement = per_coordinate_step(moments, correction1, correction2, options);
  } else {
    displacement = at::empty_like(gradient);
  }
  const auto apart = heads_apart(view);
  for (size_t i = 0; i < apart.size(); ++i) {
    const auto& [map, mode, live] = *apart[i];
    auto momentum = map.take_heads(moments.exp_avg) / correction1;
    if (mode != SecondMoment::none) {
      auto& second = moments.head_sq[i];
      second.mul_(options.beta2)
          .add_(head_square(map.take_heads(gradient), mode), 1 - options.beta2);
      momentum = divided(momentum, second, mode, correction2, options.eps);
    }
    map.put_heads_(displacement, momentum * -options.lr);
  }
  for (const auto& head : view.heads) {
    if (!head.live.defined()) continue;
    const auto adapted = head.map.take(displacement);
    const auto momentum = head.map.take(moments.exp_avg) * -(options.lr / correction1);
    const auto live = head.live.unsqueeze(-1).to(adapted.device());
    head.map.put_(displacement, at::where(live, adapted, momentum));
  }
  return displacement;
}

bool AdamRule::in_place(const State& state, int64_t step, const Options& options,
                        kernels::PassEntry& entry) {
  if (!state.exp_avg_sq.defined() || !state.head_sq.empty()) return false;
  entry.state = {state.exp_avg, state.exp_avg_sq};
  const auto t = static_cast<double>(step);
  entry.constants = kernels::AdamConstants{.lr = options.lr,
                                           .beta1 = options.beta1,
                                           .beta2 = options.beta2,
                                           .eps = options.eps,
                                           .weight_decay = options.weight_decay,
                                           .maximize = options.maximize,
                                           .correction1 = 1 - std::pow(options.beta1, t),
                                           .correction2 = 1 - std::pow(options.beta2, t)};
  return true;
}

void AdamRule::change_basis(State& moments, const BasisChange& change) {
  change.apply_(moments.exp_avg);
  change.apply_to_squares_(moments.exp_avg_sq);
}

}  // namespace ddc
