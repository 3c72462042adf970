#include <pybind11/functional.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <tuple>

#include "bindings.h"
#include "ddc/discover/discover.h"
#include "ddc/discover/gate.h"
#include "ddc/discover/symmetry_group.h"
#include "discover/symmetry_table.h"

namespace ddc::python {
namespace {

SymmetryGroup discover_in(NamedTensors parameters, PythonEvaluate evaluate, uint64_t seed,
                          std::vector<int64_t> head_sizes, int64_t engagement_steps,
                          bool completeness, int64_t exact_up_to,
                          std::function<void(const std::string&, size_t, size_t)> progress) {
  return discover(table_of(std::move(parameters)), evaluate_of(std::move(evaluate)),
                  {.seed = seed,
                   .hints = {.head_sizes = std::move(head_sizes)},
                   .engagement_steps = engagement_steps,
                   .completeness = completeness,
                   .exact_up_to = exact_up_to,
                   .progress = std::move(progress)});
}

SymmetryGroup widen_in(const SymmetryGroup& narrow, NamedTensors parameters,
                       PythonEvaluate evaluate, uint64_t seed, int64_t engagement_steps,
                       bool completeness, int64_t exact_up_to,
                       std::function<void(const std::string&, size_t, size_t)> progress) {
  return widen(narrow, table_of(std::move(parameters)), evaluate_of(std::move(evaluate)),
               {.seed = seed,
                .engagement_steps = engagement_steps,
                .completeness = completeness,
                .exact_up_to = exact_up_to,
                .progress = std::move(progress)});
}

/// A group of gauges that somebody wrote down. Nothing of it is verified.
SymmetryGroup group_of(NamedTensors parameters, const std::vector<Gauge>& gauges) {
  const auto table = table_of(std::move(parameters));
  SymmetryGroup group;
  group.parameters = fingerprint(table);
  for (const auto& gauge : gauges) {
    validate(gauge, table);
    group.findings.push_back({gauge, group_name(gauge, table), dimension(gauge, table),
                              std::numeric_limits<double>::quiet_NaN(),
                              std::numeric_limits<double>::quiet_NaN()});
  }
  group.joint_residual = std::numeric_limits<double>::quiet_NaN();
  group.joint_tolerance = std::numeric_limits<double>::quiet_NaN();
  group.notes.emplace_back("the gauges were given by hand, and not verified");
  return group;
}

}  // namespace

void bind_symmetries(py::module_& module) {
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Interrupted&) {
      PyErr_SetNone(PyExc_KeyboardInterrupt);
    }
  });

  py::class_<Engagement>(module, "Engagement")
      .def_readonly("plain", &Engagement::plain)
      .def_readonly("lifted", &Engagement::lifted)
      .def_readonly("engaged", &Engagement::engaged);

  py::class_<Finding>(module, "Finding")
      .def_readonly("gauge", &Finding::gauge)
      .def_property_readonly("name", [](const Finding& f) { return f.gauge.name; })
      .def_property_readonly("kind", [](const Finding& f) { return f.gauge.kind; })
      .def_property_readonly("action", [](const Finding& f) { return to_string(f.gauge.action); })
      .def_property_readonly("channels", [](const Finding& f) { return f.gauge.channels; })
      .def_property_readonly("block", [](const Finding& f) { return f.gauge.block; })
      .def_property_readonly("legs",
                             [](const Finding& f) {
                               std::vector<std::tuple<std::string, int64_t, double>> legs;
                               for (const auto& leg : f.gauge.legs) {
                                 legs.emplace_back(leg.tensor, leg.axis, leg.exponent);
                               }
                               return legs;
                             })
      .def_readonly("group", &Finding::group)
      .def_readonly("dimension", &Finding::dimension)
      .def_readonly("residual", &Finding::residual)
      .def_readonly("tolerance", &Finding::tolerance)
      .def_readonly("engagement", &Finding::engagement);

  py::class_<Refusal>(module, "Refusal")
      .def_readonly("name", &Refusal::name)
      .def_readonly("kind", &Refusal::kind)
      .def_readonly("tensors", &Refusal::tensors)
      .def_readonly("residual", &Refusal::residual)
      .def_readonly("reason", &Refusal::reason);

  py::class_<Completeness>(module, "Completeness")
      .def_readonly("method", &Completeness::method)
      .def_readonly("parameters", &Completeness::parameters)
      .def_readonly("kernel", &Completeness::kernel)
      .def_readonly("explained", &Completeness::explained)
      .def_readonly("dead", &Completeness::dead)
      .def_readonly("unexplained", &Completeness::unexplained)
      .def_property_readonly("per_tensor", [](const Completeness& c) {
        std::vector<std::pair<std::string, double>> shares;
        for (const auto& share : c.per_tensor) shares.emplace_back(share.tensor, share.dimensions);
        return shares;
      });

  py::class_<Verdict>(module, "Verdict")
      .def_readonly("passed", &Verdict::passed)
      .def_readonly("residual", &Verdict::residual)
      .def_readonly("tolerance", &Verdict::tolerance)
      .def_readonly("worst", &Verdict::worst)
      .def_readonly("shifts_logits", &Verdict::shifts_logits);

  py::class_<SymmetryGroup>(module, "SymmetryGroup")
      .def_static("parse", &SymmetryGroup::parse)
      .def_static("of", &group_of, py::arg("parameters"), py::arg("gauges"))
      .def("gauges", &SymmetryGroup::gauges)
      .def_static("load", [](const std::string& path) { return SymmetryGroup::load(path); })
      .def("to_json", &SymmetryGroup::to_json)
      .def("save", &SymmetryGroup::save)
      .def(
          "text",
          [](const SymmetryGroup& group, size_t width) {
            std::ostringstream text;
            print_table(text, group, width);
            return text.str();
          },
          py::arg("width") = 200)
      .def("check", [](const SymmetryGroup& group,
                       NamedTensors parameters) { group.check(table_of(std::move(parameters))); })
      .def("act_random_",
           [](const SymmetryGroup& group, NamedTensors parameters, double size, uint64_t seed) {
             const Unlocked unlocked;
             group.act_random_(table_of(std::move(parameters)), size, seed);
           })
      .def("gate",
           [](const SymmetryGroup& group, NamedTensors parameters, PythonEvaluate evaluate,
              uint64_t seed) {
             const Unlocked unlocked;
             return gate(group.gauges(), table_of(std::move(parameters)),
                         evaluate_of(std::move(evaluate)), {.seed = seed});
           })
      .def("keep",
           [](SymmetryGroup group, const std::vector<std::string>& names) {
             std::erase_if(group.findings, [&](const Finding& finding) {
               return std::find(names.begin(), names.end(), finding.gauge.name) == names.end();
             });
             group.completeness.reset();
             return group;
           })
      .def("refuse",
           [](SymmetryGroup group, const std::map<std::string, std::string>& reasons) {
             std::erase_if(group.findings, [&](const Finding& finding) {
               const auto reason = reasons.find(finding.gauge.name);
               if (reason == reasons.end()) return false;
               auto& refusal = group.refusals.emplace_back();
               refusal.name = finding.gauge.name;
               refusal.kind = finding.gauge.kind;
               for (const auto& leg : finding.gauge.legs) refusal.tensors.push_back(leg.tensor);
               refusal.residual = finding.residual;
               refusal.reason = reason->second;
               return true;
             });
             return group;
           })
      .def(
          "with_notes",
          [](SymmetryGroup group, const std::vector<std::string>& notes) {
            group.notes.insert(group.notes.end(), notes.begin(), notes.end());
            return group;
          },
          py::arg("notes"))
      .def(
          "with_roles",
          [](SymmetryGroup group, const std::map<std::string, std::string>& roles) {
            for (auto& entry : group.parameters.entries) {
              const auto found = roles.find(entry.name);
              if (found != roles.end()) entry.role = found->second;
            }
            return group;
          },
          py::arg("roles"))
      .def_property_readonly("roles",
                             [](const SymmetryGroup& group) {
                               std::map<std::string, std::string> roles;
                               for (const auto& entry : group.parameters.entries) {
                                 if (!entry.role.empty()) roles[entry.name] = entry.role;
                               }
                               return roles;
                             })
      .def_readonly("findings", &SymmetryGroup::findings)
      .def_readonly("refusals", &SymmetryGroup::refusals)
      .def_readonly("joint_residual", &SymmetryGroup::joint_residual)
      .def_readonly("joint_tolerance", &SymmetryGroup::joint_tolerance)
      .def_readonly("completeness", &SymmetryGroup::completeness)
      .def_readonly("notes", &SymmetryGroup::notes)
      .def_property_readonly("dimension", &SymmetryGroup::dimension)
      .def_property_readonly("parameters", [](const SymmetryGroup& group) {
        std::vector<std::pair<std::string, std::vector<int64_t>>> entries;
        for (const auto& entry : group.parameters.entries) {
          entries.emplace_back(entry.name, entry.shape);
        }
        return entries;
      });

  module.def("widen", &widen_in, py::call_guard<Unlocked>(), py::arg("narrow"),
             py::arg("parameters"), py::arg("evaluate"), py::kw_only(), py::arg("seed"),
             py::arg("engagement_steps"), py::arg("completeness"), py::arg("exact_up_to"),
             py::arg("progress"));
  module.def("discover", &discover_in, py::call_guard<Unlocked>(), py::arg("parameters"),
             py::arg("evaluate"), py::kw_only(), py::arg("seed"), py::arg("head_sizes"),
             py::arg("engagement_steps"), py::arg("completeness"), py::arg("exact_up_to"),
             py::arg("progress"));
}

}  // namespace ddc::python
