#pragma once

#include <torch/optim/optimizer.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddc/gauge/gauge.h"
#include "ddc/optim/rule.h"
#include "ddc/options.h"
#include "ddc/parameters.h"
#include "ddc/treatment.h"

namespace ddc {

class CoordinateSystem;
class Placement;
struct GroupedParameter;

/// Count that is part of an optimizer's state: one int64 on the CPU.
class Counter {
 public:
  Counter();
  int64_t get() const;
  Counter& operator++() { return *this += 1; }
  Counter& operator+=(int64_t by);
  void reset();
  at::Tensor& tensor() { return value_; }
  const at::Tensor& tensor() const { return value_; }

 private:
  at::Tensor value_;
};

/// Options of a param group, as LibTorch wants them.
class LiftedOptions : public torch::optim::OptimizerOptions {
 public:
  /// Whether a step looks for NaN and Inf in gradients before it changes anything.
  bool check_gradients = true;

  virtual OptionList list() = 0;
  /// Throws, naming the option, its value and the rule, unless all values are usable.
  virtual void check() const = 0;
  virtual StepSettings step_settings() const = 0;
  OptionValues values() const;

 protected:
  /// Options that every rule has.
  OptionList common();
};

/// State that a base rule keeps of one tensor, in coordinates.
class LiftedParamState : public torch::optim::OptimizerParamState {
 public:
  Counter step;
  virtual StateTensors tensors() = 0;
  /// Only called on optimizers whose rule can change basis.
  virtual void change_basis(const BasisChange& change) = 0;
};

/// The state of an optimizer as a value: name-keyed tensors and one line of JSON with options, gauges and
/// treatments. It shares no memory with the optimizer.
struct OptimizerState {
  std::map<std::string, at::Tensor> tensors;
  std::string description;
};

/// One tensor of the state where the optimizer has it.
struct StateSlot {
  enum class Owner { parameter, gauge, radius };
  Owner owner;
  /// Place in `parameter_table()` of the tensor that it is stored with. What a gauge remembers is stored
  /// with its first leg.
  size_t parameter;
  /// Name of the parameter or of the gauge.
  std::string name;
  std::string field;
  at::Tensor* tensor;

  /// The key in a dictionary of the parameter's own state, and in that of the whole optimizer.
  std::string key_in_parameter() const;
  std::string key() const;
};

/// Gauge that an optimizer has bound, and what the last step did to it.
struct GaugeReport {
  std::string name;
  std::string kind;
  std::string group;
  /// "folded", "balanced", "standard", "polar"; "centred" for shifts; the second moment's mode for blocks.
  std::string coordinates;
  std::vector<std::string> tensors;
  int64_t channels = 0;
  int64_t dimension = 0;
  /// Channels in a degenerate stratum (a side is zero): trained, but not held yet.
  int64_t degenerate_channels = 0;
  /// In place, what the last step had to correct: the largest distance from the section, or the largest
  /// entry of a shift or of the generator of a rotation. At the canonical place, what weights miss the
  /// section by now, as since the last move back; 0 for rotations and what is not held.
  double imbalance = 0;
  /// How many frames of blocks have been computed again since the start.
  int64_t frames_recomputed = 0;
};

/// Cost of a step. Bytes and operations are those of the plan: what has to be moved if each tensor is read
/// and written once, and the arithmetic of matrices (of polar factors, and of gauges that mix channels; what is
/// done every so many steps counts in part).
struct StepCost {
  double bytes = 0;
  double flops = 0;
  /// Those among the operations that are made in float64; the others are made in float32, or in the weights' type.
  double double_flops = 0;
  /// The last steps, up to 50: their number, seconds each on average, and their share of the time from the
  /// end of one step to the end of the next, both summed up. 0 where there were none.
  int64_t steps = 0;
  double seconds = 0;
  double share = 0;
};

struct Report {
  std::vector<GaugeReport> gauges;
  StepCost cost;
  int64_t tensors = 0;
  int64_t gauged_tensors = 0;
  /// Where the weights are trained; and why in place, if nobody said so.
  Place place = Place::in_place;
  std::string why_in_place;

