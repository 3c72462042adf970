#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

#include "ddc/optim/rules/muon.h"

namespace ddc {

/// The options of torch.optim.Muon with its defaults; `scale` is its adjust_lr_fn.
struct MuonOptions : public torch::optim::OptimizerOptions {
  MuonOptions(double lr = 1e-3) : lr_(lr) {}  // NOLINT: implicit, as torch::optim's options are

  TORCH_ARG(double, lr) = 1e-3;
  TORCH_ARG(double, weight_decay) = 0.1;
  TORCH_ARG(double, momentum) = 0.95;
  TORCH_ARG(bool, nesterov) = true;
  TORCH_ARG(PolarMethod, method) = PolarMethod::newton_schulz;
  TORCH_ARG(UpdateScale, scale) = UpdateScale::original;

 public:
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override;
  double get_lr() const override { return lr(); }
  void set_lr(const double lr) override { this->lr(lr); }
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  /// Throws, naming the option, its value and the rule, unless all values are usable.
  void validate() const;
};

struct MuonParamState : public torch::optim::OptimizerParamState {
  TORCH_ARG(at::Tensor, momentum_buffer);

 public:
  std::unique_ptr<torch::optim::OptimizerParamState> clone() const override;
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// Muon as everyone knows it: torch.optim.Muon, and what it leaves out, stacks of matrices. It
/// knows nothing of gauges. Parameters are matrices; with three axes a stack of matrices [count,
/// rows, cols], each with a step of its own; with more (convolutions) matrices whose columns are
/// all axes but the first.
class Muon : public torch::optim::Optimizer {
 public:
  /// A group that has options (of type MuonOptions) keeps all of them; others get `defaults`.
  explicit Muon(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                const MuonOptions& defaults = {});
  explicit Muon(std::vector<at::Tensor> params, const MuonOptions& defaults = {});

  /// Hides the base class's function, which loses the options of types it does not know.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  /// Parameters without a gradient are skipped. Throws before anything is changed if an option is
  /// unusable or a gradient is sparse, NaN or Inf.
  at::Tensor step(LossClosure closure = nullptr) override;

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

}  // namespace ddc
