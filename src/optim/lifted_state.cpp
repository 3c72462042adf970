// The state of a lifted optimizer as name-keyed values: state_dict, load_state_dict and LibTorch's
// archives.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "coordinates/coordinate_system.h"
#include "ddc/gauge/action.h"
#include "ddc/optim/lifted.h"
#include "ddc/placement.h"
#include "gauge/gauge_fields.h"
#include "io/json_text.h"
#include "kernels/tensors.h"
#include "optim/lifted_snapshot.h"
#include "placement/state_values.h"

namespace ddc {

using nlohmann::json;

namespace {

constexpr const char* kDescriptionKey = "description";
constexpr int kVersion = 2;

StateTensors fields(ScalarMoments& moments, const std::string& prefix) {
  if (!moments.first.defined()) return {};
  return {{prefix + "first", &moments.first},
          {prefix + "second", &moments.second},
          {prefix + "step", &moments.step.tensor()}};
}

/// What a gauge remembers: the one list of it.
StateTensors fields(GaugeState& state, const Gauge& gauge) {
  StateTensors result{{"log_unit", &state.log_unit},
                      {"target", &state.target},
                      {"held", &state.held},
                      {"bound", &state.bound},
                      {"known", &state.known},
                      {"frame", &state.frame},
                      {"eigenvalues", &state.eigenvalues}};
  std::erase_if(result, [](const auto& field) { return !field.second->defined(); });
  for (auto& field : fields(state.vertical, "vertical.")) result.push_back(std::move(field));
  if (gauge.mixes()) {
    result.emplace_back("age", &state.age.tensor());
    result.emplace_back("recomputed", &state.recomputed.tensor());
  }
  return result;
}

json written(const OptionValues& values) {
  json result = json::object();
  for (const auto& [name, value] : values) {
    result[name] = std::visit([](const auto& v) { return json(v); }, value);
  }
  return result;
}

OptionValues read_options(const json& object) {
  constexpr uint64_t most = std::numeric_limits<int64_t>::max();
  TORCH_CHECK(object.is_object(), "its options are ", io::shown(object), ", must be an object");
  OptionValues values;
  for (const auto& [name, value] : object.items()) {
    if (value.is_boolean()) {
      values[name] = value.get<bool>();
    } else if (value.is_number_integer() &&
               !(value.is_number_unsigned() && value.get<uint64_t>() > most)) {
      values[name] = value.get<int64_t>();
    } else if (value.is_number()) {
      values[name] = value.get<double>();
    } else {
      TORCH_CHECK(value.is_string(), "its option ", io::shown(json(name)), " is ", io::shown(value),
                  ", must be a number, a text, true or false");
      values[name] = value.get<std::string>();
    }
  }
  return values;
}

/// The first place in which a state's description differs from the optimizer's own.
std::string difference(const json& saved, const json& own, const std::string& place) {
  constexpr size_t kWidth = 160;
  const auto only_in = [](const json& value, const std::string& where, const char* has_it) {
    return where + " is " + io::shown(value, kWidth) + " in the " + has_it + " alone";
  };
  if (saved.is_object() && own.is_object()) {
    for (const auto& [key, value] : own.items()) {
      const auto where = place + "." + key;
      if (!saved.contains(key)) return only_in(value, where, "optimizer");
      if (saved[key] != value) return difference(saved[key], value, where);
    }
    for (const auto& [key, value] : saved.items()) {
      if (!own.contains(key)) return only_in(value, place + "." + key.substr(0, 60), "state");
    }
  } else if (saved.is_array() && own.is_array()) {
    for (size_t i = 0; i < std::min(saved.size(), own.size()); ++i) {
      if (saved[i] != own[i]) {
        return difference(saved[i], own[i], place + "[" + std::to_string(i) + "]");
      }
    }
    const size_t both = std::min(saved.size(), own.size());
    const auto where = place + "[" + std::to_string(both) + "]";
    if (saved.size() > both) return only_in(saved[both], where, "state");
    if (own.size() > both) return only_in(own[both], where, "optimizer");
  }
  return place + " is " + io::shown(saved, kWidth) + ", the optimizer's is " +
         io::shown(own, kWidth);
}

/// The description of a state, checked as far as it does not depend on the parameters.
json read_description(const std::string& text, const std::string& name) {
  auto saved = io::parse_json(text, "optimizer state: its description");
  TORCH_CHECK(saved.is_object(), "optimizer state: its description is ", io::shown(saved),
              ", must be an object");
  for (const auto* field : {"optimizer", "version", "groups", "symmetries"}) {
    TORCH_CHECK(saved.contains(field), "optimizer state: its description has no '", field, "'");
  }
  TORCH_CHECK(saved["optimizer"].is_string(), "optimizer state: its description has the optimizer ",
              io::shown(saved["optimizer"]), ", which is no name");
  TORCH_CHECK(saved["optimizer"] == name, "optimizer state is that of '",
              saved["optimizer"].get<std::string>().substr(0, 60), "', not of '", name, "'");
  TORCH_CHECK(saved["version"] != 1,
              "optimizer state was written by ddc 0.1, which did not store how gauges are treated: "
              "start a new optimizer at the checkpoint's weights, or finish the run with 0.1");
  TORCH_CHECK(saved["version"] == kVersion, "optimizer state has version ",
              io::shown(saved["version"]), "; this library reads version ", kVersion);
  return saved;
}

/// Averages of squares may be infinite. Those of heads may be matrices, which have entries of either sign.
bool is_average(const std::string& key) {
  return key.ends_with(".exp_avg_sq") || key.ends_with(".second");
}
bool is_of_squares(const std::string& key) {
  return is_average(key) || key.find(".head_sq") != std::string::npos;
}

/// Refuses what no step leaves behind, and what would make the weights NaN some steps later.
void check_values(const std::string& key, const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kLong) {
    const auto count = tensor.item<int64_t>();
    TORCH_CHECK(count >= 0, "optimizer state '", key, "' must be >= 0, is ", count);
  }
  if (!at::isFloatingType(tensor.scalar_type()) || tensor.numel() == 0) return;
  const bool of_squares = is_of_squares(key);
  const bool fits = of_squares ? !tensor.isnan().any().item<bool>() : kernels::all_finite({tensor});
  TORCH_CHECK(fits, "optimizer state '", key, "' has NaN ", of_squares ? "" : "or Inf ", "entries");
  TORCH_CHECK(!is_average(key) || tensor.min().item<double>() >= 0, "optimizer state '", key,
              "' has negative entries: it is an average of squares");
}

/// Moves along orbits that wait for the next step (Placement::settle_).
bool is_pending(const std::string& key_or_field) {
  return key_or_field.starts_with("pending.") ||
         key_or_field.find(".pending.") != std::string::npos;
}

/// Collects what a load will do, so that nothing is done before everything has been checked.
class Loader {
 public:
  Loader(const std::map<std::string, at::Tensor>& tensors, bool adopt)
      : tensors_(tensors), adopt_(adopt) {}