  int64_t dimension() const;
  int64_t degenerate_channels() const;
  double largest_imbalance() const;
};

/// A table, one line per gauge.
std::ostream& operator<<(std::ostream& out, const Report& report);

/// A base rule lifted to respect gauges. This class is the step loop, the only one:
///
///     for every component:
///         open -> project -> base rule -> project -> advance -> rebalance -> lift
///
/// A base rule is a function of (gradient, state, options) that returns the displacement and never touches
/// a parameter; Lifted<Rule> supplies it. With no gauges the result is the base optimizer itself.
class LiftedOptimizer : public torch::optim::Optimizer {
 public:
  ~LiftedOptimizer() override;

  /// Calls the closure (if any) and makes one step. Parameters without a gradient are skipped.
  /// Throws before anything is changed if an option is unusable or a gradient is NaN, Inf, sparse
  /// or of the wrong shape.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// Adds parameters on which no gauge acts. (Hides the base class's function, which loses the
  /// options of types it does not know.)
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  /// Whether the weights are trained at their canonical place (Treatment::placement).
  bool is_placed() const { return placement_ != nullptr; }
  /// Moves weights from their canonical place to where they were found, to be saved or compared, and back.
  /// Nothing happens where they are in place. Steps are made at the canonical place only.
  void to_original_();
  void to_canonical_();
  /// Makes moves along orbits that the next step would make on its way in. The function stays; weights are
  /// then exactly where the report says they are held.
  void settle_();

  Report report() const;
  /// The gauges that are bound.
  const std::vector<Gauge>& gauges() const { return gauges_; }
  /// The treatment of a gauge, with defaults resolved.
  Treatment treatment(const std::string& gauge) const;
  /// The gauge coordinate per channel as measured on the weights now; see gauge.h. NaN for channels
  /// in a degenerate stratum.
  at::Tensor gauge_coordinate(const std::string& gauge) const;
  /// Coordinates of all gauges that are bound, in their order.
  std::vector<at::Tensor> gauge_coordinates() const;
  /// Names and tensors of all param groups.
  Parameters parameter_table() const;

  /// JSON of the gauges that are bound and of their treatments: what a state must have been made with to
  /// be loaded.
  std::string symmetries() const;
  OptimizerState state_dict() const;
  /// All or nothing: a state that does not fit is refused, naming what does not, and leaves the
  /// optimizer as it was. Runs no rule.
  void load_state_dict(const OptimizerState& state);

  /// For those who keep options and state elsewhere, as the Python package does in torch.optim's
  /// dictionaries. The tensors are updated in place; the pointers are good until the next load.
  std::vector<StateSlot> state_slots();
  /// Manners in which `load_tensors` takes tensors that fit.
  enum class Load {
    copy,    ///< copies them; weights that are placed go to the place that the state knows
    resume,  ///< the same, but makes the tensors the optimizer's own
    adopt,   ///< makes the tensors the optimizer's own; weights are where the state has left them
    check,   ///< nothing
  };
  /// `load_state_dict` of tensors by `StateSlot::key`: options and gauges are taken to be the optimizer's.
  void load_tensors(const std::map<std::string, at::Tensor>& tensors, Load mode = Load::copy);
  /// As if constructed now: nothing remembered, and gauges held where the weights are.
  void reset_state();
  void set_options(size_t group, const OptionValues& values);

  /// LibTorch's archives, keyed by name.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// The coordinate system; for tests and meters of this library.
  const CoordinateSystem& coordinate_system() const;

 protected:
  /// `names` gives tensors of the groups their names; others are called by their position.
  LiftedOptimizer(std::unique_ptr<LiftedOptions> defaults);
  /// To be called once, by the constructor of the class that has the rule.
  void construct(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                 const Parameters& names, std::vector<Gauge> gauges, Treatments treatments);

