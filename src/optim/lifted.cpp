#include "ddc/optim/lifted.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include "frame/frame.h"

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

Counter::Counter() : value_(at::zeros({}, at::kLong)) {}

int64_t Counter::get() const { return value_.item<int64_t>(); }

Counter& Counter::operator+=(int64_t by) {
  value_.add_(by);
  return *this;
}

void Counter::reset() { value_.zero_(); }

OptionValues LiftedOptions::values() const {
  // The list is only read.
  return const_cast<LiftedOptions*>(this)->list().values();
}

LiftedOptimizer::LiftedOptimizer(std::unique_ptr<LiftedOptions> defaults)
    : Optimizer(std::vector<OptimizerParamGroup>{}, std::move(defaults)) {}

LiftedOptimizer::~LiftedOptimizer() = default;

void LiftedOptimizer::construct(const std::vector<OptimizerParamGroup>& groups,
                                const Parameters& names, std::vector<Gauge> gauges,
                                Treatments treatments) {
  dynamic_cast<const LiftedOptions&>(*defaults_).check();
  TORCH_CHECK(!groups.empty(), "the optimizer got no param groups");
  std::vector<GroupedParameter> parameters;
  for (const auto& group : groups) accept_group_(group, names, parameters);
  treatments_ = std::move(treatments);
  frame_ = std::make_unique<Frame>(parameters, gauges, treatments_);
  for (auto& gauge : gauges) {
    (treatments_.of(gauge).bind ? gauges_ : unbound_).push_back(std::move(gauge));
  }
  check_treatments_();
  make_states_();
}

void LiftedOptimizer::check_treatments_() const {
  const auto able = abilities();
  for (const auto& [gauge, treatment] : frame_->treatments()) {
    const auto refuse_if = [&, &name = gauge](bool impossible, const std::string& option,
                                              const char* why) {
      TORCH_CHECK_VALUE(!impossible, this->name(), ", gauge '", name, "': ", option,
                        " needs a base rule ", why);
    };
    const auto mode = treatment.second_moment;
    const auto option = std::string("second_moment=") + to_string(mode);
    // A frame that follows the weights asks for no second moments, only for a state that goes along.
    if (mode == SecondMoment::body_frame) {
      refuse_if(!able.change_basis, option, "whose state can change basis");
    } else {
      refuse_if(mode != SecondMoment::transported && !able.second_moments, option,
                "that keeps second moments per head");
    }
    refuse_if(treatment.project == Projection::momentum && !able.momentum, "project=momentum",
              "that has a momentum to project");
  }
}

void LiftedOptimizer::accept_group_(const OptimizerParamGroup& group, const Parameters& names,
                                    std::vector<GroupedParameter>& parameters) {
  const size_t index = param_groups_.size();
  const size_t first = parameters.size();
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

  auto options = defaults_->clone();
  if (group.has_options()) {
    const auto& given = group.options();
    const auto& defaults = *defaults_;
    TORCH_CHECK(typeid(given) == typeid(defaults), "param group ", index,
                " has options of another optimizer's type");
    options = group.options().clone();
    dynamic_cast<const LiftedOptions&>(*options).check();
  }
  for (size_t p = first; p < parameters.size(); ++p) {
    const auto& [name, tensor] = parameters[p].parameter;
    check({name, tensor, {}, {}}, dynamic_cast<const LiftedOptions&>(*options));
  }
  param_groups_.emplace_back(group.params(), std::move(options));
}

void LiftedOptimizer::add_param_group(const OptimizerParamGroup& group) {
  std::vector<GroupedParameter> parameters;
  for (const auto& tensor : frame_->plan().tensors) {
    parameters.push_back({{tensor.name, tensor.tensor}, tensor.param_group});
  }
  const size_t present = parameters.size();
  accept_group_(group, {}, parameters);
  for (size_t p = present; p < parameters.size(); ++p) frame_->add(parameters[p]);
  make_states_();
}

const LiftedOptions& LiftedOptimizer::options_of(size_t group) const {
  return dynamic_cast<const LiftedOptions&>(param_groups_[group].options());
}

LiftedParamState& LiftedOptimizer::state_of(size_t t) {
  const auto& tensor = frame_->plan().tensors[t];
  auto& slot = state_[tensor.tensor.unsafeGetTensorImpl()];
  if (slot == nullptr) slot = make_state(view_of(t), options_of(tensor.param_group));
  return static_cast<LiftedParamState&>(*slot);
}

void LiftedOptimizer::make_states_() {
  // Frozen tensors get theirs if a gradient comes after all: they may be most of a model.
  for (size_t t = 0; t < frame_->plan().tensors.size(); ++t) {
    if (frame_->plan().tensors[t].tensor.requires_grad()) state_of(t);
  }
}

