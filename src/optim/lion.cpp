#include "ddc/optim/lion.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "kernels/pass.h"

namespace ddc {

OptionList LionOptions::options() {
  return {{"lr", lr, "learning rate", at_least(0)},
          {"beta1", beta1, "share of the momentum in a step", fraction()},
          {"beta2", beta2, "decay of the momentum", fraction()},
          {"eps", eps, "size below which an entry of the mean moves in proportion, not by its sign",
           at_least(0)},
          {"weight_decay", weight_decay, "decoupled weight decay", at_least(0)},
          {"maximize", maximize, "ascend"}};
}

StepSettings LionRule::step_settings(const Options& options) {
  return {.lr = options.lr, .weight_decay = options.weight_decay, .maximize = options.maximize};
}

LionMoments LionRule::init(const TensorView& view, const Options& /*options*/) {
  return {view.zeros()};
}

at::Tensor LionRule::step(const at::Tensor& gradient, int64_t /*step*/, const TensorView& /*view*/,
                          State& state, const Options& options) {
  const double smallest = gradient.scalar_type() == at::kDouble ? std::numeric_limits<double>::min()
                                                                : std::numeric_limits<float>::min();
  auto mean = (state.exp_avg * options.beta1).add_(gradient, 1 - options.beta1);
  state.exp_avg.mul_(options.beta2).add_(gradient, 1 - options.beta2);
  return mean.div_(mean.abs().clamp_min_(std::max(options.eps, smallest))).mul_(-options.lr);
}

bool LionRule::in_place(const State& state, int64_t /*step*/, const Options& options,
                        kernels::PassEntry& entry) {
  entry.state = {state.exp_avg};
  entry.constants = kernels::LionConstants{.lr = options.lr,
                                           .beta1 = options.beta1,
                                           .beta2 = options.beta2,
                                           .eps = options.eps,
                                           .weight_decay = options.weight_decay,
                                           .maximize = options.maximize};
  return true;
}

void LionRule::change_basis(State& state, const BasisChange& change) {
  change.apply_(state.exp_avg);
}

}  // namespace ddc
