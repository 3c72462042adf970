#include "ddc/optim/ddc_bases.h"

#include <ATen/ATen.h>

namespace ddc {
namespace {

void check_between(const char* option, double value, double low, double high) {
  TORCH_CHECK(value >= low && value <= high, "option ", option, " must be in [", low, ", ", high,
              "], got ", value);
}

void check_momentum(const char* option, double value) {
  TORCH_CHECK(value >= 0 && value < 1, "option ", option, " must be in [0, 1), got ", value);
}

void check_positive(const char* option, int64_t value) {
  TORCH_CHECK(value > 0, "option ", option, " must be > 0, got ", value);
}

}  // namespace

void SgdRule::validate(const Settings& settings) {
  check_momentum("momentum", settings.momentum);
  check_between("dampening", settings.dampening, 0, 1);
  TORCH_CHECK(!settings.nesterov || (settings.momentum > 0 && settings.dampening == 0),
              "option nesterov needs momentum > 0 and dampening = 0, got ", settings.momentum,
              " and ", settings.dampening);
}

at::Tensor SgdRule::step(const at::Tensor& gradient, int64_t step, const TensorView& /*view*/,
                         State& state, const Settings& settings) {
  return rules::sgd(gradient, step, state, settings);
}

void SgdRule::turn(State& state, const BlockMap& map, const at::Tensor& basis) {
  auto& buffer = state.momentum_buffer;
  if (!buffer.defined()) return;
  buffer = map.multiply(basis.transpose(-1, -2).to(buffer.options()), buffer);
}

void ShampooRule::validate(const Settings& settings) {
  check_momentum("beta1", settings.beta1);
  check_between("beta2", settings.beta2, 0, 1);
  TORCH_CHECK(settings.eps >= 0, "option eps must be finite and >= 0, got ", settings.eps);
  check_positive("max_dim", settings.max_dim);
  check_positive("precondition_every", settings.precondition_every);
}

at::Tensor ShampooRule::step(const at::Tensor& gradient, int64_t step, const TensorView& /*view*/,
                             State& state, const Settings& settings) {
  return rules::shampoo(gradient, step, state, settings);
}

void SoapRule::validate(const Settings& settings) {
  check_momentum("beta1", settings.beta1);
  check_momentum("beta2", settings.beta2);
  if (settings.shampoo_beta) check_momentum("shampoo_beta", *settings.shampoo_beta);
  TORCH_CHECK(settings.eps >= 0, "option eps must be finite and >= 0, got ", settings.eps);
  check_positive("max_dim", settings.max_dim);
  check_positive("precondition_every", settings.precondition_every);
}

at::Tensor SoapRule::step(const at::Tensor& gradient, int64_t step, const TensorView& /*view*/,
                          State& state, const Settings& settings) {
  return rules::soap(gradient, step, state, settings);
}

}  // namespace ddc
