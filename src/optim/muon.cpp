#include "ddc/optim/muon.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>

#include <array>
#include <cmath>
#include <string>
#include <utility>

namespace ddc {

using torch::optim::OptimizerParamGroup;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

namespace {

constexpr std::array kMethods{PolarMethod::exact, PolarMethod::fast, PolarMethod::sharpen,
                              PolarMethod::newton_schulz};
constexpr std::array kScales{UpdateScale::original, UpdateScale::match_rms_adamw,
                             UpdateScale::frobenius};

c10::IValue read(InputArchive& archive, const std::string& key) {
  c10::IValue value;
  archive.read(key, value);
  return value;
}

/// Enumerators are stored by name, so that a file outlives a change of their order.
template <class Enum, size_t n>
Enum read_enum(InputArchive& archive, const std::string& key, const std::array<Enum, n>& all) {
  const auto name = read(archive, key).toStringRef();
  for (const auto value : all) {
    if (name == to_string(value)) return value;
  }
  TORCH_CHECK(false, "option ", key, " has the unknown value '", name, "'");
}

/// The tensor as matrices [rows, cols] or [count, rows, cols].
at::Tensor as_matrices(const at::Tensor& tensor) {
  return tensor.dim() > 3 ? tensor.flatten(1) : tensor;
}

const MuonOptions& options_of(const OptimizerParamGroup& group) {
  return dynamic_cast<const MuonOptions&>(group.options());
}

void check_gradients(const OptimizerParamGroup& group) {
  for (const auto& param : group.params()) {
    const auto& gradient = param.grad();
    if (!gradient.defined()) continue;
    TORCH_CHECK(gradient.layout() == at::kStrided,
                "Muon needs dense gradients, the one of a parameter of shape ", param.sizes(),
                " is sparse");
    TORCH_CHECK(gradient.isfinite().all().item<bool>(), "the gradient of a parameter of shape ",
                param.sizes(), " has NaN or Inf entries; the step was not made");
  }
}

}  // namespace

std::unique_ptr<torch::optim::OptimizerOptions> MuonOptions::clone() const {
  return std::make_unique<MuonOptions>(*this);
}

void MuonOptions::validate() const {
  const auto non_negative = [](const char* option, double value) {
    TORCH_CHECK_VALUE(std::isfinite(value) && value >= 0, "option ", option,
                      " must be finite and >= 0, got ", value);
  };
  non_negative("lr", lr());
  non_negative("weight_decay", weight_decay());
  TORCH_CHECK_VALUE(momentum() >= 0 && momentum() < 1, "option momentum must be in [0, 1), got ",
                    momentum());
}

void MuonOptions::serialize(OutputArchive& archive) const {
  archive.write("lr", lr());
  archive.write("weight_decay", weight_decay());
  archive.write("momentum", momentum());
  archive.write("nesterov", nesterov());
  archive.write("method", c10::IValue(to_string(method())));
  archive.write("scale", c10::IValue(to_string(scale())));
}

void MuonOptions::serialize(InputArchive& archive) {
  lr(read(archive, "lr").toDouble());
  weight_decay(read(archive, "weight_decay").toDouble());
  momentum(read(archive, "momentum").toDouble());
  nesterov(read(archive, "nesterov").toBool());
  method(read_enum(archive, "method", kMethods));
  scale(read_enum(archive, "scale", kScales));
}

std::unique_ptr<torch::optim::OptimizerParamState> MuonParamState::clone() const {
  return std::make_unique<MuonParamState>(*this);
}

void MuonParamState::serialize(OutputArchive& archive) const {
  archive.write("momentum_buffer", momentum_buffer(), /*is_buffer=*/true);
}

void MuonParamState::serialize(InputArchive& archive) {
  archive.read("momentum_buffer", momentum_buffer_, /*is_buffer=*/true);
}

Muon::Muon(const std::vector<OptimizerParamGroup>& groups, const MuonOptions& defaults)
    : Optimizer(std::vector<OptimizerParamGroup>{}, std::make_unique<MuonOptions>(defaults)) {
  defaults.validate();
  for (const auto& group : groups) Muon::add_param_group(group);
}

Muon::Muon(std::vector<at::Tensor> params, const MuonOptions& defaults)
    : Muon(std::vector<OptimizerParamGroup>{OptimizerParamGroup(std::move(params))}, defaults) {}

void Muon::add_param_group(const OptimizerParamGroup& group) {
  for (const auto& param : group.params()) {
    TORCH_CHECK(param.dim() >= 2, "Muon steps matrices and stacks of them; a parameter of shape ",
                param.sizes(), " has less than 2 axes, give it to another optimizer");
    TORCH_CHECK(at::isFloatingType(param.scalar_type()),
                "Muon needs parameters of a floating-point type, got ", param.scalar_type());
  }
  auto options = group.has_options() ? group.options().clone() : defaults_->clone();
  const auto* own = dynamic_cast<const MuonOptions*>(options.get());
  TORCH_CHECK(own != nullptr, "param group ", param_groups_.size(),
              " has options of another optimizer's type");
  own->validate();
  param_groups_.emplace_back(group.params(), std::move(options));
}

at::Tensor Muon::step(LossClosure closure) {
  at::Tensor loss;
  if (closure != nullptr) {
    const at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  for (const auto& group : param_groups_) {
    options_of(group).validate();
    check_gradients(group);
  }
  for (auto& group : param_groups_) {
    const auto& options = options_of(group);
    const rules::MuonSettings settings{.lr = options.lr(),
                                       .momentum = options.momentum(),
                                       .nesterov = options.nesterov(),
                                       .method = options.method(),
                                       .scale = options.scale()};
    for (auto& param : group.params()) {
      if (!param.grad().defined()) continue;
      auto& slot = state_[param.unsafeGetTensorImpl()];
      if (slot == nullptr) slot = std::make_unique<MuonParamState>();
      auto& buffer = static_cast<MuonParamState&>(*slot).momentum_buffer();
      const auto direction = rules::muon_momentum(param.grad(), buffer, settings);
      const auto step = rules::muon_displacement(as_matrices(direction), settings);
      param.mul_(1 - options.lr() * options.weight_decay());
      param.add_(step.reshape(param.sizes()));
    }
  }
  return loss;
}

void Muon::save(OutputArchive& archive) const {
  torch::optim::serialize<MuonParamState, MuonOptions>(archive, *this);
}

void Muon::load(InputArchive& archive) {
  torch::optim::serialize<MuonParamState, MuonOptions>(archive, *this);
}

}  // namespace ddc
