#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/autograd/python_variable.h>

#include <map>
#include <memory>
#include <sstream>

#include "bindings.h"
#include "ddc/discover/symmetry_group.h"
#include "ddc/optim/ddc_adam.h"
#include "ddc/optim/ddc_muon.h"

namespace ddc::python {
namespace {

using Values = std::map<std::string, double>;
using ParamGroup = torch::optim::OptimizerParamGroup;

/// Options that have all their values from Python.
template <class Options>
std::unique_ptr<Options> options_of(const Values& values) {
  auto options = std::make_unique<Options>();
  options->assign(values);
  return options;
}

template <class Optimizer, class Options>
std::unique_ptr<LiftedOptimizer> make(const std::vector<std::vector<at::Tensor>>& groups,
                                      const std::vector<Values>& options, const Parameters& names,
                                      std::vector<Gauge> gauges) {
  std::vector<ParamGroup> param_groups;
  for (size_t g = 0; g < groups.size(); ++g) {
    param_groups.emplace_back(groups[g], options_of<Options>(options[g]));
  }
  return std::make_unique<Optimizer>(param_groups, names, std::move(gauges));
}

/// A lifted optimizer whose options and state are torch.optim's dictionaries. Those are what counts:
/// they are looked at before every step, and loaded where they are not what the last step left.
class Core {
 public:
  Core(const std::string& kind, const std::vector<NamedTensors>& groups,
       const std::vector<Values>& options, const SymmetryGroup* symmetries) {
    std::vector<std::vector<at::Tensor>> tensors(groups.size());
    Parameters names;
    for (size_t g = 0; g < groups.size(); ++g) {
      for (const auto& [name, tensor] : groups[g]) {
        tensors[g].push_back(tensor);
        names.add(name, tensor);
      }
    }
    auto gauges = symmetries == nullptr ? std::vector<Gauge>{} : symmetries->gauges();
    optimizer_ = kind == "adam" ? make<DDCAdam, DDCAdamOptions>(tensors, options, names, gauges)
                                : make<DDCMuon, DDCMuonOptions>(tensors, options, names, gauges);
  }

  /// `state` is torch.optim's mapping from the objects `parameters` to dictionaries.
  void step(const std::vector<Values>& options, const py::object& state,
            const py::list& parameters) {
    for (size_t g = 0; g < options.size(); ++g) optimizer_->set_options(g, options[g]);
    pull(state, parameters);
    {
      const py::gil_scoped_release unlocked;
      optimizer_->step();
    }
    push(state, parameters);
  }

  /// Throws unless `state` can be loaded.
  void check(const py::object& state, const py::list& parameters) { load(state, parameters); }

  const LiftedOptimizer& optimizer() const { return *optimizer_; }

 private:
  static std::string key_of(const StateSlot& slot) {
    return slot.scope.rfind("param.", 0) == 0 ? slot.field : slot.scope + slot.field;
  }

  static bool holds(const StateSlot& slot, const at::Tensor& tensor) {
    if (slot.count == nullptr) return slot.tensor->is_same(tensor);
    return tensor.numel() == 1 && tensor.item<int64_t>() == *slot.count;
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
    if (given == 0) return optimizer_->reset_state();
    size_t same = 0;
    for (const auto& slot : optimizer_->state_slots()) {
      const auto& entry = entries[slot.parameter];
      if (slot.count == nullptr && !slot.tensor->defined()) continue;
      if (entry.is_none()) break;
      const auto value = py::reinterpret_steal<py::object>(
          PyObject_GetItem(entry.ptr(), py::str(key_of(slot)).ptr()));
      if (!value) {
        PyErr_Clear();
        break;
      }
      if (!THPVariable_Check(value.ptr()) || !holds(slot, THPVariable_Unpack(value.ptr()))) break;
      ++same;
    }
    if (same != given) load(state, parameters);
  }

  void load(const py::object& state, const py::list& parameters) {
    const auto table = optimizer_->parameter_table();
    std::map<std::string, at::Tensor> tensors;
    size_t index = 0;
    for (const auto& [name, tensor] : table) {
      const auto entries = entries_of(state, parameters[index++]);
      if (entries.is_none()) continue;
      for (const auto& [key, value] : entries.cast<py::dict>()) {
        const auto field = key.cast<std::string>();
        TORCH_CHECK_TYPE(THPVariable_Check(value.ptr()), "optimizer state '", field, "' of '", name,
                         "' must be a tensor, is ",
                         py::str(py::type::of(value)).cast<std::string>());
        const bool shared = field.rfind("gauge.", 0) == 0 || field.rfind("radial.", 0) == 0;
        tensors[shared ? field : "param." + name + "." + field] = THPVariable_Unpack(value.ptr());
      }
    }
    optimizer_->load_tensors(tensors);
  }

  void push(const py::object& state, const py::list& parameters) {
    for (const auto& slot : optimizer_->state_slots()) {
      if (slot.count == nullptr && !slot.tensor->defined()) continue;
      const py::object entry = state[parameters[slot.parameter]];
      const auto key = py::str(key_of(slot));
      const auto known = py::reinterpret_borrow<py::object>(PyDict_GetItem(entry.ptr(), key.ptr()));
      if (known && THPVariable_Check(known.ptr())) {
        const auto& tensor = THPVariable_Unpack(known.ptr());
        if (holds(slot, tensor)) continue;
        if (slot.count != nullptr && tensor.scalar_type() == at::kLong) {
          at::Tensor(tensor).fill_(*slot.count);
          continue;
        }
      }
      const auto value =
          slot.count != nullptr ? at::scalar_tensor(*slot.count, at::kLong) : *slot.tensor;
      entry[key] = value;
    }
  }

  std::unique_ptr<LiftedOptimizer> optimizer_;
};

}  // namespace

void bind_optimizer(py::module_& module) {
  py::class_<Core>(module, "Core")
      .def(py::init<const std::string&, const std::vector<NamedTensors>&,
                    const std::vector<Values>&, const SymmetryGroup*>(),
           py::arg("kind"), py::arg("groups"), py::arg("options"), py::arg("symmetries"))
      .def("step", &Core::step)
      .def("check", &Core::check)
      .def("gauge_coordinate",
           [](const Core& core, const std::string& gauge) {
             return core.optimizer().gauge_coordinate(gauge);
           })
      .def("report", [](const Core& core) {
        std::ostringstream text;
        text << core.optimizer().report();
        return text.str();
      });
  module.def("check_options", [](const std::string& kind, const Values& values) {
    if (kind == "adam") {
      options_of<DDCAdamOptions>(values);
    } else {
      options_of<DDCMuonOptions>(values);
    }
  });
}

}  // namespace ddc::python
