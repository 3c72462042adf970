#include "ddc/optim/muon.h"

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

AdamOptions adam_of(const MuonOptions& options) {
  return {.lr = options.lr,
          .beta1 = options.beta1,
          .beta2 = options.beta2,
          .eps = options.eps,
          .weight_decay = options.weight_decay,
          .maximize = options.maximize};
}

/// One param group for Muon, and one for vectors and what is called by the names.
std::vector<OptimizerParamGroup> split(const Parameters& params, const MuonOptions& options,
                                       const AdamPart& adam) {
  for (const auto& name : adam.names) {
    TORCH_CHECK(params.contains(name), "DDCMuon: no parameter is called '", name,
                "', which Adam was to step");
  }
  std::vector<at::Tensor> by_muon;
  std::vector<at::Tensor> by_adam;
  for (const auto& [name, tensor] : params) {
    const bool named = std::find(adam.names.begin(), adam.names.end(), name) != adam.names.end();
    (named || tensor.dim() < 2 ? by_adam : by_muon).push_back(tensor);
  }
  std::vector<OptimizerParamGroup> groups;
  if (!by_muon.empty()) {
    groups.emplace_back(std::move(by_muon), std::make_unique<LiftedRuleOptions<MuonRule>>(options));
  }
  if (!by_adam.empty()) {
    auto of_adam = MuonOptions::adam(adam.options);
    of_adam.maximize = options.maximize;
    groups.emplace_back(std::move(by_adam), std::make_unique<LiftedRuleOptions<MuonRule>>(of_adam));
  }
  return groups;
}

}  // namespace

OptionList MuonOptions::options() {
  return {{"lr", lr, "learning rate", at_least(0)},
          {"weight_decay", weight_decay, "decoupled weight decay", at_least(0)},
          {"momentum", momentum, "decay of the average of gradients", fraction()},
          {"nesterov", nesterov, "look ahead"},
          {"method", method, "how the polar factor is computed"},
          {"scale", scale, "what the polar factor is multiplied by"},
          {"use_adam", use_adam, "step the param group by Adam"},
          {"beta1", beta1, "Adam: decay of the first moment", fraction()},
          {"beta2", beta2, "Adam: decay of the second moment", fraction()},
          {"eps", eps, "Adam: added to the root of the second moment", at_least(0)},
          {"maximize", maximize, "ascend"}};
}

MuonOptions MuonOptions::adam(const AdamOptions& options) {
  return {.lr = options.lr,
          .weight_decay = options.weight_decay,
          .use_adam = true,
          .beta1 = options.beta1,
          .beta2 = options.beta2,
          .eps = options.eps,
          .maximize = options.maximize};
}

StateTensors MuonMoments::tensors() {
  auto result = moments.tensors();
  result.emplace_back("momentum_buffer", &momentum_buffer);
  return result;
}

void MuonRule::check(const Options& options, const TensorView& view) {
  TORCH_CHECK_VALUE(options.use_adam || view.parameter.dim() >= 2, "parameter '", view.name,
                    "' of shape ", view.parameter.sizes(),
                    " is no matrix, and Muon cannot step it: put it into a param group with "
                    "use_adam = true");
}

MuonMoments MuonRule::init(const TensorView& view, const Options& options) {
  if (options.use_adam) return {{}, AdamRule::init(view, adam_of(options))};
  return {view.zeros(), {}};
}

at::Tensor MuonRule::momentum(const at::Tensor& gradient, State& state, const Options& options) {
  if (options.use_adam) return {};
  auto& buffer = state.momentum_buffer;
  buffer.lerp_(gradient, 1 - options.momentum);
  return options.nesterov ? gradient.lerp(buffer, options.momentum) : buffer;
}

at::Tensor MuonRule::displacement(const at::Tensor& momentum, const TensorView& view,
                                  const Options& options) {
  return tensor_of(muon_displacement(matrices_of(momentum, view.cut), options), momentum.sizes(),
                   view.cut);
}

at::Tensor MuonRule::step(const at::Tensor& gradient, int64_t step, const TensorView& view,
                          State& state, const Options& options) {
  if (options.use_adam) {
    return AdamRule::step(gradient, step, view, state.moments, adam_of(options));
  }
  return displacement(momentum(gradient, state, options), view, options);
}

double MuonRule::flops(const TensorView& view, const Options& options) {
  if (options.use_adam) return 0;
  const auto& tensor = view.parameter;
  // Sides of the matrices that `matrices_of` makes.
  auto rows = static_cast<double>(tensor.size(0));
  auto cols = static_cast<double>(tensor.numel()) / std::max(rows, 1.0);
  double count = 1;
  if (tensor.dim() == 3 && !view.cut) {
    count = rows;
    rows = static_cast<double>(tensor.size(1));
    cols = static_cast<double>(tensor.size(2));
  } else if (tensor.dim() == 2 && view.cut) {
    auto& cut = view.cut->axis == 0 ? rows : cols;
    count = cut / static_cast<double>(view.cut->size);
    cut = static_cast<double>(view.cut->size);
  }
  return count * polar_flops(rows, cols, options.method);
}

bool MuonRule::computes_in_double(const Options& options) {
  return options.method != PolarMethod::newton_schulz;
}

void MuonRule::change_basis(State& state, const BasisChange& change) {
  AdamRule::change_basis(state.moments, change);
  change.apply_(state.momentum_buffer);
}

StepSettings MuonRule::step_settings(const Options& options) {
  return AdamRule::step_settings(adam_of(options));
}

at::Tensor muon_displacement(const at::Tensor& direction, const MuonOptions& options) {
  auto step = polar_factor(direction, options.method);
  const auto rows = static_cast<double>(direction.size(-2));
  const auto cols = static_cast<double>(direction.size(-1));
  switch (options.scale) {
    case UpdateScale::original:
      return step.mul_(-options.lr * std::sqrt(std::max(1.0, rows / cols)));
    case UpdateScale::match_rms_adamw:
      return step.mul_(-options.lr * 0.2 * std::sqrt(std::max(rows, cols)));
    case UpdateScale::frobenius: {
      if (direction.numel() == 0) return step;
      // In float64: squares of entries of float32 can overflow where the norm does not.
      const auto norm = [](const at::Tensor& matrices) {
        return at::linalg_vector_norm(matrices, 2, at::IntArrayRef{-2, -1}, /*keepdim=*/true,
                                      at::kDouble);
      };
      // The singular values of a polar factor are 0 and 1 (up to 1.3e-2), so that (sum s^2)^2 / sum s^4
      // counts the latter. Newton-Schulz brings them near 1 only, and cannot tell.
      auto rank = at::full_like(norm(step), std::min(rows, cols));
      if (options.method != PolarMethod::newton_schulz) {
        const auto fourths =
            norm(rows < cols ? step.matmul(step.mT()) : step.mT().matmul(step)).square_();
        rank = (norm(step).pow_(4) / at::where(fourths > 0, fourths, 1.0)).round_().clamp_min_(1);
      }
      return step.mul_((norm(direction) * -options.lr / rank.sqrt()).to(step.scalar_type()));
    }
  }
  TORCH_CHECK(false, "unknown update scale ", static_cast<int>(options.scale));
}

DDCMuon::DDCMuon(const Parameters& params, std::vector<Gauge> gauges, MuonOptions options,
                 Treatments treatments, const AdamPart& adam)
    : Muon(split(params, options, adam), params, std::move(gauges), options,
           std::move(treatments)) {}

}  // namespace ddc
