#include "ddc/optim/lifted.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include "coordinates/coordinate_system.h"
#include "ddc/placement.h"
#include "kernels/pass.h"
#include "kernels/tensors.h"
#include "optim/lifted_snapshot.h"

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

/// Weights that miss the section by more than this are not at their canonical place. (Steps end on it, but
/// for gauges that are brought back every so many steps.)
constexpr double kOnSection = 0.5;

}  // namespace

Counter::Counter() : value_(at::zeros({}, at::kLong)) {}

int64_t Counter::get() const { return value_.item<int64_t>(); }

Counter& Counter::operator+=(int64_t by) {
  value_.add_(by);
  return *this;
}

void Counter::reset() { value_.zero_(); }

OptionList LiftedOptions::common() {
  return {
      {"check_gradients", check_gradients,
       "look for NaN and Inf in gradients before anything is changed; false where a GradScaler or "
       "clip_grad_norm_(error_if_nonfinite=True) has looked"}};
}

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
  for (auto& gauge : gauges) {
    (treatments_.of(gauge).bind ? gauges_ : unbound_).push_back(std::move(gauge));
  }
  try {
    bind_(parameters);
    treatments_.already_placed(false);
    check_treatments_();
    make_states_();
  } catch (...) {
    put_back_(parameters);
    throw;
  }
}

void LiftedOptimizer::put_back_(const std::vector<GroupedParameter>& parameters) const {
  for (const auto& [parameter, group] : parameters) {
    if (!found_.contains(parameter.name)) continue;
    parameter.tensor.detach().copy_(found_[parameter.name].tensor);
  }
}

namespace {

/// Side of a linear gauge that is zero, as in a fresh LoRA pair, in words; empty if there is none. What grows out
/// of it determines the balanced place as badly as it is small.
std::string zero_side(const Parameters& params, const std::vector<Gauge>& gauges) {
  for (const auto& gauge : gauges) {
    if (gauge.action != Action::linear) continue;
    for (const bool plus : {true, false}) {
      std::string name;
      bool is_zero = true;
      for (const auto& leg : gauge.legs) {
        if ((leg.exponent > 0) != plus || !is_zero) continue;
        name = leg.tensor;
        is_zero = params[name].tensor.detach().count_nonzero().item<int64_t>() == 0;
      }
      if (is_zero && !name.empty()) {
        return "gauge '" + gauge.name + "' has no canonical place while '" + name + "' is zero";
      }
    }
  }
  return {};
}

/// A tensor that gauges would move and that is not to be moved, in words; empty if there is none.
std::string frozen_leg(const Parameters& params, const std::vector<Gauge>& gauges) {
  for (const auto& gauge : gauges) {
    for (const auto& leg : gauge.legs) {
      for (const auto& name : {leg.tensor, leg.through.bias}) {
        if (!params.contains(name) || params[name].tensor.requires_grad()) continue;
        return "gauge '" + gauge.name + "' acts on '" + name + "', which is frozen";
      }
    }
  }
  return {};
}

}  // namespace

void LiftedOptimizer::choose_place_(const Parameters& params) {
  std::optional<Place> said;
  for (const auto& gauge : gauges_) {
    const auto& own = treatments_.of(gauge).placement;
    TORCH_CHECK_VALUE(!said || !own || *said == *own, "gauge '", gauge.name, "': placement is ",
                      to_string(own.value_or(Place::in_place)), ", that of another gauge ",
                      to_string(said.value_or(Place::in_place)),
                      "; all gauges of an optimizer have one");
    if (own) said = own;
  }
  place_ = Place::in_place;
  why_in_place_.clear();
  if (gauges_.empty() || said == Place::in_place) return;
  why_in_place_ = Placement::refusal(params, gauges_, treatments_);
  // Weights that are at their canonical place already are not moved.
  if (why_in_place_.empty() && !treatments_.are_placed()) {
    why_in_place_ = frozen_leg(params, gauges_);
    if (why_in_place_.empty() && !said) why_in_place_ = zero_side(params, gauges_);
  }
  TORCH_CHECK_VALUE(why_in_place_.empty() || !said, why_in_place_,
                    ": it needs placement = in_place");
  if (why_in_place_.empty()) place_ = Place::canonical;
}

