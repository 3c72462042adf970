#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace ddc::rules {

/// The settings of torch::optim::SGD but its weight decay. That one is coupled (it is added to the
/// gradient and so goes through the momentum); decay here is decoupled, and not the rule's business.
struct SgdSettings {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
};

struct SgdMoments {
  /// Not defined while the momentum is 0.
  at::Tensor momentum_buffer;
};

/// The displacement that SGD makes at its `step`-th step (counted from 1): the operations of
/// torch::optim::SGD in their order, in which the first gradient enters the buffer undamped.
///
/// On the same gradients the buffers agree with torch's to the last bit. So do the weights if the
/// learning rate is a power of two; otherwise they may differ by one rounding per step, as torch
/// multiplies by the rate and adds to the weights in one fused operation, while a displacement is
/// rounded before it is added.
at::Tensor sgd(const at::Tensor& gradient, int64_t step, SgdMoments& moments,
               const SgdSettings& settings);

}  // namespace ddc::rules
