#pragma once

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "ddc/optim/lifted.h"
#include "ddc/optim/rules/adam.h"
#include "ddc/optim/rules/muon.h"

namespace ddc {

/// Options of Muon, and of Adam for what Muon does not step. Those of a param group that are not given
/// are the optimizer's.
class DDCMuonOptions : public LiftedOptions {
 public:
  DDCMuonOptions() = default;
  explicit DDCMuonOptions(double lr) { this->lr(lr); }

  using betas_t = std::tuple<double, double>;
  DDC_OPTION(double, lr, 0.02);
  DDC_OPTION(double, momentum, 0.95);
  DDC_OPTION(bool, nesterov, true);
  DDC_OPTION(double, weight_decay, 0.1);
  DDC_OPTION(PolarMethod, method, PolarMethod::exact);
  DDC_OPTION(UpdateScale, scale, UpdateScale::original);
  DDC_OPTION(bool, maximize, false);
  /// Step all parameters of the group by Adam, matrices too. Vectors always are.
  DDC_OPTION(bool, use_adam, false);
  DDC_OPTION(double, adam_lr, 1e-3);
  DDC_OPTION(betas_t, adam_betas, std::make_tuple(0.9, 0.999));
  DDC_OPTION(double, adam_eps, 1e-8);
  DDC_OPTION(double, adam_weight_decay, 1e-2);

 public:
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override;
  double get_lr() const override { return lr(); }
  /// Schedules multiply both learning rates. Their ratio is remembered while they are 0.
  void set_lr(const double lr) override;

  bool steps_by_adam(const at::Tensor& tensor) const { return use_adam() || tensor.dim() < 2; }
  StepSettings step_settings(const at::Tensor& tensor) const override;
  void inherit(const LiftedOptions& defaults) override;
  void validate() const override;
  std::map<std::string, double> values() const override;
  void assign(const std::map<std::string, double>& values) override;

 private:
  /// Updates adam_per_lr_, unless lr is 0.
  void remember_ratio_();
  std::optional<double> adam_per_lr_;
};

/// The momentum of a matrix, or Adam's moments, in coordinates.
class DDCMuonParamState : public LiftedParamState {
 public:
  std::unique_ptr<torch::optim::OptimizerParamState> clone() const override;
  std::vector<std::pair<std::string, at::Tensor*>> tensors() override;
  void turn(const BlockMap& map, const at::Tensor& basis) override;

  at::Tensor momentum_buffer;
  rules::AdamMoments moments;
};

/// Muon that respects gauges, rescale gauges among them: the polar factor is taken of the momentum in
/// coordinates. It is taken per head of queries, keys, values and of the output projection (of every
/// leg that names its `head_size`), of whole matrices elsewhere, of each matrix of a stack [count,
/// rows, cols], and of [out, rest] for convolutions. Vectors, and what is named in `adam`
/// (embeddings and the unembedding usually), are stepped by DDCAdam with options of their own.
///
///     ddc::DDCMuon optimizer(params, gauges, ddc::DDCMuonOptions(0.02).adam_lr(1e-3),
///                            {"embedding.weight", "unembedding.weight"});
class DDCMuon : public LiftedOptimizer {
 public:
  explicit DDCMuon(const Parameters& params, std::vector<Gauge> gauges = {},
                   DDCMuonOptions defaults = {}, const std::vector<std::string>& adam = {});
  /// Several groups, each with its own options (of type DDCMuonOptions) or none.
  explicit DDCMuon(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                   const Parameters& names = {}, std::vector<Gauge> gauges = {},
                   DDCMuonOptions defaults = {});

 protected:
  std::string name() const override { return "DDCMuon"; }
  std::unique_ptr<LiftedParamState> make_state() const override;
  at::Tensor rule(const at::Tensor& gradient, const TensorView& view, LiftedParamState& state,
                  const LiftedOptions& options) const override;
  bool follows_frames() const override { return true; }
};

}  // namespace ddc
