// The state of a lifted optimizer as name-keyed values: state_dict, load_state_dict and LibTorch's
// archives.

#include <ATen/ATen.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "ddc/optim/lifted.h"

namespace ddc {

using nlohmann::json;

namespace {

constexpr const char* kDescriptionKey = "description";

struct Field {
  std::string name;
  at::Tensor* tensor;
};

std::vector<Field> fields(GaugeState& state) {
  return {{"log_unit", &state.log_unit},
          {"target", &state.target},
          {"held", &state.held},
          {"bound", &state.bound},
          {"known", &state.known},
          {"frame", &state.frame},
          {"eigenvalues", &state.eigenvalues}};
}

std::vector<Field> fields(ScalarMoments& moments) {
  return {{"first", &moments.first}, {"second", &moments.second}};
}

json describe(const Gauge& gauge, const GaugePlan& plan) {
  json legs = json::array();
  for (const auto& leg : gauge.legs) {
    legs.push_back({{"tensor", leg.tensor},
                    {"axis", leg.axis},
                    {"exponent", leg.exponent},
                    {"offset", leg.offset},
                    {"channel_of", leg.channel_of}});
    if (leg.head_size > 0) legs.back()["head_size"] = leg.head_size;
    if (leg.through.empty()) continue;
    legs.back()["through"] = {{"gain", leg.through.gain},
                              {"gain_offset", leg.through.gain_offset},
                              {"shift", leg.through.shift},
                              {"bias", leg.through.bias}};
  }
  json result = {{"name", gauge.name},
                 {"action", to_string(gauge.action)},
                 {"coordinates", to_string(plan.coordinates)},
                 {"hold", to_string(plan.hold)},
                 {"vertical", to_string(gauge.vertical)},
                 {"radial", to_string(gauge.radial)},
                 {"channels", gauge.channels},
                 {"legs", legs}};
  if (gauge.mixes()) {
    result["block"] = gauge.block;
    result["fixes_ones"] = gauge.fixes_ones;
    result["second_moment"] = to_string(gauge.second_moment);
    result["tau"] = gauge.tau;
    result["frame_drift"] = gauge.frame_drift;
    result["frame_interval"] = gauge.frame_interval;
    result["procrustes"] = gauge.procrustes;
    result["rebalance_above"] = gauge.rebalance_above;
  }
  return result;
}

/// Collects what a load will do, so that nothing is done before everything has been checked.
class Loader {
 public:
  explicit Loader(const std::map<std::string, at::Tensor>& tensors) : tensors_(tensors) {}

  const at::Tensor* find(const std::string& key) {
    const auto found = tensors_.find(key);
    if (found == tensors_.end()) return nullptr;
    used_.insert(key);
    return &found->second;
  }

  /// Replaces `slot` by the tensor called `key`, which must have the shape and type given.
  void replace(const std::string& key, at::Tensor* slot, at::IntArrayRef shape, at::ScalarType type,
               at::Device device) {
    const auto* tensor = find(key);
    TORCH_CHECK(tensor != nullptr, "optimizer state has no tensor '", key, "'");
    TORCH_CHECK(tensor->sizes() == shape && tensor->scalar_type() == type, "optimizer state '", key,
                "' is of type ", tensor->scalar_type(), " and shape ", tensor->sizes(),
                ", expected ", type, " and ", shape);
    actions_.push_back([slot, tensor, device] { *slot = tensor->to(device).clone(); });
  }

  int64_t count(const std::string& key, int64_t* slot) {
    const auto* tensor = find(key);
    TORCH_CHECK(tensor != nullptr, "optimizer state has no tensor '", key, "'");
    TORCH_CHECK(tensor->scalar_type() == at::kLong && tensor->numel() == 1, "optimizer state '",
                key, "' must be one int64, is ", tensor->scalar_type(), " of shape ",
                tensor->sizes());
    const auto value = tensor->item<int64_t>();
    TORCH_CHECK(value >= 0, "optimizer state '", key, "' must be >= 0, is ", value);
    actions_.push_back([slot, value] { *slot = value; });
    return value;
  }

  /// Moments are there once the rule has run.
  void replace(const std::string& key, ScalarMoments* slot, at::IntArrayRef shape,
               at::Device device) {
    const bool has_run = count(key + "step", &slot->step) > 0;
    for (const auto& field : fields(*slot)) {
      if (has_run) {
        replace(key + field.name, field.tensor, shape, at::kDouble, device);
      } else {
        actions_.push_back([tensor = field.tensor] { *tensor = at::Tensor(); });
      }
    }
  }

