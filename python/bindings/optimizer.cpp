#include <torch/csrc/autograd/python_variable.h>

#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <utility>

#include "bindings.h"
#include "ddc/discover/symmetry_group.h"
#include "ddc/optim/lifted.h"
#include "ddc/optim/recipe.h"
#include "ddc/optim/registry.h"
#include "options.h"

namespace ddc::python {
namespace {

using ParamGroup = torch::optim::OptimizerParamGroup;

// ---- A base rule that is a Python function ---------------------------------------------------------

/// What the construction needs of the options of a rule in Python; the rule reads the others itself.
struct PythonRuleOptions {
  double lr = 1e-3;
  double weight_decay = 0;
  bool maximize = false;
  /// Place among the param groups.
  int64_t group = 0;

  OptionList options() {
    return {{"lr", lr, "learning rate", at_least(0)},
            {"weight_decay", weight_decay, "decoupled weight decay", at_least(0)},
            {"maximize", maximize, "ascend"},
            {"group", group, "param group", at_least(0)}};
  }
};

struct PythonRule {
  using Options = PythonRuleOptions;
};
using PythonOptions = LiftedRuleOptions<PythonRule>;

class PythonState : public LiftedParamState {
 public:
  explicit PythonState(std::vector<std::pair<std::string, at::Tensor>> given)
      : given_(std::move(given)) {}

  std::unique_ptr<torch::optim::OptimizerParamState> clone() const override {
    return std::make_unique<PythonState>(*this);
  }
  StateTensors tensors() override {
    StateTensors result;
    for (auto& [name, tensor] : given_) result.emplace_back(name, &tensor);
    return result;
  }
  void change_basis(const BasisChange& /*change*/) override {}

 private:
  std::vector<std::pair<std::string, at::Tensor>> given_;
};

/// Lifts `rule(gradient, state, step, group)`, which returns the displacement, and `init(tensor)`, which
/// returns the tensors of the state by name. Both are called under the interpreter's lock.
class PythonOptimizer : public LiftedOptimizer {
 public:
  PythonOptimizer(std::string name, py::function rule, py::function init,
                  const std::vector<ParamGroup>& groups, const Parameters& names,
                  std::vector<Gauge> gauges, Treatments treatments)
      : LiftedOptimizer(std::make_unique<PythonOptions>()),
        name_(std::move(name)),
        rule_(std::move(rule)),
        init_(std::move(init)) {
    construct(groups, names, std::move(gauges), std::move(treatments));
  }
  ~PythonOptimizer() override {  // NOLINT(bugprone-exception-escape): the lock does not throw
    const py::gil_scoped_acquire lock;
    rule_ = py::function();
    init_ = py::function();
  }

 protected:
  std::string name() const override { return name_; }
  Abilities abilities() const override { return {.throws = true}; }
  void check(const TensorView& /*view*/, const LiftedOptions& /*options*/) const override {}

  std::unique_ptr<LiftedParamState> make_state(const TensorView& view,
                                               const LiftedOptions& /*options*/) const override {
    const py::gil_scoped_acquire lock;
    const auto made = init_(view.zeros());
    TORCH_CHECK_TYPE(py::isinstance<py::dict>(made), name_,
                     ": init must return a dict of tensors, returned ",
                     py::repr(made).cast<std::string>());
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (const auto& [key, value] : made.cast<py::dict>()) {
      TORCH_CHECK_TYPE(THPVariable_Check(value.ptr()), name_, ": init must return tensors, '",
                       py::str(key).cast<std::string>(), "' is none");
      tensors.emplace_back(key.cast<std::string>(), THPVariable_Unpack(value.ptr()));
    }
    return std::make_unique<PythonState>(std::move(tensors));
  }

