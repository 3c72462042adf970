#include "ddc/optim/ddc_muon.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace ddc {

using torch::optim::OptimizerParamGroup;

namespace {

/// Matrices [count, rows, cols] that have a polar factor each.
at::Tensor matrices_of(const at::Tensor& tensor, const std::optional<HeadCut>& cut) {
  if (tensor.dim() == 3 && !cut) return tensor;
  const auto matrix = tensor.flatten(1);
  if (!cut || tensor.dim() != 2) return matrix.unsqueeze(0);
  const int64_t heads = tensor.size(cut->axis) / cut->size;
  if (cut->axis == 0) return matrix.reshape({heads, cut->size, matrix.size(1)});
  return matrix.reshape({matrix.size(0), heads, cut->size}).transpose(0, 1);
}

at::Tensor tensor_of(const at::Tensor& matrices, at::IntArrayRef sizes,
                     const std::optional<HeadCut>& cut) {
  const bool columns = cut && cut->axis == 1 && sizes.size() == 2;
  return (columns ? matrices.transpose(0, 1) : matrices).reshape(sizes);
}

/// One param group for Muon and one for the parameters called `adam`.
std::vector<OptimizerParamGroup> split(const Parameters& params, const DDCMuonOptions& defaults,
                                       const std::vector<std::string>& adam) {
  for (const auto& name : adam) {
    TORCH_CHECK(params.contains(name), "DDCMuon: no parameter is called '", name,
                "', which Adam was to step");
  }
  std::vector<at::Tensor> by_muon;
  std::vector<at::Tensor> by_adam;
  for (const auto& [name, tensor] : params) {
    const bool named = std::find(adam.begin(), adam.end(), name) != adam.end();
    (named ? by_adam : by_muon).push_back(tensor);
  }
  std::vector<OptimizerParamGroup> groups;
  if (!by_muon.empty()) groups.emplace_back(std::move(by_muon));
  if (!by_adam.empty()) {
    auto options = std::make_unique<DDCMuonOptions>(defaults);
    options->use_adam(true);
    groups.emplace_back(std::move(by_adam), std::move(options));
  }
  return groups;
}

}  // namespace

std::unique_ptr<torch::optim::OptimizerOptions> DDCMuonOptions::clone() const {
  return std::make_unique<DDCMuonOptions>(*this);
}

void DDCMuonOptions::remember_ratio_() {
  if (lr() > 0) adam_per_lr_ = adam_lr() / lr();
}

void DDCMuonOptions::set_lr(const double lr) {
  remember_ratio_();
  if (adam_per_lr_) adam_lr(*adam_per_lr_ * lr);
  this->lr(lr);
}

StepSettings DDCMuonOptions::step_settings(const at::Tensor& tensor) const {
  const bool adam = steps_by_adam(tensor);
  StepSettings settings;
  settings.lr = adam ? adam_lr() : lr();
  settings.weight_decay = adam ? adam_weight_decay() : weight_decay();
  settings.maximize = maximize();
  settings.beta1 = std::get<0>(adam_betas());
  settings.beta2 = std::get<1>(adam_betas());
  settings.eps = adam_eps();
  return settings;
}

void DDCMuonOptions::inherit(const LiftedOptions& defaults) {
  const auto& from = dynamic_cast<const DDCMuonOptions&>(defaults);
  lr_.inherit(from.lr_);
  momentum_.inherit(from.momentum_);
  nesterov_.inherit(from.nesterov_);
  weight_decay_.inherit(from.weight_decay_);
  method_.inherit(from.method_);
  scale_.inherit(from.scale_);
  maximize_.inherit(from.maximize_);
  use_adam_.inherit(from.use_adam_);
  adam_lr_.inherit(from.adam_lr_);
  adam_betas_.inherit(from.adam_betas_);
  adam_eps_.inherit(from.adam_eps_);
  adam_weight_decay_.inherit(from.adam_weight_decay_);
}

void DDCMuonOptions::validate() const {
  const auto all = values();
  for (const char* option : {"lr", "weight_decay", "adam_lr", "adam_eps", "adam_weight_decay"}) {
    TORCH_CHECK_VALUE(std::isfinite(all.at(option)) && all.at(option) >= 0, "option ", option,
                      " must be finite and >= 0, got ", all.at(option));
  }
  for (const char* option : {"momentum", "adam_beta1", "adam_beta2"}) {
    TORCH_CHECK_VALUE(all.at(option) >= 0 && all.at(option) < 1, "option ", option,
                      " must be in [0, 1), got ", all.at(option));
  }
  TORCH_CHECK_VALUE(!nesterov() || momentum() > 0, "option nesterov needs momentum > 0, got ",
                    momentum());
}