  /// Abilities of a base rule beside making steps.
  struct Abilities {
    /// Body frames may follow the weights, because the state can change basis.
    bool change_basis = false;
    /// It keeps the second moment that a treatment asks for.
    bool second_moments = false;
    /// Its momentum can be projected before it makes a step of it.
    bool momentum = false;
    /// It steps tensors as they are stored.
    bool in_place = false;
    /// It may throw in the middle of a step, whatever the numbers.
    bool throws = false;
  };
  /// The name of the optimizer in checkpoints.
  virtual std::string name() const = 0;
  virtual Abilities abilities() const = 0;
  /// Throws if the rule cannot step the tensor.
  virtual void check(const TensorView& view, const LiftedOptions& options) const = 0;
  virtual std::unique_ptr<LiftedParamState> make_state(const TensorView& view,
                                                       const LiftedOptions& options) const = 0;
  /// The displacement of coordinates with gradient `gradient`. It may depend on signs and order of
  /// coordinates within a head, and on their values in any way, since the group cannot change them.
  virtual at::Tensor rule(const at::Tensor& gradient, const TensorView& view,
                          LiftedParamState& state, const LiftedOptions& options) const = 0;
  /// Says by which kernel a tensor is stepped as it is stored, if it can be.
  virtual bool in_place(LiftedParamState& state, const LiftedOptions& options,
                        kernels::PassEntry& entry) const;
  /// Floating-point operations of the rule's matrices in a step; 0 if it has none, or does not say.
  virtual double flops(const TensorView& view, const LiftedOptions& options) const;
  /// Whether these are made in float64, whatever the weights are.
  virtual bool computes_in_double(const LiftedOptions& options) const;
  /// The same in two parts; the first is undefined where there is no momentum.
  virtual at::Tensor momentum(const at::Tensor& gradient, LiftedParamState& state,
                              const LiftedOptions& options) const = 0;
  virtual at::Tensor displacement(const at::Tensor& momentum, const TensorView& view,
                                  const LiftedOptions& options) const = 0;

 private:
  /// Checks a group, adds it and appends its parameters to those already `present`.
  void accept_group_(const torch::optim::OptimizerParamGroup& group, const Parameters& names,
                     std::vector<GroupedParameter>& present);
  /// Refuses what the rule cannot honour.
  void check_treatments_() const;
  /// Resolves where weights are trained: as said, else at their canonical place if they have one.
  void choose_place_(const Parameters& params);
  /// Makes the coordinate system of the parameters, or places them.
  void bind_(const std::vector<GroupedParameter>& parameters);
  /// Writes weights that were placed as they were found.
  void put_back_(const std::vector<GroupedParameter>& parameters) const;
  std::vector<GroupedParameter> grouped_parameters() const;
  /// Steps tensors that are as stored, as the base optimizer does: in place on none of which a gauge acts, or
  /// all at their canonical place.
  void step_plain_(const std::vector<size_t>& tensors, const std::vector<StepSettings>& settings);
  /// Versions of the tensors, which tell whether anything has changed the weights since the optimizer saw them last.
  std::vector<int64_t> versions() const;
  /// Before the first step after a load: the weights must be at their canonical place, or are moved there.
  void check_place_();
  const LiftedOptions& options_of(size_t group) const;
  /// The state of a tensor, made if there is none.
  LiftedParamState& state_of(size_t tensor);
  void make_states_();
  TensorView view_of(size_t tensor) const;
  /// Steps a tensor by the rule, where weights are as stored.
  void step_apart_(size_t tensor, const at::Tensor& gradient, const StepSettings& settings);
  /// Cost of a step by the plan.
  StepCost planned_cost() const;
  std::vector<StepSettings> check_settings() const;
  /// Which tensors have a gradient. Notes whether one is huge.
  std::vector<bool> check_gradients();
  void make_step_(const std::vector<bool>& has_gradient, const std::vector<StepSettings>& settings);
  class Snapshot;
  /// Throws if the step that was made has left something behind that is not finite.
  void check_step(const std::vector<bool>& has_gradient);
  /// The end of a message about a step that was taken back.
  std::string not_made() const;
  /// Whether weights or state are so large that a step may overflow.
  bool is_huge();
  std::string description() const;