  at::Tensor rule(const at::Tensor& gradient, const TensorView& view, LiftedParamState& state,
                  const LiftedOptions& options) const override {
    const py::gil_scoped_acquire lock;
    py::dict tensors;
    for (const auto& [field, tensor] : state.tensors()) tensors[py::str(field)] = *tensor;
    const auto& own = static_cast<const PythonOptions&>(options).get();
    const auto result = rule_(gradient, tensors, state.step.get(), own.group);
    TORCH_CHECK_TYPE(THPVariable_Check(result.ptr()), name_, ": the rule returned ",
                     py::repr(result).cast<std::string>(), " for '", view.name,
                     "', must return the displacement, a tensor");
    const auto& displacement = THPVariable_Unpack(result.ptr());
    TORCH_CHECK_VALUE(displacement.sizes() == gradient.sizes(), name_,
                      ": the rule returned a tensor of shape ", displacement.sizes(), " for '",
                      view.name, "' of shape ", gradient.sizes());
    return displacement.detach().to(gradient.options());
  }
  at::Tensor momentum(const at::Tensor& /*gradient*/, LiftedParamState& /*state*/,
                      const LiftedOptions& /*options*/) const override {
    return {};
  }
  at::Tensor displacement(const at::Tensor& /*momentum*/, const TensorView& /*view*/,
                          const LiftedOptions& /*options*/) const override {
    return {};
  }

 private:
  std::string name_;
  py::function rule_;
  py::function init_;
};

// ---- The optimizer behind a torch.optim.Optimizer ---------------------------------------------------

}  // namespace

std::unique_ptr<LiftedOptimizer> make_optimizer(const py::object& rule,
                                                const std::vector<NamedTensors>& groups,
                                                const std::vector<py::dict>& options,
                                                std::vector<Gauge> gauges,
                                                const std::string& recipe,
                                                const py::dict& treatment, bool placed) {
  Parameters names;
  for (const auto& group : groups) {
    for (const auto& [name, tensor] : group) names.add(name, tensor);
  }
  const bool in_python = py::isinstance<py::tuple>(rule);
  const auto name =
      in_python ? rule.cast<py::tuple>()[0].cast<std::string>() : rule.cast<std::string>();
  auto prepared = ddc::recipe(recipe, name, std::move(gauges));
  auto treatments = treatments_of(prepared.treatments, treatment);
  if (placed) treatments.already_placed();
  const auto param_groups = [&](const auto& make_options) {
    std::vector<ParamGroup> result;
    for (size_t g = 0; g < groups.size(); ++g) {
      std::vector<at::Tensor> tensors;
      for (const auto& each : groups[g]) tensors.push_back(each.second);
      std::unique_ptr<LiftedOptions> own = make_options();
      own->list().assign(option_values(options[g]), name);
      result.emplace_back(std::move(tensors), std::move(own));
    }
    return result;
  };
  if (in_python) {
    const auto parts = rule.cast<py::tuple>();
    return std::make_unique<PythonOptimizer>(
        name, parts[1].cast<py::function>(), parts[2].cast<py::function>(),
        param_groups([] { return std::make_unique<PythonOptions>(); }), names,
        std::move(prepared.gauges), std::move(treatments));
  }
  const auto& registered = registered_rule(name);
  return registered.make(param_groups(registered.options), names, std::move(prepared.gauges),
                         std::move(treatments));
}

namespace {

/// A lifted optimizer whose options and state are torch.optim's dictionaries. Those are what counts:
/// they are looked at before every step, and loaded where they are not what the last step left. One thread
/// at a time: others get an error while a step is being made.
class Core {
 public:
  explicit Core(std::unique_ptr<LiftedOptimizer> optimizer) : optimizer_(std::move(optimizer)) {
    bound_at_ = checksums();
  }

  /// `state` is torch.optim's mapping from the objects `parameters` to dictionaries. `options` are those
  /// of the param groups whose options have changed.
  void step(const std::map<size_t, py::dict>& options, const py::object& state,
            const py::list& parameters) {
    const auto lock = alone();
    for (const auto& [group, values] : options) {
      optimizer_->set_options(group, option_values(values));
    }
    pull(state, parameters);
    {
      const Unlocked unlocked;
      optimizer_->step();
    }
    put(state, parameters, /*missing=*/false);
  }