std::map<std::string, double> DDCMuonOptions::values() const {
  return {{"lr", lr()},
          {"momentum", momentum()},
          {"nesterov", nesterov() ? 1 : 0},
          {"weight_decay", weight_decay()},
          {"method", static_cast<double>(method())},
          {"scale", static_cast<double>(scale())},
          {"maximize", maximize() ? 1 : 0},
          {"use_adam", use_adam() ? 1 : 0},
          {"adam_lr", adam_lr()},
          {"adam_beta1", std::get<0>(adam_betas())},
          {"adam_beta2", std::get<1>(adam_betas())},
          {"adam_eps", adam_eps()},
          {"adam_weight_decay", adam_weight_decay()}};
}

void DDCMuonOptions::assign(const std::map<std::string, double>& values) {
  const auto get = [&](const char* option) {
    const auto found = values.find(option);
    TORCH_CHECK(found != values.end(), "option ", option, " is missing");
    return found->second;
  };
  const auto one_of = [&](const char* option, int last) {
    const double value = get(option);
    TORCH_CHECK_VALUE(value == std::floor(value) && value >= 0 && value <= last, "option ", option,
                      " must be an integer from 0 to ", last, ", got ", value);
    return static_cast<int>(value);
  };
  remember_ratio_();  // that of before, for checkpoints that were made while both rates were 0
  lr(get("lr"));
  momentum(get("momentum"));
  nesterov(get("nesterov") != 0);
  weight_decay(get("weight_decay"));
  method(static_cast<PolarMethod>(one_of("method", static_cast<int>(PolarMethod::newton_schulz))));
  scale(static_cast<UpdateScale>(one_of("scale", static_cast<int>(UpdateScale::frobenius))));
  maximize(get("maximize") != 0);
  use_adam(get("use_adam") != 0);
  adam_lr(get("adam_lr"));
  adam_betas({get("adam_beta1"), get("adam_beta2")});
  adam_eps(get("adam_eps"));
  adam_weight_decay(get("adam_weight_decay"));
  validate();
}

std::unique_ptr<torch::optim::OptimizerParamState> DDCMuonParamState::clone() const {
  return std::make_unique<DDCMuonParamState>(*this);
}

std::vector<std::pair<std::string, at::Tensor*>> DDCMuonParamState::tensors() {
  auto result = moments.tensors();
  result.emplace_back("momentum_buffer", &momentum_buffer);
  return result;
}

void DDCMuonParamState::turn(const BlockMap& map, const at::Tensor& basis) {
  moments.turn(map, basis);
  if (!momentum_buffer.defined()) return;
  momentum_buffer =
      map.multiply(basis.transpose(-1, -2).to(momentum_buffer.options()), momentum_buffer);
}

DDCMuon::DDCMuon(const Parameters& params, std::vector<Gauge> gauges, DDCMuonOptions defaults,
                 const std::vector<std::string>& adam)
    : DDCMuon(split(params, defaults, adam), params, std::move(gauges), defaults) {}

DDCMuon::DDCMuon(const std::vector<OptimizerParamGroup>& groups, const Parameters& names,
                 std::vector<Gauge> gauges, DDCMuonOptions defaults)
    : LiftedOptimizer(groups, names, std::move(gauges),
                      std::make_unique<DDCMuonOptions>(std::move(defaults))) {}

std::unique_ptr<LiftedParamState> DDCMuon::make_state() const {
  return std::make_unique<DDCMuonParamState>();
}

at::Tensor DDCMuon::rule(const at::Tensor& gradient, const TensorView& view,
                         LiftedParamState& state, const LiftedOptions& options) const {
  const auto& given = static_cast<const DDCMuonOptions&>(options);
  auto& own = static_cast<DDCMuonParamState&>(state);
  if (given.steps_by_adam(gradient)) {
    const auto settings = given.step_settings(gradient);
    return rules::adam(gradient, state.step, view, own.moments,
                       {settings.lr, settings.beta1, settings.beta2, settings.eps});
  }
  const rules::MuonSettings settings{.lr = given.lr(),
                                     .momentum = given.momentum(),
                                     .nesterov = given.nesterov(),
                                     .method = given.method(),
                                     .scale = given.scale()};
  const auto direction = rules::muon_momentum(gradient, own.momentum_buffer, settings);
  return tensor_of(rules::muon_displacement(matrices_of(direction, view.cut), settings),
                   gradient.sizes(), view.cut);
}

}  // namespace ddc