  void commit() {
    for (const auto& [key, tensor] : tensors_) {
      TORCH_CHECK(used_.count(key) > 0, "optimizer state holds a tensor '", key,
                  "', which this optimizer does not know");
    }
    for (const auto& action : actions_) action();
  }

 private:
  const std::map<std::string, at::Tensor>& tensors_;
  std::vector<std::function<void()>> actions_;
  std::set<std::string> used_;
};

std::string param_key(const TensorPlan& tensor) { return "param." + tensor.name + "."; }
std::string gauge_key(const GaugePlan& gauge) { return "gauge." + gauge.gauge.name + "."; }
std::string radial_key(const Plan& plan, const RadialMode& mode) {
  return "radial." + plan.gauges[mode.gauge].gauge.name + "." + std::to_string(mode.nodes.front()) +
         ".";
}

at::Tensor number(int64_t value) { return at::scalar_tensor(value, at::kLong); }

}  // namespace

std::string LiftedOptimizer::description() const {
  json groups = json::array();
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    json params = json::array();
    for (const auto& tensor : frame_.plan().tensors) {
      if (tensor.param_group == g) params.push_back(tensor.name);
    }
    groups.push_back({{"params", params}, {"options", options_of(g).values()}});
  }
  json gauges = json::array();
  for (size_t k = 0; k < gauges_.size(); ++k) {
    gauges.push_back(describe(gauges_[k], frame_.plan().gauges[k]));
  }
  return json{{"optimizer", name()}, {"version", 1}, {"groups", groups}, {"gauges", gauges}}.dump();
}

std::vector<StateSlot> LiftedOptimizer::state_slots() {
  std::vector<StateSlot> slots;
  const auto& plan = frame_.plan();
  const auto add_moments = [&](size_t parameter, const std::string& scope,
                               const std::string& prefix, ScalarMoments& moments) {
    for (const auto& field : fields(moments)) {
      slots.push_back({parameter, scope, prefix + field.name, field.tensor});
    }
    slots.push_back({parameter, scope, prefix + "step", nullptr, &moments.step});
  };
  for (size_t t = 0; t < plan.tensors.size(); ++t) {
    const auto found = state_.find(plan.tensors[t].tensor.unsafeGetTensorImpl());
    if (found == state_.end()) continue;
    auto& state = static_cast<LiftedParamState&>(*found->second);
    const auto scope = param_key(plan.tensors[t]);
    slots.push_back({t, scope, "step", nullptr, &state.step});
    for (const auto& [field, tensor] : state.tensors()) slots.push_back({t, scope, field, tensor});
  }
  for (size_t k = 0; k < gauges_.size(); ++k) {
    auto& state = frame_.gauge_states()[k];
    const size_t owner = plan.gauges[k].legs.front().tensor;
    const auto scope = gauge_key(plan.gauges[k]);
    for (const auto& field : fields(state)) {
      slots.push_back({owner, scope, field.name, field.tensor});
    }
    add_moments(owner, scope, "vertical.", state.vertical);
    if (gauges_[k].mixes()) {
      slots.push_back({owner, scope, "age", nullptr, &state.age});
      slots.push_back({owner, scope, "recomputed", nullptr, &state.recomputed});
    }
  }
  for (size_t m = 0; m < frame_.radial_states().size(); ++m) {
    const auto& mode = plan.radial_modes[m];
    add_moments(plan.gauges[mode.gauge].legs.front().tensor, radial_key(plan, mode), "",
                frame_.radial_states()[m]);
  }
  return slots;
}

OptimizerState LiftedOptimizer::state_dict() const {
  OptimizerState result;
  result.description = description();
  // The slots are only read.
  for (const auto& slot : const_cast<LiftedOptimizer*>(this)->state_slots()) {
    const auto value = slot.count != nullptr ? number(*slot.count) : *slot.tensor;
    if (value.defined()) result.tensors[slot.scope + slot.field] = value.detach().clone();
  }
  return result;
}

void LiftedOptimizer::reset_state() {
  std::vector<GroupedParameter> parameters;
  for (const auto& tensor : frame_.plan().tensors) {
    parameters.push_back({{tensor.name, tensor.tensor}, tensor.param_group});
  }
  frame_ = Frame(parameters, gauges_);
  state_.clear();
}

void LiftedOptimizer::set_options(size_t group, const std::map<std::string, double>& values) {
  dynamic_cast<LiftedOptions&>(param_groups_.at(group).options()).assign(values);
}