  bool has(const std::string& key) const { return tensors_.contains(key); }

  /// Replaces `slot` by the tensor called `key`, which must have the shape and type given.
  void replace(const std::string& key, at::Tensor* slot, at::IntArrayRef shape, at::ScalarType type,
               at::Device device) {
    const auto found = tensors_.find(key);
    TORCH_CHECK(found != tensors_.end(), "optimizer state has no tensor '", key, "'");
    used_.insert(key);
    const auto& tensor = found->second;
    TORCH_CHECK(tensor.layout() == at::kStrided, "optimizer state '", key, "' has layout ",
                tensor.layout(), ", must be a dense tensor");
    TORCH_CHECK(tensor.sizes() == shape && tensor.scalar_type() == type, "optimizer state '", key,
                "' is of type ", tensor.scalar_type(), " and shape ", tensor.sizes(), ", expected ",
                type, " and ", shape);
    check_values(key, tensor);
    actions_.push_back([slot, &tensor, device, type, adopt = adopt_] {
      *slot = adopt ? tensor.to(device)
                    : tensor.detach().to(device, type, /*non_blocking=*/false, /*copy=*/true);
    });
  }
  void replace(const std::string& key, at::Tensor* slot) {
    replace(key, slot, slot->sizes(), slot->scalar_type(), slot->device());
  }

  void check_all_used() const {
    for (const auto& [key, tensor] : tensors_) {
      if (!used_.contains(key) && is_pending(key)) {
        // Factors of one and shifts of zero: nothing is lost.
        const bool nothing = ((tensor == 0) | (tensor == 1)).all().item<bool>();
        TORCH_CHECK(
            nothing, "optimizer state '", key,
            "' has moves along orbits that wait for the next step, which this optimizer makes "
            "otherwise; take the state after settle_(), or let the other one make a step");
        continue;
      }
      TORCH_CHECK(used_.contains(key), "optimizer state holds a tensor '", key,
                  "', which this optimizer does not know");
    }
  }
  void commit() const {
    for (const auto& action : actions_) action();
  }

