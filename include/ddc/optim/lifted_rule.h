#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ddc/optim/lifted.h"

// A base rule of one's own, lifted. A rule is a struct of static members:
//
//     struct Sign {
//       static constexpr const char* name = "Sign";
//       struct Settings { double lr = 1e-3; double momentum = 0.9; };
//       struct State { at::Tensor average; };
//       template <class Visit> static void options(Settings& s, Visit&& visit) {
//         visit("lr", s.lr);
//         visit("momentum", s.momentum);
//       }
//       template <class Visit> static void tensors(State& s, Visit&& visit) {
//         visit("average", s.average);
//       }
//       static at::Tensor step(const at::Tensor& gradient, int64_t step, const ddc::TensorView& view,
//                              State& state, const Settings& settings);
//     };
//     ddc::Lifted<Sign> optimizer(params, gauges, {.settings = {.lr = 1e-2}, .weight_decay = 0.1});
//
// and inherits every gauge, decay, param groups, checks, checkpoints and reports. examples/own_base.cpp
// is a complete one. Optional members: `validate(const Settings&)`, and `turn(State&, const BlockMap&,
// const at::Tensor& basis)`, without which body frames do not follow the weights.

namespace ddc {

/// The settings of a rule, and what every lifted optimizer has beside them.
template <class Rule>
struct RuleOptions {
  typename Rule::Settings settings = {};
  double weight_decay = 0;
  bool maximize = false;
};

/// RuleOptions as LibTorch wants them: for param groups. A group with options of its own keeps all of
/// them.
template <class Rule>
class LiftedRuleOptions : public LiftedOptions {
 public:
  LiftedRuleOptions(RuleOptions<Rule> options = {})  // NOLINT: implicit, as torch::optim's are
      : options_(std::move(options)) {}

  const RuleOptions<Rule>& get() const { return options_; }

  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<LiftedRuleOptions>(*this);
  }
  double get_lr() const override { return options_.settings.lr; }
  void set_lr(const double lr) override { options_.settings.lr = lr; }

  StepSettings step_settings(const at::Tensor& /*tensor*/) const override {
    StepSettings settings;
    settings.lr = options_.settings.lr;
    settings.weight_decay = options_.weight_decay;
    settings.maximize = options_.maximize;
    return settings;
  }

  void inherit(const LiftedOptions& /*defaults*/) override {}

  void validate() const override {
    for (const auto& [option, value] : values()) {
      TORCH_CHECK_VALUE(std::isfinite(value), "option ", option, " must be finite, got ", value);
    }
    TORCH_CHECK_VALUE(get_lr() >= 0, "option lr must be finite and >= 0, got ", get_lr());
    TORCH_CHECK_VALUE(options_.weight_decay >= 0,
                      "option weight_decay must be finite and >= 0, got ", options_.weight_decay);
    if constexpr (requires { Rule::validate(options_.settings); }) {
      Rule::validate(options_.settings);
    }
  }

  std::map<std::string, double> values() const override {
    std::map<std::string, double> result;
    auto copy = options_;
    visit(copy,
          [&](const char* option, auto& value) { result[option] = static_cast<double>(value); });
    return result;
  }

  void assign(const std::map<std::string, double>& values) override {
    visit(options_, [&](const char* option, auto& value) {
      const auto found = values.find(option);
      TORCH_CHECK(found != values.end(), "option ", option, " is missing");
      value = static_cast<std::remove_reference_t<decltype(value)>>(found->second);
    });
    validate();
  }

 private:
  template <class Visit>
  static void visit(RuleOptions<Rule>& options, Visit&& visit) {
    Rule::options(options.settings, visit);
    visit("weight_decay", options.weight_decay);
    visit("maximize", options.maximize);
  }

  RuleOptions<Rule> options_;
};

template <class Rule>
class LiftedRuleState : public LiftedParamState {
 public:
  std::unique_ptr<torch::optim::OptimizerParamState> clone() const override {
    return std::make_unique<LiftedRuleState>(*this);
  }
  std::vector<std::pair<std::string, at::Tensor*>> tensors() override {
    std::vector<std::pair<std::string, at::Tensor*>> result;
    Rule::tensors(
        state, [&](const char* field, at::Tensor& tensor) { result.emplace_back(field, &tensor); });
    return result;
  }
  void turn(const BlockMap& map, const at::Tensor& basis) override {
    if constexpr (requires { Rule::turn(state, map, basis); }) {
      Rule::turn(state, map, basis);
    } else {
      LiftedParamState::turn(map, basis);
    }
  }

  typename Rule::State state;
};

template <class Rule>
class Lifted : public LiftedOptimizer {
 public:
  using Options = RuleOptions<Rule>;

  explicit Lifted(const Parameters& params, std::vector<Gauge> gauges = {}, Options defaults = {})
      : Lifted(std::vector<torch::optim::OptimizerParamGroup>{params.tensors()}, params,
               std::move(gauges), std::move(defaults)) {}
  /// Groups may have options of type LiftedRuleOptions<Rule>; the others get `defaults`.
  explicit Lifted(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                  const Parameters& names = {}, std::vector<Gauge> gauges = {},
                  Options defaults = {})
      : LiftedOptimizer(groups, names, std::move(gauges),
                        std::make_unique<LiftedRuleOptions<Rule>>(std::move(defaults))) {}

 protected:
  std::string name() const override { return Rule::name; }
  std::unique_ptr<LiftedParamState> make_state() const override {
    return std::make_unique<LiftedRuleState<Rule>>();
  }
  at::Tensor rule(const at::Tensor& gradient, const TensorView& view, LiftedParamState& state,
                  const LiftedOptions& options) const override {
    return Rule::step(gradient, state.step, view, static_cast<LiftedRuleState<Rule>&>(state).state,
                      static_cast<const LiftedRuleOptions<Rule>&>(options).get().settings);
  }
  bool follows_frames() const override {
    return requires(typename Rule::State & state, const BlockMap& map, const at::Tensor& basis) {
      Rule::turn(state, map, basis);
    };
  }
};

}  // namespace ddc
