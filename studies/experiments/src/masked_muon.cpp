#include "masked_muon.h"

#include <ATen/ATen.h>

namespace ddc::experiments {

OptionList MaskedMuonOptions::options() {
  auto list = MuonOptions::options();
  list.emplace_back("threshold", threshold,
                    "singular directions below this share of the largest are masked", fraction());
  return list;
}

at::Tensor without_dead_directions(const at::Tensor& matrix, double threshold) {
  // In float64: dead directions are to be told from rounding.
  const auto [u, s, vh] = at::linalg_svd(matrix.to(at::kDouble), /*full_matrices=*/false);
  const auto dead = s < threshold * s.max();
  if (!dead.any().item<bool>()) return matrix;
  return (u * (s * ~dead)).matmul(vh).to(matrix.scalar_type());
}

at::Tensor MaskedMuonRule::step(const at::Tensor& gradient, int64_t step, const TensorView& view,
                                State& state, const Options& options) {
  if (options.use_adam) return MuonRule::step(gradient, step, view, state, options);
  const auto direction = momentum(gradient, state, options);
  const auto live = without_dead_directions(direction.flatten(1), options.threshold);
  return muon_displacement(live, options).view(gradient.sizes());
}

}  // namespace ddc::experiments
