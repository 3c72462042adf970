#pragma once

#include "ddc/optim/lifted.h"

namespace ddc {

/// Options of Lion (Chen et al., Symbolic Discovery of Optimization Algorithms, 2023, Algorithm 2, with its
/// betas), and `eps`.
struct LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool maximize = false;

  OptionList options();
};

struct LionMoments {
  at::Tensor exp_avg;

  StateTensors tensors() { return {{"exp_avg", &exp_avg}}; }
};

/// Signs of a mean of gradients, with decoupled weight decay. An entry of the mean that is smaller than `eps`
/// moves less, in proportion: the sign of a rounding error is no direction. Without gauges, and where no entry is
/// that small, it is Lion itself.
struct LionRule {
  static constexpr const char* name = "DDCLion";
  static constexpr const char* help = "Lion that respects gauges";
  using Options = LionOptions;
  using State = LionMoments;

  static State init(const TensorView& view, const Options& options);
  static at::Tensor step(const at::Tensor& gradient, int64_t step, const TensorView& view,
                         State& state, const Options& options);
  static bool in_place(const State& state, int64_t step, const Options& options,
                       kernels::PassEntry& entry);
  static void change_basis(State& state, const BasisChange& change);
  static StepSettings step_settings(const Options& options);
};
using DDCLion = Lifted<LionRule>;

}  // namespace ddc