void LiftedOptimizer::bind_(const std::vector<GroupedParameter>& parameters) {
  auto all = gauges_;
  all.insert(all.end(), unbound_.begin(), unbound_.end());
  Parameters table;
  for (const auto& [parameter, group] : parameters) table.add(parameter.name, parameter.tensor);
  choose_place_(table);
  placement_.reset();
  found_ = {};
  auto treatments = treatments_;
  if (place_ == Place::in_place) {
    treatments.set("placement", std::string(to_string(Place::in_place)));
    system_ = std::make_unique<CoordinateSystem>(parameters, all, treatments);
  } else {
    // The gauges tell the base rule how tensors are cut into heads, and that is all it sees of them.
    for (const auto& gauge : gauges_) {
      const auto heads = tells_heads(gauge, treatments_.of(gauge)) ? Heads::cut : Heads::whole;
      treatments.set("heads", std::string(to_string(heads)), gauge.name);
    }
    treatments.set("bind", false);
    system_ = std::make_unique<CoordinateSystem>(parameters, all, treatments);
    const auto start = treatments_.are_placed() ? Start::canonical : Start::anywhere;
    std::set<std::string> moved;
    for (const auto& gauge : gauges_) {
      for (const auto& leg : gauge.legs) moved.insert({leg.tensor, leg.through.bias});
    }
    for (const auto& [name, tensor] : start == Start::anywhere ? table : Parameters()) {
      if (moved.contains(name)) found_.add(name, tensor.detach().clone());
    }
    placement_ = std::make_unique<Placement>(
        table, gauges_, Treatments(treatments_).in_one_pass(abilities().in_place), start,
        abilities().in_place);
  }
  versions_ = versions();
}

const CoordinateSystem& LiftedOptimizer::coordinate_system() const {
  return placement_ ? placement_->coordinate_system() : *system_;
}

void LiftedOptimizer::to_original_() {
  if (!placement_) return;
  placement_->to_original_();
  versions_ = versions();
}

void LiftedOptimizer::settle_() {
  if (!placement_ || placement_->is_original()) return;
  placement_->settle_();
  versions_ = versions();
}

void LiftedOptimizer::Clock::note(Time start, Time end) {
  constexpr size_t kSteps = 50;
  const auto add = [](std::deque<double>& last, Time from, Time to) {
    last.push_back(std::chrono::duration<double>(to - from).count());
    if (last.size() > kSteps) last.pop_front();
  };
  add(own, start, end);
  if (last_end) add(whole, *last_end, end);
  last_end = end;
}

double LiftedOptimizer::flops(const TensorView& /*view*/, const LiftedOptions& /*options*/) const {
  return 0;
}

bool LiftedOptimizer::computes_in_double(const LiftedOptions& /*options*/) const { return false; }

