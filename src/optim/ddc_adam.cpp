#include "ddc/optim/ddc_adam.h"

#include <ATen/ATen.h>

#include <cmath>

namespace ddc {

std::unique_ptr<torch::optim::OptimizerOptions> DDCAdamOptions::clone() const {
  return std::make_unique<DDCAdamOptions>(*this);
}

StepSettings DDCAdamOptions::step_settings(const at::Tensor& /*tensor*/) const {
  return {.lr = lr(),
          .weight_decay = weight_decay(),
          .maximize = maximize(),
          .beta1 = std::get<0>(betas()),
          .beta2 = std::get<1>(betas()),
          .eps = eps()};
}

void DDCAdamOptions::inherit(const LiftedOptions& defaults) {
  const auto& from = dynamic_cast<const DDCAdamOptions&>(defaults);
  lr_.inherit(from.lr_);
  betas_.inherit(from.betas_);
  eps_.inherit(from.eps_);
  weight_decay_.inherit(from.weight_decay_);
  maximize_.inherit(from.maximize_);
}

void DDCAdamOptions::validate() const {
  const auto non_negative = [](const char* option, double value) {
    TORCH_CHECK_VALUE(std::isfinite(value) && value >= 0, "option ", option,
                      " must be finite and >= 0, got ", value);
  };
  const auto is_beta = [](const char* option, double value) {
    TORCH_CHECK_VALUE(value >= 0 && value < 1, "option ", option, " must be in [0, 1), got ",
                      value);
  };
  non_negative("lr", lr());
  non_negative("eps", eps());
  non_negative("weight_decay", weight_decay());
  is_beta("betas[0]", std::get<0>(betas()));
  is_beta("betas[1]", std::get<1>(betas()));
}

std::map<std::string, double> DDCAdamOptions::values() const {
  return {{"lr", lr()},   {"beta1", std::get<0>(betas())},  {"beta2", std::get<1>(betas())},
          {"eps", eps()}, {"weight_decay", weight_decay()}, {"maximize", maximize() ? 1 : 0}};
}

void DDCAdamOptions::assign(const std::map<std::string, double>& values) {
  const auto get = [&](const char* option) {
    const auto found = values.find(option);
    TORCH_CHECK(found != values.end(), "option ", option, " is missing");
    return found->second;
  };
  lr(get("lr"));
  betas({get("beta1"), get("beta2")});
  eps(get("eps"));
  weight_decay(get("weight_decay"));
  maximize(get("maximize") != 0);
  validate();
}

std::unique_ptr<torch::optim::OptimizerParamState> DDCAdamParamState::clone() const {
  return std::make_unique<DDCAdamParamState>(*this);
}

std::vector<std::pair<std::string, at::Tensor*>> DDCAdamParamState::tensors() {
  return moments.tensors();
}

void DDCAdamParamState::turn(const BlockMap& map, const at::Tensor& basis) {
  moments.turn(map, basis);
}

DDCAdam::DDCAdam(const Parameters& params, std::vector<Gauge> gauges, DDCAdamOptions defaults)
    : DDCAdam(std::vector<torch::optim::OptimizerParamGroup>{params.tensors()}, params,
              std::move(gauges), std::move(defaults)) {}

DDCAdam::DDCAdam(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                 const Parameters& names, std::vector<Gauge> gauges, DDCAdamOptions defaults)
    : LiftedOptimizer(groups, names, std::move(gauges),
                      std::make_unique<DDCAdamOptions>(std::move(defaults))) {}

std::unique_ptr<LiftedParamState> DDCAdam::make_state() const {
  return std::make_unique<DDCAdamParamState>();
}

at::Tensor DDCAdam::rule(const at::Tensor& gradient, const TensorView& view,
                         LiftedParamState& state, const LiftedOptions& options) const {
  const auto settings = options.step_settings(gradient);
  return rules::adam(gradient, state.step, view, static_cast<DDCAdamParamState&>(state).moments,
                     {settings.lr, settings.beta1, settings.beta2, settings.eps});
}

}  // namespace ddc