 private:
  const std::map<std::string, at::Tensor>& tensors_;
  bool adopt_;
  std::vector<std::function<void()>> actions_;
  std::set<std::string> used_;
};

/// Takes the gradients of weights along that were moved: they are those of the weights as they are now.
/// `weights` are as they were, in float64, and are moved as well.
void move_gradients_(const Move& move, const Parameters& weights, const Parameters& params) {
  Parameters gradients;
  for (const auto& [name, tensor] : params) {
    const auto& own = tensor.grad();
    gradients.add(name, own.defined() ? own.detach().to(at::kDouble, /*non_blocking=*/false, true)
                                      : at::zeros_like(weights[name].tensor));
  }
  for (size_t i = 0; i < move.gauges.size(); ++i) {
    std::set<std::string> touched;
    for (const auto& leg : move.gauges[i].legs) {
      touched.insert({leg.tensor, leg.through.gain, leg.through.shift, leg.through.bias});
    }
    Parameters moved;
    Parameters along;
    for (const auto& name : touched) {
      if (name.empty()) continue;
      moved.add(name, weights[name].tensor);
      along.add(name, gradients[name].tensor);
    }
    act_on_gradient_(move.gauges[i], move.elements[i], moved, along);
    act_(move.gauges[i], move.elements[i], moved);
  }
  for (const auto& [name, tensor] : params) {
    if (tensor.grad().defined()) at::Tensor(tensor.grad()).copy_(gradients[name].tensor);
  }
}

}  // namespace

std::string StateSlot::key_in_parameter() const {
  return owner == Owner::parameter ? field : key();
}

std::string StateSlot::key() const {
  const char* scope = owner == Owner::parameter ? "param."
                      : owner == Owner::gauge   ? "gauge."
                                                : "radial.";
  return scope + name + "." + field;
}

std::string LiftedOptimizer::symmetries() const {
  json gauges = json::array();
  for (const auto& gauge : coordinate_system().plan().gauges) {
    gauges.push_back({{"gauge", fields_json::Writer::written(gauge.gauge, "")},
                      {"treatment", written(values_of(gauge.treatment))}});
  }
  json heads = json::array();
  for (const auto& gauge : unbound_) heads.push_back(gauge.name);
  return json{{"gauges", gauges}, {"not_bound", heads}}.dump();
}

std::string LiftedOptimizer::description() const {
  json groups = json::array();
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    json params = json::array();
    for (const auto& tensor : system_->plan().tensors) {
      if (tensor.param_group == g) params.push_back(tensor.name);
    }
    groups.push_back({{"params", params}, {"options", written(options_of(g).values())}});
  }
  return json{{"optimizer", name()},
              {"version", kVersion},
              {"groups", groups},
              {"symmetries", json::parse(symmetries())}}
      .dump();
}

std::vector<StateSlot> LiftedOptimizer::state_slots() {
  std::vector<StateSlot> slots;
  const auto& plan = system_->plan();
  const auto add = [&](StateSlot::Owner owner, size_t parameter, const std::string& name,
                       const StateTensors& tensors) {
    for (const auto& [field, tensor] : tensors) {
      if (tensor->defined()) slots.push_back({owner, parameter, name, field, tensor});
    }
  };
  for (size_t t = 0; t < plan.tensors.size(); ++t) {
    const auto found = state_.find(plan.tensors[t].tensor.unsafeGetTensorImpl());
    if (found == state_.end()) continue;
    auto& state = static_cast<LiftedParamState&>(*found->second);
    add(StateSlot::Owner::parameter, t, plan.tensors[t].name, {{"step", &state.step.tensor()}});
    add(StateSlot::Owner::parameter, t, plan.tensors[t].name, state.tensors());
  }
  if (placement_) {
    std::map<std::string, size_t> first_leg;
    for (const auto& gauge : coordinate_system().plan().gauges) {
      first_leg[gauge.gauge.name] = gauge.legs.front().tensor;
    }
    for (const auto& [gauge, field, tensor] : placement_->state()) {
      add(StateSlot::Owner::gauge, first_leg.at(gauge), gauge, {{field, tensor}});
    }
    return slots;
  }
  for (size_t k = 0; k < gauges_.size(); ++k) {
    add(StateSlot::Owner::gauge, plan.gauges[k].legs.front().tensor, gauges_[k].name,
        fields(system_->gauge_states()[k], gauges_[k]));
  }
  for (size_t m = 0; m < system_->radial_states().size(); ++m) {
    const auto& mode = plan.radial_modes[m];
    const auto& gauge = plan.gauges[mode.gauge];
    add(StateSlot::Owner::radius, gauge.legs.front().tensor,
        gauge.gauge.name + "." + std::to_string(mode.nodes.front()),
        fields(system_->radial_states()[m], ""));
  }
  return slots;
}

