#include "coordinates/gauge_state.h"

#include <ATen/ATen.h>

#include <cmath>

namespace ddc {

void ScalarMoments::start(const at::Tensor& like) {
  first = at::zeros_like(like);
  second = at::zeros_like(like);
}

at::Tensor ScalarMoments::make_step(const at::Tensor& gradient, const StepSettings& settings,
                                    bool divide) {
  ++step;
  const auto t = static_cast<double>(step.get());
  first.mul_(settings.beta1).add_(gradient, 1 - settings.beta1);
  second.mul_(settings.beta2).addcmul_(gradient, gradient, 1 - settings.beta2);
  auto direction = first / (1 - std::pow(settings.beta1, t));
  if (divide) {
    const double correction = 1 - std::pow(settings.beta2, t);
    direction.div_((second / correction).sqrt_().add_(settings.eps));
  }
  return direction.mul_(-settings.lr);
}

}  // namespace ddc
