#include "ddc/optim/rules/sgd.h"

#include <ATen/ATen.h>

namespace ddc::rules {

at::Tensor sgd(const at::Tensor& gradient, int64_t /*step*/, SgdMoments& moments,
               const SgdSettings& settings) {
  if (settings.momentum == 0) return gradient * -settings.lr;
  // As in torch, it is the missing buffer that tells the first step, not the count: momentum may be
  // switched on later.
  if (!moments.momentum_buffer.defined()) {
    moments.momentum_buffer = gradient.detach().clone();
  } else {
    moments.momentum_buffer.mul_(settings.momentum).add_(gradient, 1 - settings.dampening);
  }
  if (!settings.nesterov) return moments.momentum_buffer * -settings.lr;
  return gradient.add(moments.momentum_buffer, settings.momentum).mul_(-settings.lr);
}

}  // namespace ddc::rules
