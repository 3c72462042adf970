#include "ddc/placement.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <map>
#include <set>

#include "bindings.h"
#include "coordinates/coordinate_system.h"
#include "gauge/leg_maps.h"
#include "options.h"
#include "placement/state_values.h"

namespace ddc::python {
namespace {

using State = std::map<std::string, at::Tensor>;

/// What the placement remembers by "GAUGE/FIELD", but for where the weights are.
std::map<std::string, at::Tensor*> named_state(Placement& placement) {
  std::map<std::string, at::Tensor*> result;
  for (const auto& [gauge, field, tensor] : placement.state()) {
    if (field == "original") continue;
    // "anchor.STEPS.TENSOR" is a copy of a tensor, and belongs to no gauge alone.
    const auto end = field.find('.', 7);
    const bool anchor = field.starts_with("anchor.") && end != std::string::npos;
    const auto key =
        anchor ? field.substr(end + 1) + "/anchor" + field.substr(7, end - 7) : gauge + "/" + field;
    result[key] = tensor;
  }
  return result;
}

/// Throws, naming the entry, unless `given` has what the placement remembers: all of it, nothing else,
/// and of the same shapes and types.
void check_state(Placement& placement, const State& given) {
  std::set<std::string> known;
  const auto& plan = placement.coordinate_system().plan();
  for (const auto& [name, own] : named_state(placement)) {
    known.insert(name);
    const auto found = given.find(name);
    TORCH_CHECK_VALUE(found != given.end(), "placement: '", name, "' is missing");
    const auto& tensor = found->second;
    TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "placement: '", name, "' has layout ",
                      tensor.layout(), ", must be a dense tensor");
    TORCH_CHECK_VALUE(tensor.sizes() == own->sizes(), "placement: '", name, "' has shape ",
                      tensor.sizes(), ", must have ", own->sizes());
    TORCH_CHECK_VALUE(tensor.scalar_type() == own->scalar_type(), "placement: '", name,
                      "' is of type ", tensor.scalar_type(), ", must be of ", own->scalar_type());
    TORCH_CHECK_VALUE(!tensor.is_floating_point() || tensor.isfinite().all().item<bool>(),
                      "placement: '", name, "' is not finite");
    TORCH_CHECK_VALUE(tensor.scalar_type() != at::kLong || tensor.min().item<int64_t>() >= 0,
                      "placement: '", name, "' must be >= 0, is ", tensor.min().item<int64_t>());
  }
  for (const auto& gauge : plan.gauges) {
    for (const auto* field : {"element", "target"}) {
      const auto name = gauge.gauge.name + "/" + field;
      const auto found = given.find(name);
      if (found == given.end()) continue;
      const auto type = plan.tensors[gauge.legs.front().tensor].tensor.scalar_type();
      const auto why = unusable(gauge.gauge, field, found->second, type);
      TORCH_CHECK_VALUE(why.empty(), "placement: '", name, "' ", why);
    }
  }
  for (const auto& entry : given) {
    TORCH_CHECK_VALUE(known.count(entry.first) > 0, "placement: '", entry.first,
                      "' is nothing that it remembers");
  }
}

/// What a leg acts on, in float64: its tensor with offset, through the gain that it is read through.
at::Tensor seen(const Leg& leg, const Parameters& params) {
  const auto value = params[leg.tensor].tensor.detach().to(at::kDouble) + leg.offset;
  if (leg.through.gain.empty()) return value;
  const auto gain =
      params[leg.through.gain].tensor.detach().to(at::kDouble) + leg.through.gain_offset;
  std::vector<int64_t> shape(static_cast<size_t>(value.dim()), 1);
  shape[static_cast<size_t>(leg.axis)] = gain.numel();
  return value * gain.view(shape);
}

/// Per block the sum over all legs of what `others` have of a channel times what `parameters` have of
/// another: by the matrix with the largest product with it one is turned next to the other.
at::Tensor overlap(const Gauge& gauge, NamedTensors parameters, NamedTensors others) {
  TORCH_CHECK_VALUE(gauge.mixes(), "overlap: gauge '", gauge.name, "' mixes no channels");
  const auto first = table_of(std::move(parameters));
  const auto second = table_of(std::move(others));
  validate(gauge, first);
  validate(gauge, second);
  auto result = at::zeros({gauge.blocks(), gauge.block, gauge.block}, at::kDouble);
  for (const auto& leg : gauge.legs) {
    const auto x = seen(leg, first);
    const auto map = block_map_of(gauge, leg, x);
    result += map.take(seen(leg, second)).matmul(map.take(x).transpose(-1, -2));
  }
  return result;
}

}  // namespace

