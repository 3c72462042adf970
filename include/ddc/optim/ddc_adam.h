#pragma once

#include <memory>
#include <tuple>
#include <vector>

#include "ddc/optim/lifted.h"
#include "ddc/optim/rules/adam.h"

namespace ddc {

/// The options of torch::optim::AdamW (without amsgrad), and `maximize`. Those of a param group
/// that are not given are the optimizer's.
class DDCAdamOptions : public LiftedOptions {
 public:
  DDCAdamOptions() = default;
  explicit DDCAdamOptions(double lr) { this->lr(lr); }

  using betas_t = std::tuple<double, double>;
  DDC_OPTION(double, lr, 1e-3);
  DDC_OPTION(betas_t, betas, std::make_tuple(0.9, 0.999));
  DDC_OPTION(double, eps, 1e-8);
  DDC_OPTION(double, weight_decay, 1e-2);
  DDC_OPTION(bool, maximize, false);

 public:
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override;
  double get_lr() const override { return lr(); }
  void set_lr(const double lr) override { this->lr(lr); }

  StepSettings step_settings(const at::Tensor& tensor) const override;
  void inherit(const LiftedOptions& defaults) override;
  void validate() const override;
  std::map<std::string, double> values() const override;
  void assign(const std::map<std::string, double>& values) override;
};

/// Adam's moments of one tensor in coordinates: float64 for float64 parameters, float32 otherwise.
class DDCAdamParamState : public LiftedParamState {
 public:
  std::unique_ptr<torch::optim::OptimizerParamState> clone() const override;
  std::vector<std::pair<std::string, at::Tensor*>> tensors() override;
  void turn(const BlockMap& map, const at::Tensor& basis) override;

  rules::AdamMoments moments;
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
///                            ddc::DDCAdamOptions(1e-3).weight_decay(0.01));
class DDCAdam : public LiftedOptimizer {
 public:
  /// One param group that holds all of `params`.
  explicit DDCAdam(const Parameters& params, std::vector<Gauge> gauges = {},
                   DDCAdamOptions defaults = {});
  /// Several groups, each with its own options (of type DDCAdamOptions) or none. `names` gives the
  /// tensors the names that gauges use.
  explicit DDCAdam(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                   const Parameters& names = {}, std::vector<Gauge> gauges = {},
                   DDCAdamOptions defaults = {});

 protected:
  std::string name() const override { return "DDCAdam"; }
  std::unique_ptr<LiftedParamState> make_state() const override;
  at::Tensor rule(const at::Tensor& gradient, const TensorView& view, LiftedParamState& state,
                  const LiftedOptions& options) const override;
  bool follows_frames() const override { return true; }
};

}  // namespace ddc
