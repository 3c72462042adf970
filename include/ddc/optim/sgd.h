#pragma once

#include "ddc/optim/lifted.h"

namespace ddc {

/// Options of torch::optim::SGD. Its weight decay is coupled (added to the gradient, and so goes through
/// the momentum); here it is decoupled.
struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;

  OptionList options();
  void check() const;
};

struct SgdMoments {
  /// Undefined while the momentum is 0.
  at::Tensor momentum_buffer;

  StateTensors tensors() { return {{"momentum_buffer", &momentum_buffer}}; }
};

/// Gradient descent with momentum: the operations of torch::optim::SGD in their order, in which the first
/// gradient enters the buffer undamped.
///
/// On the same gradients the buffers agree with torch's to the last bit. So do the weights if the learning
/// rate is a power of two; otherwise they may differ by one rounding per step, as torch fuses the product
/// with the learning rate into the addition.
struct SgdRule {
  static constexpr const char* name = "DDCSgd";
  static constexpr const char* help =
      "gradient descent, with momentum if asked for, that respects gauges";
  using Options = SgdOptions;
  using State = SgdMoments;

  static State init(const TensorView& view, const Options& options);
  static at::Tensor step(const at::Tensor& gradient, int64_t step, const TensorView& view,
                         State& state, const Options& options);
  static bool in_place(const State& state, int64_t step, const Options& options,
                       kernels::PassEntry& entry);
  static void change_basis(State& state, const BasisChange& change);
};
using DDCSgd = Lifted<SgdRule>;

}  // namespace ddc