OptimizerState LiftedOptimizer::state_dict() const {
  OptimizerState result;
  result.description = description();
  // The slots are only read.
  for (const auto& slot : const_cast<LiftedOptimizer*>(this)->state_slots()) {
    result.tensors[slot.key()] = slot.tensor->detach().clone();
  }
  return result;
}

LiftedOptimizer::Snapshot::Snapshot(LiftedOptimizer& optimizer) : optimizer_(optimizer) {
  for (const auto& [name, tensor] : optimizer.parameter_table()) {
    weights_.emplace_back(tensor.detach(), tensor.detach().clone());
  }
  for (const auto& entry : optimizer.state_) states_.insert(entry.first);
  gauges_ = optimizer.system_->gauge_states();
  for (const auto& slot : optimizer.state_slots()) {
    slots_.push_back({slot.tensor, *slot.tensor, slot.tensor->detach().clone()});
  }
}

void LiftedOptimizer::Snapshot::put_back() const {
  for (const auto& [tensor, value] : weights_) tensor.copy_(value);
  optimizer_.system_->gauge_states() = gauges_;
  for (const auto& [place, tensor, value] : slots_) {
    *place = tensor;
    place->copy_(value);
  }
  for (auto state = optimizer_.state_.begin(); state != optimizer_.state_.end();) {
    state = states_.contains(state->first) ? std::next(state) : optimizer_.state_.erase(state);
  }
  if (optimizer_.placement_) optimizer_.placement_->loaded();
  optimizer_.versions_ = optimizer_.versions();
}

bool LiftedOptimizer::is_huge() {
  std::vector<at::Tensor> tensors;
  for (const auto& tensor : system_->plan().tensors) tensors.push_back(tensor.tensor.detach());
  for (const auto& slot : state_slots()) {
    const bool counts =
        at::isFloatingType(slot.tensor->scalar_type()) && !is_of_squares(slot.key());
    if (counts) tensors.push_back(*slot.tensor);
  }
  return !kernels::none_huge(tensors);
}

std::string LiftedOptimizer::not_made() const {
  double largest = 0;
  std::string source;
  for (const auto& tensor : system_->plan().tensors) {
    const auto& gradient = tensor.tensor.grad();
    if (!gradient.defined() || gradient.numel() == 0) continue;
    const double size = gradient.abs().max().item<double>();
    if (size >= largest) source = tensor.name;
    largest = std::max(largest, size);
  }
  std::ostringstream text;
  text << "; the largest gradient is that of '" << source << "', " << largest
       << ". The step was not made and nothing was changed";
  return text.str();
}

void LiftedOptimizer::check_step(const std::vector<bool>& has_gradient) {
  const auto& tensors = system_->plan().tensors;
  const auto refuse_if = [&](bool refused, const std::string& what) {
    TORCH_CHECK(!refused, name(), ": the step would make ", what, " NaN or infinite", not_made());
  };
  for (size_t t = 0; t < tensors.size(); ++t) {
    refuse_if(has_gradient[t] && !kernels::all_finite({tensors[t].tensor.detach()}),
              "'" + tensors[t].name + "'");
  }
  for (const auto& slot : state_slots()) {
    if (!at::isFloatingType(slot.tensor->scalar_type())) continue;
    refuse_if(is_of_squares(slot.key()) ? slot.tensor->isnan().any().item<bool>()
                                        : !kernels::all_finite({*slot.tensor}),
              "its state '" + slot.key() + "'");
  }
}

