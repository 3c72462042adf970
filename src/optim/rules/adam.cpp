#include "ddc/optim/rules/adam.h"

#include <ATen/ATen.h>

#include <cmath>

namespace ddc::rules {

at::Tensor adam(const at::Tensor& gradient, int64_t step, AdamMoments& moments,
                const AdamSettings& settings) {
  if (!moments.exp_avg.defined()) {
    moments.exp_avg = at::zeros_like(gradient, at::MemoryFormat::Preserve);
    moments.exp_avg_sq = at::zeros_like(gradient, at::MemoryFormat::Preserve);
  }
  const auto t = static_cast<double>(step);
  const double correction1 = 1 - std::pow(settings.beta1, t);
  const double correction2 = 1 - std::pow(settings.beta2, t);
  moments.exp_avg.mul_(settings.beta1).add_(gradient, 1 - settings.beta1);
  moments.exp_avg_sq.mul_(settings.beta2).addcmul_(gradient, gradient, 1 - settings.beta2);
  auto denominator = (moments.exp_avg_sq.sqrt() / std::sqrt(correction2)).add_(settings.eps);
  return (moments.exp_avg * -(settings.lr / correction1)).div_(denominator);
}

}  // namespace ddc::rules