  std::vector<Gauge> gauges_;
  /// Gauges that are not bound, and say how tensors are cut into heads.
  std::vector<Gauge> unbound_;
  Treatments treatments_;
  Place place_ = Place::in_place;
  /// Why, if nobody said so; empty otherwise.
  std::string why_in_place_;
  /// All parameters; with the gauges in it if they are bound in place.
  std::unique_ptr<CoordinateSystem> system_;
  std::unique_ptr<Placement> placement_;
  /// Weights as they were before they were placed, until the first step: a state of these very weights
  /// may be loaded, and gone on with to the last bit.
  Parameters found_;
  /// Versions of the weights as the optimizer left them.
  std::vector<int64_t> versions_;
  /// Times of the last steps.
  struct Clock {
    using Time = std::chrono::steady_clock::time_point;
    std::optional<Time> last_end;
    /// Seconds of a step, and from the end of the one before to its own.
    std::deque<double> own;
    std::deque<double> whole;

    void note(Time start, Time end);
  };
  Clock clock_;
  /// A step may overflow, by weights, state or gradients: it is tried then, and taken back if it does.
  bool is_huge_ = false;
  /// State was loaded, and no step made since; with weights at their original place or not.
  bool is_loaded_ = false;
  bool loaded_original_ = false;
};

// Parts that a rule may have beside those that it must have; see ddc/optim/rule.h.

template <class Rule>
concept ChangesBasis = requires(typename Rule::State state, const BasisChange& change) {
  Rule::change_basis(state, change);
};
template <class Rule>
concept KeepsSecondMoments = requires {
  Rule::keeps_second_moments;
};
template <class Rule>
concept HasMomentum = requires(typename Rule::State state, const typename Rule::Options& options) {
  Rule::momentum(at::Tensor(), state, options);
};
template <class Rule>
concept StepsInPlace = requires(const typename Rule::State& state,
                                const typename Rule::Options& options, kernels::PassEntry& entry) {
  Rule::in_place(state, int64_t{1}, options, entry);
};
template <class Rule>
concept CountsFlops = requires(const typename Rule::Options& options, const TensorView& view) {
  Rule::flops(view, options);
};
template <class Rule>
concept SaysItsPrecision = requires(const typename Rule::Options& options) {
  Rule::computes_in_double(options);
};
template <class Rule>
concept ChecksTensors = requires(const typename Rule::Options& options, const TensorView& view) {
  Rule::check(options, view);
};
template <class Rule>
concept HasStepSettings = requires(const typename Rule::Options& options) {
  Rule::step_settings(options);
};

/// Options of a rule as LibTorch wants them. Those of a param group are complete: start from a copy of the
/// optimizer's to change a few.
template <class Rule>
class LiftedRuleOptions : public LiftedOptions {
 public:
  using Options = typename Rule::Options;

  LiftedRuleOptions(Options options = {}) : options_(std::move(options)) {}  // NOLINT: implicit

  const Options& get() const { return options_; }
  Options& get() { return options_; }

  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<LiftedRuleOptions>(*this);
  }
  double get_lr() const override { return options_.lr; }
  void set_lr(const double lr) override { options_.lr = lr; }

  OptionList list() override {
    auto list = options_.options();
    for (auto& option : common()) list.push_back(std::move(option));
    return list;
  }
  void check() const override { check_options(options_); }
  StepSettings step_settings() const override {
    if constexpr (HasStepSettings<Rule>) {
      return Rule::step_settings(options_);
    } else {
      StepSettings settings;
      settings.lr = options_.lr;
      settings.weight_decay = options_.weight_decay;
      settings.maximize = options_.maximize;
      return settings;
    }
  }

 private:
  Options options_;
};

