#include "frame/scalar_rule.h"

#include <ATen/ATen.h>

#include <cmath>

namespace ddc {

at::Tensor scalar_step(ScalarMoments& moments, const at::Tensor& gradient,
                       const StepSettings& settings, bool divide) {
  ++moments.step;
  const auto t = static_cast<double>(moments.step.get());
  moments.first.mul_(settings.beta1).add_(gradient, 1 - settings.beta1);
  moments.second.mul_(settings.beta2).addcmul_(gradient, gradient, 1 - settings.beta2);
  auto direction = moments.first / (1 - std::pow(settings.beta1, t));
  if (divide) {
    const double correction = 1 - std::pow(settings.beta2, t);
    direction.div_((moments.second / correction).sqrt_().add_(settings.eps));
  }
  return direction.mul_(-settings.lr);
}

}  // namespace ddc