  /// Throws unless `state` can be loaded with these options.
  void check(const std::vector<py::dict>& options, const py::object& state,
             const py::list& parameters) {
    const auto lock = alone();
    std::vector<OptionValues> own;
    for (const auto& group : optimizer_->param_groups()) {
      own.push_back(dynamic_cast<const LiftedOptions&>(group.options()).values());
    }
    const auto restore = [&] {
      for (size_t g = 0; g < own.size(); ++g) optimizer_->set_options(g, own[g]);
    };
    try {
      for (size_t g = 0; g < options.size(); ++g) {
        optimizer_->set_options(g, option_values(options[g]));
      }
      load(state, parameters, LiftedOptimizer::Load::check);
    } catch (...) {
      restore();
      throw;
    }
    restore();
  }

  /// Puts the state into the dictionaries, or (`missing`) what they do not have.
  void push(const py::object& state, const py::list& parameters, bool missing) {
    const auto lock = alone();
    put(state, parameters, missing);
  }

  /// Type and device of the tensors of the state, by place of the parameter and key.
  py::list slots() {
    const auto lock = alone();
    py::list result;
    for (const auto& slot : optimizer_->state_slots()) {
      const py::object tensor = py::cast(*slot.tensor);
      result.append(py::make_tuple(slot.parameter, slot.key_in_parameter(), tensor.attr("dtype"),
                                   tensor.attr("device")));
    }
    return result;
  }

  /// What `read` returns of the optimizer.
  template <class Read>
  auto read(const Read& read) const {
    const auto lock = alone();
    return read(std::as_const(*optimizer_));
  }

  /// Loads a state, and moves weights that are placed to the place that it knows.
  void resume(const py::object& state, const py::list& parameters) {
    const auto lock = alone();
    is_fresh_ = false;
    load(state, parameters, LiftedOptimizer::Load::resume);
  }

  void move(const py::object& state, const py::list& parameters, bool to_original) {
    const auto lock = alone();
    pull(state, parameters);
    const Unlocked unlocked;
    to_original ? optimizer_->to_original_() : optimizer_->to_canonical_();
  }

  void settle(const py::object& state, const py::list& parameters) {
    const auto lock = alone();
    pull(state, parameters);
    const Unlocked unlocked;
    optimizer_->settle_();
  }

 private:
  /// Not a lock to wait for: whoever has it may be waiting for the interpreter's.
  std::unique_lock<std::mutex> alone() const {
    std::unique_lock<std::mutex> lock(stepping_, std::try_to_lock);
    TORCH_CHECK(lock.owns_lock(), "another thread is in the middle of a step of this optimizer");
    return lock;
  }

  void put(const py::object& state, const py::list& parameters, bool missing) {
    for (const auto& slot : optimizer_->state_slots()) {
      const py::object entry = state[parameters[slot.parameter]];
      const auto key = py::str(slot.key_in_parameter());
      const auto known = py::reinterpret_borrow<py::object>(PyDict_GetItem(entry.ptr(), key.ptr()));
      if (known && (missing || (THPVariable_Check(known.ptr()) &&
                                THPVariable_Unpack(known.ptr()).is_same(*slot.tensor)))) {
        continue;
      }
      entry[key] = *slot.tensor;
    }
  }

  /// The dictionary of a parameter, or None.
  static py::object entries_of(const py::object& state, const py::handle& parameter) {
    return state.attr("get")(parameter);
  }