StepCost LiftedOptimizer::planned_cost() const {
  StepCost cost;
  for (size_t t = 0; t < system_->plan().tensors.size(); ++t) {
    const auto& tensor = system_->plan().tensors[t].tensor;
    const auto& options = options_of(system_->plan().tensors[t].param_group);
    // Weights are read and written, gradients checked and read, state read and written.
    cost.bytes += (options.check_gradients ? 4 : 3) * static_cast<double>(tensor.nbytes());
    const double of_rule = flops(view_of(t), options);
    cost.flops += of_rule;
    if (tensor.scalar_type() == at::kDouble || computes_in_double(options)) {
      cost.double_flops += of_rule;
    }
    const auto found = state_.find(tensor.unsafeGetTensorImpl());
    if (found == state_.end()) continue;
    for (const auto& [name, field] : static_cast<LiftedParamState&>(*found->second).tensors()) {
      if (field->defined()) cost.bytes += 2 * static_cast<double>(field->nbytes());
    }
  }
  // Gauges that mix channels: the overlap with the weights before, Gram matrices of linear ones, and the move.
  for (const auto& gauge : coordinate_system().plan().gauges) {
    if (!gauge.gauge.mixes() || gauge.projects(Projection::never)) continue;
    const double share = 1.0 / static_cast<double>(gauge.treatment.every.value_or(1));
    for (const auto& leg : gauge.legs) {
      const auto& tensor = coordinate_system().plan().tensors[leg.tensor].tensor;
      const double products = gauge.is_linear() ? 3 : 2;
      const double own =
          share * products * 2 * static_cast<double>(tensor.numel() * leg.blocks->block());
      cost.flops += own;
      if (tensor.scalar_type() == at::kDouble) cost.double_flops += own;
      cost.bytes += share * (products + 2) * static_cast<double>(tensor.nbytes());
    }
  }
  return cost;
}

bool LiftedOptimizer::in_place(LiftedParamState& /*state*/, const LiftedOptions& /*options*/,
                               kernels::PassEntry& /*entry*/) const {
  return false;
}

void LiftedOptimizer::to_canonical_() {
  if (!placement_) return;
  placement_->to_canonical_();
  versions_ = versions();
}

std::vector<int64_t> LiftedOptimizer::versions() const {
  std::vector<int64_t> result;
  for (const auto& tensor : system_->plan().tensors) {
    result.push_back(static_cast<int64_t>(tensor.tensor._version()));
    result.push_back(reinterpret_cast<int64_t>(tensor.tensor.const_data_ptr()));
  }
  return result;
}

void LiftedOptimizer::check_place_() {
  if (!placement_ || !std::exchange(is_loaded_, false)) return;
  // Gradients were taken where the weights are.
  TORCH_CHECK(
      !loaded_original_ || versions() == versions_,
      "the state that was loaded is of weights at their original place, from where they were "
      "moved when it was loaded; since then other weights were loaded: load weights first, "
      "then the optimizer's state");
  placement_->loaded();
  const double off = placement_->distance_to_section();
  TORCH_CHECK(off <= kOnSection,
              "the state that was loaded is of other weights: these miss the section "
              "by ",
              off, "; load the weights of the same checkpoint");
}

