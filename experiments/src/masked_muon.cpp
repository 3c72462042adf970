#include "masked_muon.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace ddc::experiments {

void MaskedMuonRule::validate(const Settings& settings) {
  TORCH_CHECK_VALUE(settings.threshold >= 0 && settings.threshold < 1,
                    "option threshold must be in [0, 1), got ", settings.threshold);
  TORCH_CHECK_VALUE(settings.momentum >= 0 && settings.momentum < 1,
                    "option momentum must be in [0, 1), got ", settings.momentum);
}

at::Tensor without_dead_directions(const at::Tensor& matrix, double threshold) {
  // In float64: dead directions are to be told from rounding.
  const auto [u, s, vh] = at::linalg_svd(matrix.to(at::kDouble), /*full_matrices=*/false);
  const auto dead = s < threshold * s.max();
  if (!dead.any().item<bool>()) return matrix;
  return (u * (s * ~dead)).matmul(vh).to(matrix.scalar_type());
}

at::Tensor MaskedMuonRule::step(const at::Tensor& gradient, int64_t step,
                                const TensorView& /*view*/, State& state,
                                const Settings& settings) {
  if (settings.use_adam || gradient.dim() < 2) {
    return rules::adam(gradient, step, state.moments,
                       {settings.lr, settings.beta1, settings.beta2, settings.eps});
  }
  const rules::MuonSettings muon{.lr = settings.lr,
                                 .momentum = settings.momentum,
                                 .nesterov = settings.nesterov,
                                 .method = settings.method,
                                 .scale = settings.scale};
  const auto direction = rules::muon_momentum(gradient, state.momentum_buffer, muon);
  const auto live = without_dead_directions(direction.flatten(1), settings.threshold);
  return rules::muon_displacement(live, muon).view(gradient.sizes());
}

std::unique_ptr<Lifted<MaskedMuonRule>> masked_muon(const Parameters& params,
                                                    const MaskedMuonOptions& options,
                                                    const std::vector<std::string>& adam) {
  std::vector<at::Tensor> by_muon;
  std::vector<at::Tensor> by_adam;
  for (const auto& [name, tensor] : params) {
    const bool named = std::find(adam.begin(), adam.end(), name) != adam.end();
    (named || tensor.dim() < 2 ? by_adam : by_muon).push_back(tensor);
  }
  const RuleOptions<MaskedMuonRule> muon_options{.settings = options.settings,
                                                 .weight_decay = options.weight_decay};
  RuleOptions<MaskedMuonRule> adam_options{.settings = options.settings,
                                           .weight_decay = options.adam_weight_decay};
  adam_options.settings.lr = options.adam_lr;
  adam_options.settings.use_adam = true;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  if (!by_muon.empty()) groups.emplace_back(std::move(by_muon));
  if (!by_adam.empty()) {
    groups.emplace_back(std::move(by_adam),
                        std::make_unique<LiftedRuleOptions<MaskedMuonRule>>(adam_options));
  }
  return std::make_unique<Lifted<MaskedMuonRule>>(groups, params, std::vector<Gauge>{},
                                                  muon_options);
}

}  // namespace ddc::experiments