  void pull(const py::object& state, const py::list& parameters) {
    std::vector<py::object> entries;
    size_t given = 0;
    for (const auto& parameter : parameters) {
      entries.push_back(entries_of(state, parameter));
      if (!entries.back().is_none()) given += py::len(entries.back());
    }
    const bool is_fresh = std::exchange(is_fresh_, false);
    if (given == 0) return reset();
    size_t same = 0;
    for (const auto& slot : optimizer_->state_slots()) {
      const auto& entry = entries[slot.parameter];
      if (entry.is_none()) break;
      const auto* value =
          PyDict_GetItemString(entry.ptr(), slot.key_in_parameter().c_str());  // borrowed
      if (value == nullptr || !THPVariable_Check(const_cast<PyObject*>(value)) ||
          !THPVariable_Unpack(const_cast<PyObject*>(value)).is_same(*slot.tensor)) {
        break;
      }
      ++same;
    }
    if (same != given) {
      load(state, parameters, LiftedOptimizer::Load::adopt);
    } else if (is_fresh && checksums() != bound_at_) {
      // Weights were loaded after the optimizer was made: what was read off the others is read again.
      reset();
    }
  }

  void reset() {
    const Unlocked unlocked;  // gradients may have to be moved, which asks for autograd
    optimizer_->reset_state();
  }

  void load(const py::object& state, const py::list& parameters, LiftedOptimizer::Load mode) {
    const auto table = optimizer_->parameter_table();
    std::map<std::string, at::Tensor> tensors;
    std::map<std::string, std::string> shared;
    for (const auto& slot : optimizer_->state_slots()) {
      if (slot.owner != StateSlot::Owner::parameter) shared[slot.key_in_parameter()] = slot.key();
    }
    size_t index = 0;
    for (const auto& [name, tensor] : table) {
      const auto entries = entries_of(state, parameters[index]);
      if (!entries.is_none()) {
        for (const auto& [key, value] : entries.cast<py::dict>()) {
          const auto field = key.cast<std::string>();
          TORCH_CHECK_TYPE(THPVariable_Check(value.ptr()), "optimizer state '", field, "' of '",
                           name, "' must be a tensor, is ",
                           py::str(py::type::of(value)).cast<std::string>());
          const auto found = shared.find(field);
          const StateSlot own{StateSlot::Owner::parameter, index, name, field, nullptr};
          tensors[found != shared.end() ? found->second : own.key()] =
              THPVariable_Unpack(value.ptr());
        }
      }
      ++index;
    }
    optimizer_->load_tensors(tensors, mode);
  }

  /// Sums that tell whether weights have changed.
  std::vector<double> checksums() const {
    std::vector<double> sums;
    if (optimizer_->gauges().empty()) return sums;
    const at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : optimizer_->parameter_table()) {
      sums.push_back(tensor.detach().sum(at::kDouble).item<double>());
      sums.push_back(tensor.detach().abs().sum(at::kDouble).item<double>());
    }
    return sums;
  }

  std::unique_ptr<LiftedOptimizer> optimizer_;
  mutable std::mutex stepping_;
  /// Nothing was stepped or loaded since the gauges were bound to weights with these sums.
  bool is_fresh_ = true;
  std::vector<double> bound_at_;
};

}  // namespace