TensorView LiftedOptimizer::view_of(size_t t) const {
  const auto& plan = frame_->plan();
  const auto& tensor = plan.tensors[t];
  TensorView view{tensor.name, tensor.tensor, {}, tensor.cut};
  for (const auto& use : tensor.blocks) {
    const auto& gauge = plan.gauges[use.gauge];
    HeadView head{*gauge.legs[use.leg].blocks, gauge.treatment.second_moment, {}};
    if (head.second_moment == SecondMoment::body_frame_topk) {
      const auto& values = frame_->gauge_states()[use.gauge].eigenvalues;
      head.live = values >= values.amax(-1, /*keepdim=*/true) * gauge.treatment.tau;
    }
    view.heads.push_back(std::move(head));
  }
  return view;
}

std::vector<StepSettings> LiftedOptimizer::check_settings() const {
  size_t parameters = 0;
  std::vector<StepSettings> of_group;
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    parameters += param_groups_[g].params().size();
    options_of(g).check();
    of_group.push_back(options_of(g).step_settings());
  }
  const auto& tensors = frame_->plan().tensors;
  TORCH_CHECK(parameters == tensors.size(), "the param groups hold ", parameters,
              " parameters, the optimizer was made for ", tensors.size(), "; add parameters with ",
              name(), "::add_param_group");
  std::vector<StepSettings> settings;
  for (const auto& tensor : tensors) settings.push_back(of_group[tensor.param_group]);
  return settings;
}

std::vector<bool> LiftedOptimizer::check_gradients() const {
  std::vector<bool> has_gradient;
  for (const auto& tensor : frame_->plan().tensors) {
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
  const auto& tensors = frame_->plan().tensors;
  for (const auto& component : frame_->plan().components) {
    auto chart = frame_->open(component, has_gradient, settings);
    frame_->project_gradients_(chart);
    const auto takes_step = [&](size_t t) { return has_gradient[t] && !chart.passive[t]; };
    std::vector<at::Tensor> momenta(tensors.size());
    if (frame_->projects_momenta(component)) {
      for (const size_t t : component.tensors) {
        if (!takes_step(t)) continue;
        momenta[t] = momentum(chart.g[t], state_of(t), options_of(tensors[t].param_group));
      }
      frame_->project_momenta_(chart, momenta);
    }
    std::vector<at::Tensor> steps(tensors.size());
    for (const size_t t : component.tensors) {
      const auto gradient = std::exchange(chart.g[t], {});
      if (!takes_step(t)) continue;
      const auto& options = options_of(tensors[t].param_group);
      auto& state = state_of(t);
      ++state.step;
      steps[t] = momenta[t].defined() ? displacement(momenta[t], view_of(t), options)
                                      : rule(gradient, view_of(t), state, options);
      momenta[t].reset();
    }
    frame_->project_steps_(chart, steps);
    frame_->advance_(chart, std::move(steps), settings);
    frame_->rebalance_(chart, settings);
    const auto turns = frame_->follow_(chart, abilities().change_basis);
    frame_->lift_(chart);
    frame_->turn_(turns);
    for (const auto& [gauge, basis] : turns) {
      for (const auto& leg : frame_->plan().gauges[gauge].legs) {
        const auto found = state_.find(tensors[leg.tensor].tensor.unsafeGetTensorImpl());
        if (found == state_.end()) continue;
        static_cast<LiftedParamState&>(*found->second).change_basis({*leg.blocks, basis});
      }
    }
  }
  return loss;
}

Report LiftedOptimizer::report() const {
  const auto table = parameter_table();
  const auto& plan = frame_->plan();
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
    const auto& treatment = plan.gauges[k].treatment;
    line.coordinates = plan.gauges[k].is_scale()   ? to_string(*treatment.coordinates)
                       : plan.gauges[k].is_shift() ? "centred"
                                                   : to_string(treatment.second_moment);
    line.frames_recomputed = frame_->gauge_states()[k].recomputed.get();
    for (const auto& leg : gauge.legs) line.tensors.push_back(leg.tensor);
    line.channels = gauge.channels;
    line.dimension = dimension(gauge, table);
    line.degenerate_channels = frame_->degenerate_channels(k);
    line.imbalance = frame_->gauge_states()[k].imbalance;
    report.gauges.push_back(std::move(line));
  }
  return report;
}

Treatment LiftedOptimizer::treatment(const std::string& gauge) const {
  for (const auto& [name, treatment] : frame_->treatments()) {
    if (name == gauge) return treatment;
  }
  TORCH_CHECK_VALUE(false, "no gauge is called '", gauge, "'");
}

at::Tensor LiftedOptimizer::gauge_coordinate(const std::string& gauge) const {
  for (size_t k = 0; k < gauges_.size(); ++k) {
    if (gauges_[k].name == gauge) return frame_->gauge_coordinate(k);
  }
  TORCH_CHECK_VALUE(false, "no gauge is called '", gauge, "'");
}

std::vector<at::Tensor> LiftedOptimizer::gauge_coordinates() const {
  std::vector<at::Tensor> result;
  for (size_t k = 0; k < gauges_.size(); ++k) {
    result.push_back(frame_->gauge_coordinate(k).clone());
  }
  return result;
}

Parameters LiftedOptimizer::parameter_table() const {
  Parameters table;
  for (const auto& tensor : frame_->plan().tensors) table.add(tensor.name, tensor.tensor);
  return table;
}

}  // namespace ddc