void LiftedOptimizer::check_treatments_() const {
  const auto able = abilities();
  for (const auto& [gauge, treatment] : coordinate_system().treatments()) {
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
  auto parameters = grouped_parameters();
  const size_t present = parameters.size();
  accept_group_(group, {}, parameters);
  for (size_t p = present; p < parameters.size(); ++p) system_->add(parameters[p]);
  make_states_();
}

const LiftedOptions& LiftedOptimizer::options_of(size_t group) const {
  return dynamic_cast<const LiftedOptions&>(param_groups_[group].options());
}

LiftedParamState& LiftedOptimizer::state_of(size_t t) {
  const auto& tensor = system_->plan().tensors[t];
  auto& slot = state_[tensor.tensor.unsafeGetTensorImpl()];
  if (slot == nullptr) slot = make_state(view_of(t), options_of(tensor.param_group));
  return static_cast<LiftedParamState&>(*slot);
}

void LiftedOptimizer::make_states_() {
  // Frozen tensors get theirs if a gradient comes after all: they may be most of a model.
  for (size_t t = 0; t < system_->plan().tensors.size(); ++t) {
    if (system_->plan().tensors[t].tensor.requires_grad()) state_of(t);
  }
  is_huge_ = is_huge();
}

TensorView LiftedOptimizer::view_of(size_t t) const {
  const auto& plan = system_->plan();
  const auto& tensor = plan.tensors[t];
  TensorView view{tensor.name, tensor.tensor, {}, tensor.cut};
  for (const auto& use : tensor.blocks) {
    const auto& gauge = plan.gauges[use.gauge];
    HeadView head{*gauge.legs[use.leg].blocks, gauge.treatment.second_moment, {}};
    if (head.second_moment == SecondMoment::body_frame_topk) {
      const auto& values = system_->gauge_states()[use.gauge].eigenvalues;
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
  const auto& tensors = system_->plan().tensors;
  TORCH_CHECK(parameters == tensors.size(), "the param groups hold ", parameters,
              " parameters, the optimizer was made for ", tensors.size(), "; add parameters with ",
              name(), "::add_param_group");
  std::vector<StepSettings> settings;
  for (const auto& tensor : tensors) settings.push_back(of_group[tensor.param_group]);
  return settings;
}

std::vector<bool> LiftedOptimizer::check_gradients() {
  std::vector<bool> has_gradient;
  std::vector<at::Tensor> gradients;
  for (const auto& tensor : system_->plan().tensors) {
    const auto& gradient = tensor.tensor.grad();
    has_gradient.push_back(gradient.defined());
    if (!gradient.defined()) continue;
    TORCH_CHECK(gradient.layout() == at::kStrided, "the gradient of '", tensor.name,
                "' is sparse; only dense gradients are supported");
    TORCH_CHECK(gradient.sizes() == tensor.tensor.sizes(), "the gradient of '", tensor.name,
                "' has shape ", gradient.sizes(), ", the parameter ", tensor.tensor.sizes());
    if (options_of(tensor.param_group).check_gradients) gradients.push_back(gradient);
  }
  if (kernels::none_huge(gradients)) return has_gradient;
  is_huge_ = true;
  for (const auto& tensor : system_->plan().tensors) {
    TORCH_CHECK(!tensor.tensor.grad().defined() ||
                    !options_of(tensor.param_group).check_gradients ||
                    kernels::all_finite({tensor.tensor.grad()}),
                "the gradient of '", tensor.name,
                "' has NaN or Inf entries; the step was not made and nothing was changed");
  }
  return has_gradient;
}

namespace {

/// Whether a step with these may leave the range of numbers though weights, state and gradients are small.
bool may_overflow(const StepSettings& settings) {
  constexpr double kSmallestEps = 1e-20;  // a float32 of which the square is none is not far above
  return settings.lr >= kernels::kHuge || settings.lr * settings.weight_decay > 2 ||
         settings.eps < kSmallestEps;
}

}  // namespace

at::Tensor LiftedOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure != nullptr) {
    const at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  const auto start = std::chrono::steady_clock::now();
  const at::NoGradGuard no_grad;
  const auto settings = check_settings();
  const auto has_gradient = check_gradients();
  TORCH_CHECK(!placement_ || !placement_->is_original(),
              "the weights are at their original place; steps are made at the canonical one");
  check_place_();
  found_ = {};
  if (!is_huge_ && !abilities().throws && std::ranges::none_of(settings, may_overflow)) {
    make_step_(has_gradient, settings);
  } else {
    const Snapshot before(*this);
    try {
      make_step_(has_gradient, settings);
      check_step(has_gradient);
    } catch (const c10::LinAlgError& error) {
      before.put_back();
      TORCH_CHECK(false, name(), ": ", error.what_without_backtrace(), not_made());
    } catch (...) {
      before.put_back();
      throw;
    }
    is_huge_ = is_huge();
  }
  clock_.note(start, std::chrono::steady_clock::now());
  return loss;
}

void LiftedOptimizer::make_step_(const std::vector<bool>& has_gradient,
                                 const std::vector<StepSettings>& settings) {
  const auto& tensors = system_->plan().tensors;
  std::vector<size_t> plain;
  for (const auto& component : system_->plan().components) {
    if (component.gauges.empty()) {
      for (const size_t t : component.tensors) {
        if (has_gradient[t]) plain.push_back(t);
      }
      continue;
    }
    ComponentStep open(*system_, component, has_gradient, settings);
    auto momenta = open.tensors();
    if (open.projects_momenta()) {
      for (const size_t t : component.tensors) {
        if (!open.is_stepped(t)) continue;
        momenta[t] = momentum(open.gradients()[t], state_of(t), options_of(tensors[t].param_group));
      }
      open.project_momenta_(momenta);
    }
    auto steps = open.tensors();
    for (const size_t t : component.tensors) {
      const auto gradient = std::exchange(open.gradients()[t], {});
      if (!open.is_stepped(t)) continue;
      const auto& options = options_of(tensors[t].param_group);
      auto& state = state_of(t);
      ++state.step;
      steps[t] = momenta[t].defined() ? displacement(momenta[t], view_of(t), options)
                                      : rule(gradient, view_of(t), state, options);
      momenta[t].reset();
    }
    const auto turns = open.make_(std::move(steps), abilities().change_basis);
    for (const auto& [gauge, basis] : turns) {
      for (const auto& leg : system_->plan().gauges[gauge].legs) {
        const auto found = state_.find(tensors[leg.tensor].tensor.unsafeGetTensorImpl());
        if (found == state_.end()) continue;
        static_cast<LiftedParamState&>(*found->second).change_basis({*leg.blocks, basis});
      }
    }
  }
  step_plain_(plain, settings);
  const bool stepped = std::count(has_gradient.begin(), has_gradient.end(), true) > 0;
  if (placement_ && stepped) placement_->restore_();
  versions_ = versions();
}

void LiftedOptimizer::step_plain_(const std::vector<size_t>& tensors,
                                  const std::vector<StepSettings>& settings) {
  if (tensors.empty()) return;
  const auto& plan = system_->plan();
  std::vector<kernels::PassEntry> entries(tensors.size());
  std::vector<bool> in_pass(plan.tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& tensor = plan.tensors[tensors[i]];
    auto& state = state_of(tensors[i]);
    ++state.step;
    entries[i].weights = tensor.tensor;
    entries[i].gradient = tensor.tensor.grad();
    in_pass[tensors[i]] =
        in_place(state, options_of(tensor.param_group), entries[i]) && entries[i].fits();
  }
  const bool open = placement_ && placement_->open_(in_pass);
  // What gauges do to matrices on their way out is known when vectors have been stepped.
  std::vector<kernels::PassEntry> vectors;
  std::vector<kernels::PassEntry> pass;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const size_t t = tensors[i];
    if (placement_) {
      if (placement_->is_open(t)) entries[i].edges = placement_->edges(t);
      if (auto moved = placement_->gradient(t); moved.defined()) entries[i].gradient = moved;
    }
    if (!in_pass[t]) continue;
    const bool first = open && placement_->is_open(t) && entries[i].edges == nullptr;
    (first ? vectors : pass).push_back(entries[i]);
  }
  if (open) {
    kernels::run(vectors);
    placement_->fold_();
  }
  kernels::run(pass);
  std::vector<std::pair<double, size_t>> apart;
  bool on_cpu = true;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const size_t t = tensors[i];
    if (in_pass[t]) continue;
    const auto& tensor = plan.tensors[t];
    apart.emplace_back(flops(view_of(t), options_of(tensor.param_group)), i);
    on_cpu = on_cpu && tensor.tensor.is_cpu();
  }
  // The largest first, so that threads end together. Each calls BLAS and LAPACK on one; where there are fewer
  // tensors than threads, these share each tensor.
  std::stable_sort(apart.begin(), apart.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  const auto step_apart = [&](size_t k) {
    const at::NoGradGuard no_grad_here;  // of this thread
    const size_t i = apart[k].second;
    step_apart_(tensors[i], entries[i].gradient, settings[tensors[i]]);
  };
  size_t large = 0;
  while (on_cpu && large < apart.size() && apart[large].first > 0) ++large;
  if (large < static_cast<size_t>(at::get_num_threads())) large = 0;
  kernels::one_by_one(large, step_apart);
  for (size_t k = large; k < apart.size(); ++k) step_apart(k);
}

void LiftedOptimizer::step_apart_(size_t t, const at::Tensor& given, const StepSettings& settings) {
  const auto& tensor = system_->plan().tensors[t];
  const auto type = tensor.compute_type();
  auto gradient = given.to(type);
  if (settings.maximize) gradient = gradient.neg();
  const auto step = rule(gradient, view_of(t), state_of(t), options_of(tensor.param_group));
  auto weights = tensor.tensor.detach();
  auto x = weights.to(type);
  if (settings.weight_decay != 0) x.mul_(1 - settings.lr * settings.weight_decay);
  x.add_(step);
  if (!x.is_alias_of(weights)) weights.copy_(x);
}

Report LiftedOptimizer::report() const {
  const auto table = parameter_table();
  const auto& plan = coordinate_system().plan();
  Report report;
  report.place = place_;
  report.why_in_place = why_in_place_;
  report.cost = planned_cost();
  if (!clock_.own.empty()) {
    report.cost.steps = static_cast<int64_t>(clock_.own.size());
    report.cost.seconds = std::accumulate(clock_.own.begin(), clock_.own.end(), 0.0) /
                          static_cast<double>(clock_.own.size());
  }
  if (!clock_.whole.empty()) {
    // The first step has no whole time; each of the others is part of its own.
    const auto sum = [](auto begin, auto end) { return std::accumulate(begin, end, 0.0); };
    const auto count = static_cast<std::ptrdiff_t>(clock_.whole.size());
    const double whole = sum(clock_.whole.begin(), clock_.whole.end());
    report.cost.share = whole > 0 ? sum(clock_.own.end() - count, clock_.own.end()) / whole : 0;
  }
  const bool away = placement_ && placement_->is_original();
  const auto distances = placement_ && !away ? placement_->distances_to_sections()
                                             : std::vector<double>(plan.gauges.size());
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
    line.frames_recomputed = coordinate_system().gauge_states()[k].recomputed.get();
    for (const auto& leg : gauge.legs) line.tensors.push_back(leg.tensor);
    line.channels = gauge.channels;
    line.dimension = dimension(gauge, table);
    line.degenerate_channels = coordinate_system().degenerate_channels(k);
    line.imbalance = placement_ ? distances[k] : coordinate_system().gauge_states()[k].imbalance;
    report.gauges.push_back(std::move(line));
  }
  return report;
}