template <class Rule>
class LiftedRuleState : public LiftedParamState {
 public:
  explicit LiftedRuleState(typename Rule::State given) : state(std::move(given)) {}

  std::unique_ptr<torch::optim::OptimizerParamState> clone() const override {
    return std::make_unique<LiftedRuleState>(*this);
  }
  StateTensors tensors() override { return state.tensors(); }
  void change_basis(const BasisChange& change) override {
    if constexpr (ChangesBasis<Rule>) Rule::change_basis(state, change);
  }

  typename Rule::State state;
};

/// The optimizer that a rule makes.
template <class Rule>
class Lifted : public LiftedOptimizer {
 public:
  using Options = typename Rule::Options;
  using State = typename Rule::State;

  /// One param group that holds all of `params`.
  explicit Lifted(const Parameters& params, std::vector<Gauge> gauges = {}, Options options = {},
                  Treatments treatments = {})
      : Lifted(std::vector<torch::optim::OptimizerParamGroup>{params.tensors()}, params,
               std::move(gauges), std::move(options), std::move(treatments)) {}
  /// Several groups, each with options of type LiftedRuleOptions<Rule> or those given here. `names` gives
  /// the tensors the names that gauges use.
  explicit Lifted(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                  const Parameters& names = {}, std::vector<Gauge> gauges = {},
                  Options options = {}, Treatments treatments = {})
      : LiftedOptimizer(std::make_unique<LiftedRuleOptions<Rule>>(std::move(options))) {
    construct(groups, names, std::move(gauges), std::move(treatments));
  }

 protected:
  std::string name() const override { return Rule::name; }

  Abilities abilities() const override {
    return {.change_basis = ChangesBasis<Rule>,
            .second_moments = KeepsSecondMoments<Rule>,
            .momentum = HasMomentum<Rule>,
            .in_place = StepsInPlace<Rule>};
  }

  void check(const TensorView& view, const LiftedOptions& options) const override {
    if constexpr (ChecksTensors<Rule>) Rule::check(of(options), view);
  }

  std::unique_ptr<LiftedParamState> make_state(const TensorView& view,
                                               const LiftedOptions& options) const override {
    return std::make_unique<LiftedRuleState<Rule>>(Rule::init(view, of(options)));
  }

  at::Tensor rule(const at::Tensor& gradient, const TensorView& view, LiftedParamState& state,
                  const LiftedOptions& options) const override {
    return Rule::step(gradient, state.step.get(), view, of(state), of(options));
  }

  bool in_place(LiftedParamState& state, const LiftedOptions& options,
                kernels::PassEntry& entry) const override {
    if constexpr (StepsInPlace<Rule>) {
      return Rule::in_place(of(state), state.step.get(), of(options), entry);
    } else {
      return false;
    }
  }

  double flops(const TensorView& view, const LiftedOptions& options) const override {
    if constexpr (CountsFlops<Rule>) {
      return Rule::flops(view, of(options));
    } else {
      return 0;
    }
  }

  bool computes_in_double(const LiftedOptions& options) const override {
    if constexpr (SaysItsPrecision<Rule>) {
      return Rule::computes_in_double(of(options));
    } else {
      return false;
    }
  }

  at::Tensor momentum(const at::Tensor& gradient, LiftedParamState& state,
                      const LiftedOptions& options) const override {
    if constexpr (HasMomentum<Rule>) {
      return Rule::momentum(gradient, of(state), of(options));
    } else {
      return {};
    }
  }

  at::Tensor displacement(const at::Tensor& momentum, const TensorView& view,
                          const LiftedOptions& options) const override {
    if constexpr (HasMomentum<Rule>) {
      return Rule::displacement(momentum, view, of(options));
    } else {
      return {};
    }
  }

 private:
  static const Options& of(const LiftedOptions& options) {
    return static_cast<const LiftedRuleOptions<Rule>&>(options).get();
  }
  static State& of(LiftedParamState& state) {
    return static_cast<LiftedRuleState<Rule>&>(state).state;
  }
};

}  // namespace ddc