void LiftedOptimizer::reset_state() {
  const auto parameters = grouped_parameters();
  const at::NoGradGuard no_grad;
  const auto table = parameter_table();
  const bool has_gradients = std::any_of(
      table.begin(), table.end(), [](const auto& each) { return each.tensor.grad().defined(); });
  Parameters before;
  for (const auto& [name, tensor] : has_gradients ? table : Parameters()) {
    before.add(name, tensor.detach().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true));
  }
  bind_(parameters);
  if (placement_ && has_gradients) {
    move_gradients_(placement_->to_original().inverse(), before, table);
  }
  state_.clear();
  make_states_();
}

void LiftedOptimizer::set_options(size_t group, const OptionValues& values) {
  // Tried out on a copy, so that values that do not pass leave the group's options alone.
  auto copy = param_groups_.at(group).options().clone();
  auto& options = dynamic_cast<LiftedOptions&>(*copy);
  options.list().assign(values, name());
  options.check();
  param_groups_.at(group).set_options(std::move(copy));
}

void LiftedOptimizer::load_state_dict(const OptimizerState& state) {
  const auto saved = read_description(state.description, name());
  const auto own = json::parse(description());
  const auto& groups = saved["groups"];
  TORCH_CHECK(groups.is_array() && groups.size() == param_groups_.size(), "optimizer state has ",
              groups.size(), " param groups, the optimizer ", param_groups_.size());
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    const auto params = groups[g].is_object() ? groups[g].value("params", json()) : json();
    const auto& own_params = own["groups"][g]["params"];
    TORCH_CHECK(params == own_params, "optimizer state: param group ", g, ": ",
                difference(params, own_params, "params"));
    auto copy = param_groups_[g].options().clone();
    try {
      auto& given = dynamic_cast<LiftedOptions&>(*copy);
      const auto values = read_options(groups[g].value("options", json()));
      for (const auto& option : given.list()) {
        // It says nothing of what is remembered: a state without it will do.
        if (option.name() == "check_gradients") continue;
        TORCH_CHECK(values.contains(option.name()), "option ", option.name(), " is missing");
      }
      given.list().assign(values, name());
      given.check();
    } catch (const c10::Error& error) {
      TORCH_CHECK(false, "optimizer state: param group ", g, ": ", error.what_without_backtrace());
    }
    options.push_back(std::move(copy));
  }
  const auto& symmetries = saved["symmetries"];
  const auto gauges = symmetries.is_object() ? symmetries.value("gauges", json()) : json();
  const auto& own_gauges = own["symmetries"]["gauges"];
  TORCH_CHECK(gauges.is_array() && gauges.size() == own_gauges.size(), "optimizer state has ",
              gauges.size(), " gauges, the optimizer ", own_gauges.size());
  for (size_t k = 0; k < own_gauges.size(); ++k) {
    if (gauges[k] == own_gauges[k]) continue;
    // A name and a place tell more than the first entry in which two gauges differ.
    auto what = difference(gauges[k], own_gauges[k], "it");
    for (const auto* place : {"/treatment/placement", "/gauge/name"}) {
      const json::json_pointer at(place);
      if (!gauges[k].is_object() || !gauges[k].contains(at)) continue;
      if (gauges[k][at] == own_gauges[k][at]) continue;
      what = difference(gauges[k][at], own_gauges[k][at], "its " + at.back());
    }
    TORCH_CHECK(false, "optimizer state: gauge ", k, " (",
                own_gauges[k]["gauge"]["name"].get<std::string>(), "): ", what);
  }
  TORCH_CHECK(saved["symmetries"] == own["symmetries"],
              "optimizer state: other gauges were not bound than here");
  // The options decide what state there is.
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    auto before = param_groups_[g].options().clone();
    param_groups_[g].set_options(std::move(options[g]));
    options[g] = std::move(before);
  }
  try {
    load_tensors(state.tensors);
  } catch (...) {
    for (size_t g = 0; g < param_groups_.size(); ++g) {
      param_groups_[g].set_options(std::move(options[g]));
    }
    throw;
  }
}