Treatment LiftedOptimizer::treatment(const std::string& gauge) const {
  for (const auto& [name, treatment] : coordinate_system().treatments()) {
    if (name == gauge) return treatment;
  }
  TORCH_CHECK_VALUE(false, "no gauge is called '", gauge, "'");
}

at::Tensor LiftedOptimizer::gauge_coordinate(const std::string& gauge) const {
  for (size_t k = 0; k < gauges_.size(); ++k) {
    if (gauges_[k].name == gauge) return gauge_coordinates()[k];
  }
  TORCH_CHECK_VALUE(false, "no gauge is called '", gauge, "'");
}

std::vector<at::Tensor> LiftedOptimizer::gauge_coordinates() const {
  if (placement_) return placement_->gauge_coordinates();
  std::vector<at::Tensor> result;
  for (size_t k = 0; k < gauges_.size(); ++k) {
    result.push_back(coordinate_system().gauge_coordinate(k).clone());
  }
  return result;
}

std::vector<GroupedParameter> LiftedOptimizer::grouped_parameters() const {
  std::vector<GroupedParameter> result;
  for (const auto& tensor : system_->plan().tensors) {
    result.push_back({{tensor.name, tensor.tensor}, tensor.param_group});
  }
  return result;
}

Parameters LiftedOptimizer::parameter_table() const {
  Parameters table;
  for (const auto& tensor : system_->plan().tensors) table.add(tensor.name, tensor.tensor);
  return table;
}

}  // namespace ddc
