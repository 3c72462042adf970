#include "ddc/optim/lifted.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <typeinfo>
#include <unordered_map>
#include <utility>

namespace ddc {

using torch::optim::OptimizerParamGroup;

namespace {

/// Whether writing to one tensor changes the other. (Of views with gaps: if they start together.)
bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_same(b)) return true;
  if (a.numel() == 0 || b.numel() == 0) return false;
  const auto* a_begin = static_cast<const char*>(a.const_data_ptr());
  const auto* b_begin = static_cast<const char*>(b.const_data_ptr());
  if (a_begin == b_begin) return true;
  return a.is_non_overlapping_and_dense() && b.is_non_overlapping_and_dense() &&
         a_begin < b_begin + b.nbytes() && b_begin < a_begin + a.nbytes();
}

/// Without a tensor of the gradient's size. The extremes of what has a NaN are NaN.
bool is_finite(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return true;
  const auto [least, most] = at::aminmax(tensor);
  return std::isfinite(least.item<double>()) && std::isfinite(most.item<double>());
}

}  // namespace

LiftedOptimizer::LiftedOptimizer(const std::vector<OptimizerParamGroup>& groups,
                                 const Parameters& names, std::vector<Gauge> gauges,
                                 std::unique_ptr<LiftedOptions> defaults)
    : Optimizer(std::vector<OptimizerParamGroup>{}, std::move(defaults)),
      gauges_(std::move(gauges)) {
  dynamic_cast<const LiftedOptions&>(*defaults_).validate();
  TORCH_CHECK(!groups.empty(), "the optimizer got no param groups");
  std::vector<GroupedParameter> parameters;
  for (const auto& group : groups) accept_group_(group, names, parameters);
  frame_ = Frame(parameters, gauges_);
}

void LiftedOptimizer::accept_group_(const OptimizerParamGroup& group, const Parameters& names,
                                    std::vector<GroupedParameter>& parameters) {
  const size_t index = param_groups_.size();
  TORCH_CHECK(!group.params().empty(), "param group ", index, " is empty");
  std::unordered_map<const void*, std::string> name_of;
  for (const auto& [name, tensor] : names) name_of[tensor.unsafeGetTensorImpl()] = name;
  for (size_t i = 0; i < group.params().size(); ++i) {
    const auto& tensor = group.params()[i];
    std::string name = "group" + std::to_string(index) + ".param" + std::to_string(i);
    TORCH_CHECK(tensor.defined(), "parameter '", name, "' is an undefined tensor");
    const auto named = name_of.find(tensor.unsafeGetTensorImpl());
    if (named != name_of.end()) name = named->second;
    TORCH_CHECK(at::isFloatingType(tensor.scalar_type()), "parameter '", name,
                "' must be of a floating-point type, is ", tensor.scalar_type());
    TORCH_CHECK(tensor.is_leaf(), "parameter '", name,
                "' is not a leaf: it has a gradient function");
    for (const auto& other : parameters) {
      TORCH_CHECK(!share_memory(tensor, other.parameter.tensor), "parameter '", name, "' of group ",
                  index, " is already there as '", other.parameter.name, "' in group ",
                  other.param_group, "; a parameter may be in one group only, and once");
    }
    parameters.push_back({{name, tensor}, index});
  }

  const auto& defaults = dynamic_cast<const LiftedOptions&>(*defaults_);
  auto options = defaults_->clone();
  if (group.has_options()) {
    const auto& given = group.options();
    TORCH_CHECK(typeid(given) == typeid(defaults), "param group ", index,
                " has options of another optimizer's type");
    options = group.options().clone();
    dynamic_cast<LiftedOptions&>(*options).inherit(defaults);
    dynamic_cast<LiftedOptions&>(*options).validate();
  }
  param_groups_.emplace_back(group.params(), std::move(options));
}

void LiftedOptimizer::add_param_group(const OptimizerParamGroup& group) {
  std::vector<GroupedParameter> parameters;
  for (const auto& tensor : frame_.plan().tensors) {
    parameters.push_back({{tensor.name, tensor.tensor}, tensor.param_group});
  }
  const size_t present = parameters.size();
  accept_group_(group, {}, parameters);
  for (size_t p = present; p < parameters.size(); ++p) frame_.add(parameters[p]);
}

const LiftedOptions& LiftedOptimizer::options_of(size_t group) const {
  return dynamic_cast<const LiftedOptions&>(param_groups_[group].options());
}

LiftedParamState& LiftedOptimizer::state_of(const at::Tensor& tensor) {
  auto& slot = state_[tensor.unsafeGetTensorImpl()];
  if (slot == nullptr) slot = make_state();
  return static_cast<LiftedParamState&>(*slot);
}

void LiftedParamState::turn(const BlockMap& /*map*/, const at::Tensor& /*basis*/) {
  TORCH_INTERNAL_ASSERT(false, "this state does not know how to turn");
}

TensorView LiftedOptimizer::view_of(size_t t) const {
  const auto& plan = frame_.plan();
  TensorView view{plan.tensors[t].name, {}, plan.tensors[t].cut};
  for (const auto& use : plan.tensors[t].blocks) {
    const auto& gauge = plan.gauges[use.gauge];
    HeadView head{*gauge.legs[use.leg].blocks, gauge.gauge, {}};
    if (gauge.gauge.second_moment == SecondMoment::body_frame_topk) {
      const auto& values = frame_.gauge_states()[use.gauge].eigenvalues;
      head.live = values >= values.amax(-1, /*keepdim=*/true) * gauge.gauge.tau;
    }
    view.heads.push_back(std::move(head));
  }
  return view;
}