void LiftedOptimizer::load_tensors(const std::map<std::string, at::Tensor>& tensors, Load mode) {
  const bool moves = mode == Load::copy || mode == Load::resume;
  Loader loader(tensors, mode == Load::adopt || mode == Load::resume);
  const auto& plan = system_->plan();
  std::vector<std::pair<size_t, std::unique_ptr<LiftedParamState>>> loaded;
  for (size_t t = 0; t < plan.tensors.size(); ++t) {
    const auto& tensor = plan.tensors[t];
    const auto key_of = [&](const std::string& field) {
      return StateSlot{StateSlot::Owner::parameter, t, tensor.name, field, nullptr}.key();
    };
    // Shapes and types without memory: a tensor on the meta device stands for the parameter.
    auto view = view_of(t);
    view.parameter = view.parameter.detach().to(at::kMeta);
    auto fresh = make_state(view, options_of(tensor.param_group));
    const auto slots = fresh->tensors();
    const bool is_there = loader.has(key_of("step")) ||
                          std::any_of(slots.begin(), slots.end(), [&](const auto& slot) {
                            return loader.has(key_of(slot.first));
                          });
    if (!is_there) continue;  // never stepped
    loader.replace(key_of("step"), &fresh->step.tensor());
    for (const auto& [field, slot] : slots) {
      if (slot->defined()) {
        loader.replace(key_of(field), slot, slot->sizes(), slot->scalar_type(),
                       tensor.tensor.device());
      } else if (loader.has(key_of(field))) {
        // Not in use with the present options, and kept for when they change back.
        loader.replace(key_of(field), slot, tensor.tensor.sizes(), view.compute_type(),
                       tensor.tensor.device());
      }
    }
    loaded.emplace_back(t, std::move(fresh));
  }
  // A state of an optimizer that makes its moves after the step has none pending.
  const bool has_pending = std::any_of(tensors.begin(), tensors.end(),
                                       [](const auto& entry) { return is_pending(entry.first); });
  for (auto& slot : state_slots()) {
    if (slot.owner == StateSlot::Owner::parameter) continue;
    if (has_pending || !is_pending(slot.field)) loader.replace(slot.key(), slot.tensor);
  }
  for (const auto& gauge : coordinate_system().plan().gauges) {
    for (const auto* field : {"element", "target"}) {
      if (!placement_) break;
      const auto key =
          StateSlot{StateSlot::Owner::gauge, 0, gauge.gauge.name, field, nullptr}.key();
      const auto found = tensors.find(key);
      if (found == tensors.end()) continue;
      const auto& first = coordinate_system().plan().tensors[gauge.legs.front().tensor];
      const auto why = unusable(gauge.gauge, field, found->second, first.tensor.scalar_type());
      TORCH_CHECK(why.empty(), "optimizer state '", key, "' ", why);
    }
  }
  loader.check_all_used();
  if (mode == Load::check) return;
  // Some load an optimizer's own state into it, to move it to another device: it is of these weights.
  const auto own_slots = state_slots();
  const bool is_own = std::all_of(own_slots.begin(), own_slots.end(), [&](const StateSlot& slot) {
    return slot.owner != StateSlot::Owner::gauge ||
           (slot.field != "element" && slot.field != "original") ||
           at::equal(tensors.at(slot.key()).to(slot.tensor->device()), *slot.tensor);
  });
  if (placement_ && moves && !is_own && versions() == versions_) {
    // These are weights that this optimizer has placed; the state that is loaded knows nothing of that.
    placement_->to_original_();
    put_back_(grouped_parameters());
  }
  loader.commit();
  state_.clear();
  for (auto& [t, fresh] : loaded) {
    state_[plan.tensors[t].tensor.unsafeGetTensorImpl()] = std::move(fresh);
  }
  make_states_();
  if (!placement_) return;
  found_ = {};
  if (!has_pending) placement_->forget_pending_();
  placement_->loaded();
  is_loaded_ = moves;
  loaded_original_ = placement_->is_original();
  if (moves) placement_->to_canonical_();
  versions_ = versions();
}

void LiftedOptimizer::save(torch::serialize::OutputArchive& archive) const {
  const auto state = state_dict();
  archive.write(kDescriptionKey, c10::IValue(state.description));
  for (const auto& [key, tensor] : state.tensors) archive.write("tensor/" + key, tensor);
}

void LiftedOptimizer::load(torch::serialize::InputArchive& archive) {
  OptimizerState state;
  c10::IValue text;
  TORCH_CHECK(archive.try_read(kDescriptionKey, text) && text.isString(), "the archive holds no ",
              name(), " state");
  state.description = text.toStringRef();
  for (const auto& key : archive.keys()) {
    if (key.rfind("tensor/", 0) == 0) archive.read(key, state.tensors[key.substr(7)]);
  }
  load_state_dict(state);
}

}  // namespace ddc