void bind_optimizer(py::module_& module) {
  py::class_<GaugeReport>(module, "GaugeReport")
      .def_readonly("name", &GaugeReport::name)
      .def_readonly("kind", &GaugeReport::kind)
      .def_readonly("group", &GaugeReport::group)
      .def_readonly("coordinates", &GaugeReport::coordinates)
      .def_readonly("tensors", &GaugeReport::tensors)
      .def_readonly("channels", &GaugeReport::channels)
      .def_readonly("dimension", &GaugeReport::dimension)
      .def_readonly("degenerate_channels", &GaugeReport::degenerate_channels)
      .def_readonly("imbalance", &GaugeReport::imbalance)
      .def_readonly("frames_recomputed", &GaugeReport::frames_recomputed);

  py::class_<StepCost>(module, "StepCost")
      .def_readonly("bytes", &StepCost::bytes)
      .def_readonly("flops", &StepCost::flops)
      .def_readonly("double_flops", &StepCost::double_flops)
      .def_readonly("steps", &StepCost::steps)
      .def_readonly("seconds", &StepCost::seconds)
      .def_readonly("share", &StepCost::share);

  py::class_<Report>(module, "Report")
      .def_readonly("cost", &Report::cost)
      .def_readonly("gauges", &Report::gauges)
      .def_readonly("tensors", &Report::tensors)
      .def_readonly("gauged_tensors", &Report::gauged_tensors)
      .def_property_readonly("place", [](const Report& report) { return to_string(report.place); })
      .def_readonly("why_in_place", &Report::why_in_place)
      .def_property_readonly("dimension", &Report::dimension)
      .def_property_readonly("degenerate_channels", &Report::degenerate_channels)
      .def_property_readonly("largest_imbalance", &Report::largest_imbalance)
      .def("__str__", [](const Report& report) {
        std::ostringstream text;
        text << report;
        return text.str();
      });

  py::class_<Core>(module, "Core")
      .def(py::init([](const py::object& rule, const std::vector<NamedTensors>& groups,
                       const std::vector<py::dict>& options, std::vector<Gauge> gauges,
                       const std::string& recipe, const py::dict& treatment, bool placed) {
             return std::make_unique<Core>(make_optimizer(rule, groups, options, std::move(gauges),
                                                          recipe, treatment, placed));
           }),
           py::arg("rule"), py::arg("groups"), py::arg("options"), py::arg("gauges"),
           py::arg("recipe"), py::arg("treatment"), py::arg("placed") = false)
      .def("step", &Core::step, py::arg("options"), py::arg("state"), py::arg("parameters"))
      .def("check", &Core::check, py::arg("options"), py::arg("state"), py::arg("parameters"))
      .def("push", &Core::push, py::arg("state"), py::arg("parameters"), py::arg("missing"))
      .def("slots", &Core::slots)
      .def("resume", &Core::resume, py::arg("state"), py::arg("parameters"))
      .def("move", &Core::move, py::arg("state"), py::arg("parameters"), py::arg("to_original"))
      .def("settle", &Core::settle, py::arg("state"), py::arg("parameters"))
      .def_property_readonly("is_placed",
                             [](const Core& core) {
                               return core.read([](const auto& own) { return own.is_placed(); });
                             })
      .def("symmetries",
           [](const Core& core) {
             return core.read([](const auto& own) { return own.symmetries(); });
           })
      .def("gauges",
           [](const Core& core) { return core.read([](const auto& own) { return own.gauges(); }); })
      .def(
          "treatment",
          [](const Core& core, const std::string& gauge) {
            auto treatment = core.read([&](const auto& own) { return own.treatment(gauge); });
            py::dict result;
            for (const auto& option : treatment.options()) {
              result[py::str(option.name())] = to_python(option, option.get());
            }
            return result;
          },
          py::arg("gauge"))
      .def(
          "gauge_coordinate",
          [](const Core& core, const std::string& gauge) {
            return core.read([&](const auto& own) { return own.gauge_coordinate(gauge); });
          },
          py::arg("gauge"))
      .def("report", [](const Core& core) {
        return core.read([](const auto& own) { return own.report(); });
      });

  module.def("rules", [] {
    py::list result;
    for (const auto& rule : registered_rules()) {
      py::dict each;
      each["name"] = rule.name;
      each["help"] = rule.help;
      each["options"] = declarations(rule.options()->list());
      result.append(each);
    }
    return result;
  });
  module.def("treatment_options", [] {
    Treatment treatment;
    return declarations(treatment.options());
  });
  module.def("recipes", &recipe_names);
  module.def(
      "recipe_options",
      [](const std::string& name, const std::string& rule) {
        py::dict result;
        for (const auto& [option, value] : recipe(name, rule, {}).options) {
          result[py::str(option)] =
              std::visit([](const auto& each) -> py::object { return py::cast(each); }, value);
        }
        return result;
      },
      py::arg("recipe"), py::arg("rule"));
  module.def(
      "check_options",
      [](const std::string& rule, const py::dict& values) {
        const auto options = registered_rule(rule).options();
        options->list().assign(option_values(values), rule);
        options->check();
      },
      py::arg("rule"), py::arg("values"));
  module.def("nearest", &nearest, py::arg("name"), py::arg("names"));
}

}  // namespace ddc::python