std::unique_ptr<LiftedParamState> LiftedOptimizer::blank_state(size_t t) const {
  const auto& tensor = frame_.plan().tensors[t];
  auto state = make_state();
  state->step = 1;
  rule(at::zeros_like(tensor.tensor.detach(), tensor.tensor.options().dtype(tensor.compute_type())),
       view_of(t), *state, options_of(tensor.param_group));
  return state;
}

std::vector<StepSettings> LiftedOptimizer::check_settings() const {
  size_t parameters = 0;
  std::vector<StepSettings> settings;
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    parameters += param_groups_[g].params().size();
    options_of(g).validate();
  }
  TORCH_CHECK(parameters == frame_.plan().tensors.size(), "the param groups hold ", parameters,
              " parameters, the optimizer was made for ", frame_.plan().tensors.size(),
              "; add parameters with ", name(), "::add_param_group");
  for (const auto& tensor : frame_.plan().tensors) {
    settings.push_back(options_of(tensor.param_group).step_settings(tensor.tensor));
  }
  return settings;
}

std::vector<bool> LiftedOptimizer::check_gradients() const {
  std::vector<bool> has_gradient;
  for (const auto& tensor : frame_.plan().tensors) {
    const auto& gradient = tensor.tensor.grad();
    has_gradient.push_back(gradient.defined());
    if (!gradient.defined()) continue;
    TORCH_CHECK(gradient.layout() == at::kStrided, "the gradient of '", tensor.name,
                "' is sparse; only dense gradients are supported");
    TORCH_CHECK(gradient.sizes() == tensor.tensor.sizes(), "the gradient of '", tensor.name,
                "' has shape ", gradient.sizes(), ", the parameter ", tensor.tensor.sizes());
    TORCH_CHECK(is_finite(gradient), "the gradient of '", tensor.name,
                "' has NaN or Inf entries; the step was not made and nothing was changed");
  }
  return has_gradient;
}

at::Tensor LiftedOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure != nullptr) {
    const at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  const auto settings = check_settings();
  const auto has_gradient = check_gradients();
  const auto& tensors = frame_.plan().tensors;
  for (const auto& component : frame_.plan().components) {
    auto chart = frame_.open(component, has_gradient, settings);
    frame_.project_gradients_(chart);
    std::vector<at::Tensor> steps(tensors.size());
    for (const size_t t : component.tensors) {
      const auto gradient = std::exchange(chart.g[t], {});
      if (!has_gradient[t] || chart.passive[t]) continue;
      auto& state = state_of(tensors[t].tensor);
      ++state.step;
      steps[t] = rule(gradient, view_of(t), state, options_of(tensors[t].param_group));
    }
    frame_.project_steps_(chart, steps);
    frame_.advance_(chart, std::move(steps), settings);
    frame_.rebalance_(chart, settings);
    const auto turns = frame_.follow_(chart, follows_frames());
    frame_.lift_(chart);
    frame_.turn_(turns);
    for (const auto& [gauge, basis] : turns) {
      for (const auto& leg : frame_.plan().gauges[gauge].legs) {
        const auto found = state_.find(tensors[leg.tensor].tensor.unsafeGetTensorImpl());
        if (found == state_.end()) continue;
        static_cast<LiftedParamState&>(*found->second).turn(*leg.blocks, basis);
      }
    }
  }
  return loss;
}

Report LiftedOptimizer::report() const {
  const auto table = parameter_table();
  const auto& plan = frame_.plan();
  Report report;
  report.tensors = static_cast<int64_t>(plan.tensors.size());
  for (const auto& tensor : plan.tensors) {
    report.gauged_tensors += tensor.has_gauge();
  }
  for (size_t k = 0; k < plan.gauges.size(); ++k) {
    const auto& gauge = plan.gauges[k].gauge;
    GaugeReport line;
    line.name = gauge.name;
    line.kind = gauge.kind;
    line.group = group_name(gauge, table);
    line.coordinates = plan.gauges[k].is_scale()   ? to_string(plan.gauges[k].coordinates)
                       : plan.gauges[k].is_shift() ? "centred"
                                                   : to_string(gauge.second_moment);
    line.frames_recomputed = frame_.gauge_states()[k].recomputed;
    for (const auto& leg : gauge.legs) line.tensors.push_back(leg.tensor);
    line.channels = gauge.channels;
    line.dimension = dimension(gauge, table);
    line.degenerate_channels = frame_.degenerate_channels(k);
    line.imbalance = frame_.gauge_states()[k].imbalance;
    report.gauges.push_back(std::move(line));
  }
  return report;
}

at::Tensor LiftedOptimizer::gauge_coordinate(const std::string& gauge) const {
  for (size_t k = 0; k < gauges_.size(); ++k) {
    if (gauges_[k].name == gauge) return frame_.gauge_coordinate(k);
  }
  TORCH_CHECK(false, "no gauge is called '", gauge, "'");
}

Parameters LiftedOptimizer::parameter_table() const {
  Parameters table;
  for (const auto& tensor : frame_.plan().tensors) table.add(tensor.name, tensor.tensor);
  return table;
}

}  // namespace ddc