void LiftedOptimizer::load_state_dict(const OptimizerState& state) {
  json saved;
  try {
    saved = json::parse(state.description);
    TORCH_CHECK(saved.at("optimizer") == name(), "optimizer state is that of '",
                saved.at("optimizer").get<std::string>(), "', not of '", name(), "'");
    TORCH_CHECK(saved.at("version") == 1, "optimizer state has version ",
                saved.at("version").dump(), "; this library reads version 1");
  } catch (const json::exception& error) {
    TORCH_CHECK(false, "optimizer state has no readable description: ", error.what());
  }
  const auto own = json::parse(description());
  const auto& groups = saved["groups"];
  TORCH_CHECK(groups.is_array() && groups.size() == param_groups_.size(), "optimizer state has ",
              groups.size(), " param groups, the optimizer ", param_groups_.size());
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    const auto params = groups[g].is_object() ? groups[g].value("params", json()) : json();
    TORCH_CHECK(params == own["groups"][g]["params"], "optimizer state: param group ", g, " holds ",
                params.dump(), ", the optimizer's holds ", own["groups"][g]["params"].dump());
    // Tried out on a copy, so that values that do not pass leave the group's options alone.
    auto copy = param_groups_[g].options().clone();
    try {
      const auto values = groups[g].at("options").get<std::map<std::string, double>>();
      dynamic_cast<LiftedOptions&>(*copy).assign(values);
    } catch (const json::exception& error) {
      TORCH_CHECK(false, "optimizer state: the options of param group ", g,
                  " cannot be read: ", error.what());
    } catch (const c10::Error& error) {
      TORCH_CHECK(false, "optimizer state: param group ", g, ": ", error.what_without_backtrace());
    }
    options.push_back(std::move(copy));
  }
  const auto& gauges = saved["gauges"];
  TORCH_CHECK(gauges.is_array() && gauges.size() == gauges_.size(), "optimizer state has ",
              gauges.size(), " gauges, the optimizer ", gauges_.size());
  for (size_t k = 0; k < gauges_.size(); ++k) {
    TORCH_CHECK(gauges[k] == own["gauges"][k], "optimizer state: gauge ", k, " is ",
                gauges[k].dump(), ", the optimizer's is ", own["gauges"][k].dump());
  }
  load_tensors(state.tensors);
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    param_groups_[g].set_options(std::move(options[g]));
  }
}

void LiftedOptimizer::load_tensors(const std::map<std::string, at::Tensor>& tensors) {
  Loader loader(tensors);
  std::map<void*, std::shared_ptr<LiftedParamState>> loaded;
  for (size_t t = 0; t < frame_.plan().tensors.size(); ++t) {
    const auto& tensor = frame_.plan().tensors[t];
    const auto key = param_key(tensor);
    auto fresh = std::shared_ptr<LiftedParamState>(blank_state(t));
    const auto slots = fresh->tensors();
    const bool has_moments = std::any_of(slots.begin(), slots.end(), [&](const auto& slot) {
      return tensors.count(key + slot.first) > 0;
    });
    if (!has_moments && tensors.count(key + "step") == 0) continue;  // never stepped
    loader.count(key + "step", &fresh->step);
    for (const auto& [field, slot] : slots) {
      if (!slot->defined()) continue;  // the rule does not use it on this tensor
      loader.replace(key + field, slot, slot->sizes(), slot->scalar_type(), tensor.tensor.device());
    }
    loaded[tensor.tensor.unsafeGetTensorImpl()] = std::move(fresh);
  }
  for (size_t k = 0; k < gauges_.size(); ++k) {
    auto& target = frame_.gauge_states()[k];
    const auto key = gauge_key(frame_.plan().gauges[k]);
    const auto shape = target.held.defined() ? target.held.sizes().vec() : std::vector<int64_t>{};
    const auto device = target.held.defined() ? target.held.device() : at::Device(at::kCPU);
    for (const auto& field : fields(target)) {
      if (!field.tensor->defined()) continue;  // a shift has no unit
      loader.replace(key + field.name, field.tensor, field.tensor->sizes(),
                     field.tensor->scalar_type(), device);
    }
    loader.replace(key + "vertical.", &target.vertical, shape, device);
    if (gauges_[k].mixes()) {
      loader.count(key + "age", &target.age);
      loader.count(key + "recomputed", &target.recomputed);
    }
  }
  for (size_t m = 0; m < frame_.radial_states().size(); ++m) {
    const auto& mode = frame_.plan().radial_modes[m];
    auto& moments = frame_.radial_states()[m];
    const auto key = radial_key(frame_.plan(), mode);
    const int64_t channels = gauges_[mode.gauge].channels;
    loader.replace(key, &moments, {channels}, at::kCPU);
  }
  loader.commit();
  state_.clear();
  for (const auto& [key, fresh] : loaded) {
    state_[key] = std::unique_ptr<torch::optim::OptimizerParamState>(fresh->clone());
  }
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