void bind_placement(py::module_& module) {
  py::class_<Placement>(module, "Placement")
      .def(py::init(
               [](NamedTensors parameters, std::vector<Gauge> gauges, const py::dict& treatment) {
                 auto treatments = treatments_of({}, treatment);
                 treatments.check(gauges);
                 const Unlocked unlocked;
                 return Placement(table_of(std::move(parameters)), std::move(gauges),
                                  std::move(treatments));
               }),
           py::arg("parameters"), py::arg("gauges"), py::arg("treatment"))
      .def("restore", &Placement::restore_, py::call_guard<Unlocked>())
      .def("to_original", &Placement::to_original_, py::call_guard<Unlocked>())
      .def("to_canonical", &Placement::to_canonical_, py::call_guard<Unlocked>())
      .def_property_readonly("is_original", &Placement::is_original)
      .def("state",
           [](Placement& placement) {
             py::dict result;
             for (const auto& [name, tensor] : named_state(placement)) {
               result[py::str(name)] = *tensor;
             }
             return result;
           })
      .def("check_state", &check_state, py::arg("state"), py::call_guard<Unlocked>())
      .def(
          "load",
          [](Placement& placement, const State& state, bool at_original) {
            const at::NoGradGuard no_grad;
            check_state(placement, state);
            for (const auto& [name, own] : named_state(placement)) own->copy_(state.at(name));
            placement.loaded(at_original);
          },
          py::arg("state"), py::arg("at_original"), py::call_guard<Unlocked>())
      .def(
          "loaded", [](Placement& placement, bool at_original) { placement.loaded(at_original); },
          py::arg("at_original"))
      .def("distance_to_section", &Placement::distance_to_section, py::call_guard<Unlocked>())
      .def("elements", [](const Placement& placement) {
        const auto move = placement.to_original();
        NamedTensors result;
        for (size_t i = 0; i < move.gauges.size(); ++i) {
          result.emplace_back(move.gauges[i].name, move.elements[i].clone());
        }
        return result;
      });

  module.def(
      "act_",
      [](std::vector<Gauge> gauges, std::vector<at::Tensor> elements, NamedTensors parameters) {
        Move{std::move(gauges), std::move(elements)}.apply_(table_of(std::move(parameters)));
      },
      py::arg("gauges"), py::arg("elements"), py::arg("parameters"), py::call_guard<Unlocked>());
  module.def(
      "inverse",
      [](const Gauge& gauge, const at::Tensor& element) { return inverse(gauge, element); },
      py::arg("gauge"), py::arg("element"), py::call_guard<Unlocked>());
  module.def(
      "random_element",
      [](const std::vector<Gauge>& gauges, NamedTensors parameters, double size, uint64_t seed) {
        return random_element(gauges, table_of(std::move(parameters)), size,
                              at::make_generator<at::CPUGeneratorImpl>(seed));
      },
      py::arg("gauges"), py::arg("parameters"), py::arg("size"), py::arg("seed"),
      py::call_guard<Unlocked>());
  module.def("overlap", &overlap, py::arg("gauge"), py::arg("parameters"), py::arg("others"),
             py::call_guard<Unlocked>());
}

}  // namespace ddc::python
