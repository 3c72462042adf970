#pragma once

#include "ddc/optim/lifted.h"

namespace ddc {

/// Options of torch::optim::AdamW (without amsgrad), and `maximize`.
struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool maximize = false;

  OptionList options();
};

/// Moments of Adam for one tensor, in coordinates.
struct AdamMoments {
  at::Tensor exp_avg;
  /// Undefined where every entry is in a head that has another second moment.
  at::Tensor exp_avg_sq;
  /// Per head view whose second moment is not one number per coordinate: [heads, 1, 1] or
  /// [heads, block, block]. Undefined where there is none.
  std::vector<at::Tensor> head_sq;

  StateTensors tensors();
};

/// Adam with decoupled weight decay. On the CPU a step without gauges is made of the operations of
/// torch.optim.AdamW(fused=True), in one pass over memory; elsewhere, and in coordinates, of those of
/// torch::optim::AdamW. In the heads of rotations and linear gauges it keeps
/// the second moment that their treatment asks for.
struct AdamRule {
  static constexpr const char* name = "DDCAdam";
  static constexpr const char* help = "AdamW that respects gauges";
  static constexpr bool keeps_second_moments = true;
  using Options = AdamOptions;
  using State = AdamMoments;

  static State init(const TensorView& view, const Options& options);
  static at::Tensor step(const at::Tensor& gradient, int64_t step, const TensorView& view,
                         State& state, const Options& options);
  static bool in_place(const State& state, int64_t step, const Options& options,
                       kernels::PassEntry& entry);
  static void change_basis(State& state, const BasisChange& change);
  static StepSettings step_settings(const Options& options);
};

/// AdamW that respects gauges.
///
///     ddc::Parameters params(model->named_parameters());
///     ddc::DDCAdam optimizer(params,
///                            {ddc::norm_scale({.gain = params["norm.weight"],
///                                              .readers = {params["fc1.weight"]}}),
///                             ddc::relu_rescale({.in = params["fc1.weight"],
///                                                .in_bias = params["fc1.bias"],
///                                                .out = {params["fc2.weight"]}})},
///                            {.lr = 1e-3, .weight_decay = 0.01});
using DDCAdam = Lifted<AdamRule>;

}  // namespace ddc
