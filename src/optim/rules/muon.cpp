#include "ddc/optim/rules/muon.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace ddc {

const char* to_string(UpdateScale scale) {
  switch (scale) {
    case UpdateScale::original:
      return "original";
    case UpdateScale::match_rms_adamw:
      return "match_rms_adamw";
    case UpdateScale::frobenius:
      return "frobenius";
  }
  return "unknown";
}

namespace rules {

at::Tensor muon_momentum(const at::Tensor& gradient, at::Tensor& momentum_buffer,
                         const MuonSettings& settings) {
  if (!momentum_buffer.defined()) {
    momentum_buffer = at::zeros_like(gradient, at::MemoryFormat::Preserve);
  }
  momentum_buffer.lerp_(gradient, 1 - settings.momentum);
  return settings.nesterov ? gradient.lerp(momentum_buffer, settings.momentum) : momentum_buffer;
}

at::Tensor muon_displacement(const at::Tensor& direction, const MuonSettings& settings) {
  auto step = polar_factor(direction, settings.method);
  const auto rows = static_cast<double>(direction.size(-2));
  const auto cols = static_cast<double>(direction.size(-1));
  switch (settings.scale) {
    case UpdateScale::original:
      return step.mul_(-settings.lr * std::sqrt(std::max(1.0, rows / cols)));
    case UpdateScale::match_rms_adamw:
      return step.mul_(-settings.lr * 0.2 * std::sqrt(std::max(rows, cols)));
    case UpdateScale::frobenius: {
      if (direction.numel() == 0) return step;
      // In float64: squares of entries of float32 can overflow where the norm does not.
      const auto norm =
          at::linalg_vector_norm(direction, 2, {-2, -1}, /*keepdim=*/true, at::kDouble);
      const auto factor = norm * (-settings.lr / std::sqrt(std::min(rows, cols)));
      return step.mul_(factor.to(step.scalar_type()));
    }
  }
  TORCH_CHECK(false, "unknown update scale ", static_cast<int>(settings.scale));
}

}  // namespace rules
}  // namespace ddc
