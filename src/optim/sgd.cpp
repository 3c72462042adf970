#include "ddc/optim/sgd.h"

#include <ATen/ATen.h>

#include "kernels/pass.h"

namespace ddc {

OptionList SgdOptions::options() {
  return {
      {"lr", lr, "learning rate", at_least(0)},
      {"momentum", momentum, "decay of the sum of gradients", fraction()},
      {"dampening", dampening, "share of a gradient that does not enter the sum", between(0, 1)},
      {"weight_decay", weight_decay, "decoupled weight decay", at_least(0)},
      {"nesterov", nesterov, "look ahead"},
      {"maximize", maximize, "ascend"}};
}

void SgdOptions::check() const {
  TORCH_CHECK_VALUE(!nesterov || (momentum > 0 && dampening == 0),
                    "option nesterov needs momentum > 0 and dampening = 0, got ", momentum, " and ",
                    dampening);
}

SgdMoments SgdRule::init(const TensorView& view, const Options& options) {
  return {options.momentum > 0 ? view.zeros() : at::Tensor()};
}

at::Tensor SgdRule::step(const at::Tensor& gradient, int64_t step, const TensorView& /*view*/,
                         State& state, const Options& options) {
  if (options.momentum == 0) return gradient * -options.lr;
  auto& buffer = state.momentum_buffer;
  if (!buffer.defined()) {
    buffer = gradient.detach().clone();  // momentum was switched on later
  } else if (step == 1) {
    buffer.copy_(gradient);
  } else {
    buffer.mul_(options.momentum).add_(gradient, 1 - options.dampening);
  }
  if (!options.nesterov) return buffer * -options.lr;
  return gradient.add(buffer, options.momentum).mul_(-options.lr);
}

bool SgdRule::in_place(const State& state, int64_t step, const Options& options,
                       kernels::PassEntry& entry) {
  if (options.momentum > 0) {
    if (!state.momentum_buffer.defined()) return false;
    entry.state = {state.momentum_buffer};
  }
  entry.constants = kernels::SgdConstants{.lr = options.lr,
                                          .momentum = options.momentum,
                                          .dampening = options.dampening,
                                          .weight_decay = options.weight_decay,
                                          .nesterov = options.nesterov,
                                          .maximize = options.maximize,
                                          .first = step == 1};
  return true;
}

void SgdRule::change_basis(State& state, const BasisChange& change) {
  change.apply_(state.momentum_buffer);
}

}  // namespace ddc
