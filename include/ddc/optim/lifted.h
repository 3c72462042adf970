#pragma once

#include <torch/optim/optimizer.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddc/frame/frame.h"
#include "ddc/gauge/gauge.h"
#include "ddc/optim/options.h"
#include "ddc/optim/report.h"
#include "ddc/optim/view.h"
#include "ddc/parameters.h"

namespace ddc {

/// What a base rule remembers of one tensor, in coordinates.
class LiftedParamState : public torch::optim::OptimizerParamState {
 public:
  int64_t step = 0;
  /// The tensors of the state by name. Undefined before the first step.
  virtual std::vector<std::pair<std::string, at::Tensor*>> tensors() = 0;
  /// Coordinates along the axis of `map` are turned by the transposed of `basis`, per block, and so is
  /// what is remembered in them. Only called on optimizers that say `follows_frames`.
  virtual void turn(const BlockMap& map, const at::Tensor& basis);
};

/// The state of an optimizer as a value: name-keyed tensors and one line of JSON with options and
/// gauges. It shares no memory with the optimizer.
struct OptimizerState {
  std::map<std::string, at::Tensor> tensors;
  std::string description;
};

/// One piece of the state where the optimizer has it: a tensor (undefined if the rule does not use it) or
/// a count.
struct StateSlot {
  /// Whose it is, by its place in `parameter_table()`. What a gauge remembers is its first leg's.
  size_t parameter;
  /// "param.NAME.", or "gauge.NAME." and the like.
  std::string scope;
  std::string field;
  at::Tensor* tensor = nullptr;
  int64_t* count = nullptr;
};

/// A base rule lifted to respect gauges. This class is the step loop, the only one:
///
///     for every component:
///         open -> project -> base rule -> project -> advance -> rebalance -> lift
///
/// A base derives from it and supplies its options, its state and `rule`, a function of (gradient,
/// state, options) that returns the displacement and never touches a parameter. With no gauges the
/// result is the base optimizer itself.
class LiftedOptimizer : public torch::optim::Optimizer {
 public:
  /// Calls the closure (if any) and makes one step. Parameters without a gradient are skipped.
  /// Throws before anything is changed if an option is unusable or a gradient is NaN, Inf, sparse
  /// or of the wrong shape.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// Adds parameters on which no gauge acts. (Hides the base class's function, which loses the
  /// options of types it does not know.)
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  Report report() const;
  const std::vector<Gauge>& gauges() const { return gauges_; }
  /// The gauge coordinate per channel as measured on the weights now; see gauge.h. NaN for channels
  /// in a degenerate stratum.
  at::Tensor gauge_coordinate(const std::string& gauge) const;
  const Frame& frame() const { return frame_; }
  /// Names and tensors of all param groups.
  Parameters parameter_table() const;

  OptimizerState state_dict() const;
  /// All or nothing: a state that does not fit is refused, naming what does not, and leaves the
  /// optimizer as it was.
  void load_state_dict(const OptimizerState& state);

  /// For those who keep options and state elsewhere, as the Python package does in torch.optim's
  /// dictionaries. The pointers are good until the next step or load.
  std::vector<StateSlot> state_slots();
  /// `load_state_dict` of tensors alone: options and gauges are taken to be the optimizer's.
  void load_tensors(const std::map<std::string, at::Tensor>& tensors);
  /// As if constructed now: nothing remembered, and gauges held where the weights are.
  void reset_state();
  void set_options(size_t group, const std::map<std::string, double>& values);

  /// LibTorch's archives, keyed by name.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  /// `names` gives tensors of the groups their names; others are called by their position.
  LiftedOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                  const Parameters& names, std::vector<Gauge> gauges,
                  std::unique_ptr<LiftedOptions> defaults);

  /// The name of the optimizer in checkpoints.
  virtual std::string name() const = 0;
  virtual std::unique_ptr<LiftedParamState> make_state() const = 0;
  /// The displacement of coordinates with gradient `gradient`. It may depend on signs and order of
  /// coordinates within a head, and on their values in any way, since the group cannot change them.
  virtual at::Tensor rule(const at::Tensor& gradient, const TensorView& view,
                          LiftedParamState& state, const LiftedOptions& options) const = 0;
  /// Whether the state can be turned, so that body frames may follow the weights. Otherwise frames are
  /// kept as they were found.
  virtual bool follows_frames() const { return false; }

 private:
  /// Checks a group, adds it and appends its parameters to those already `present`.
  void accept_group_(const torch::optim::OptimizerParamGroup& group, const Parameters& names,
                     std::vector<GroupedParameter>& present);
  const LiftedOptions& options_of(size_t group) const;
  LiftedParamState& state_of(const at::Tensor& tensor);
  TensorView view_of(size_t tensor) const;
  /// A state as the first step would allocate it.
  std::unique_ptr<LiftedParamState> blank_state(size_t tensor) const;
  std::vector<StepSettings> check_settings() const;
  std::vector<bool> check_gradients() const;
  std::string description() const;

  std::vector<Gauge> gauges_;
  Frame frame_;
};

}  // namespace ddc
