#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <array>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <tuple>

#include "bindings.h"
#include "ddc/discover/gate.h"
#include "ddc/gauge/attention.h"
#include "ddc/gauge/linear_pair.h"
#include "ddc/gauge/norm_scale.h"
#include "ddc/gauge/norm_shift.h"
#include "ddc/gauge/rescale.h"
#include "ddc/gauge/residual.h"
#include "ddc/gauge/shift.h"
#include "ddc/measure/engagement.h"
#include "ddc/measure/gauge_coordinates.h"
#include "ddc/measure/leakage.h"
#include "ddc/optim/recipe.h"
#include "ddc/optim/registry.h"
#include "ddc/testing/gauge_invariants.h"
#include "options.h"

// Makers of gauges (ddc.gauges), what is measured of them (ddc.measure) and what they must satisfy
// (ddc.testing).

namespace ddc::python {
namespace {

using channel_maps::Pairing;
using testing::Check;
using testing::InvariantReport;

using Name = std::optional<std::string>;
using Names = std::vector<std::string>;
/// Weights with the biases beside them.
using Readers = std::vector<std::pair<std::string, Name>>;

// ---- Words and names ------------------------------------------------------------------------------

template <class Enum>
Enum word(const char* kind, const std::string& given,
          std::initializer_list<std::pair<const char*, Enum>> known) {
  Names words;
  for (const auto& [each, value] : known) {
    if (given == each) return value;
    words.emplace_back(each);
  }
  TORCH_CHECK_VALUE(false, unknown(kind, given, words));
}

Layout layout_of(const std::string& given) {
  return word<Layout>("layout", given, {{"out_in", Layout::out_in}, {"in_out", Layout::in_out}});
}

Packing packing_of(const std::string& given) {
  return word<Packing>("packing", given,
                       {{"separate", Packing::separate},
                        {"stacked", Packing::stacked},
                        {"per_head", Packing::per_head}});
}

Pairing pairing_of(const std::string& given) {
  return word<Pairing>("pairing", given,
                       {{"none", Pairing::none},
                        {"half_split", Pairing::half_split},
                        {"interleaved", Pairing::interleaved}});
}

/// Tensors of a model by name, and the gauges that are made of them.
class Wiring {
 public:
  explicit Wiring(NamedTensors tensors) : table_(table_of(std::move(tensors))) {}

  NamedTensor operator()(const std::string& name) const {
    if (!table_.contains(name)) {
      Names names;
      for (const auto& entry : table_) names.push_back(entry.name);
      TORCH_CHECK_VALUE(false, unknown("tensor", name, names));
    }
    return table_[name];
  }
  std::optional<NamedTensor> operator()(const Name& name) const {
    if (!name) return std::nullopt;
    return (*this)(*name);
  }
  std::vector<NamedTensor> operator()(const Names& names) const {
    std::vector<NamedTensor> result;
    for (const auto& name : names) result.push_back((*this)(name));
    return result;
  }
  std::vector<NormReaders::Reader> operator()(const Readers& readers) const {
    std::vector<NormReaders::Reader> result;
    for (const auto& [weight, bias] : readers) result.push_back({(*this)(weight), (*this)(bias)});
    return result;
  }

  /// The gauge, if it fits the tensors.
  Gauge checked(Gauge gauge, const Name& name = {}) const {
    if (name) gauge.name = *name;
    validate(gauge, table_);
    return gauge;
  }
  std::vector<Gauge> checked(std::vector<Gauge> gauges) const {
    for (const auto& gauge : gauges) validate(gauge, table_);
    return gauges;
  }

 private:
  Parameters table_;
};

// ---- Makers ---------------------------------------------------------------------------------------

py::arg parameters_arg() { return py::arg("parameters"); }
py::arg_v layout_arg() { return py::arg("layout") = "out_in"; }
py::arg_v name_arg() { return py::arg("name") = py::none(); }

void bind_rescales(py::module_& module) {
  module.def(
      "relu_rescale",
      [](NamedTensors parameters, const std::string& weight_in, const Names& weights_out,
         const Name& bias_in, double degree, bool whole, const std::string& layout,
         const Name& name) {
        const Wiring of(std::move(parameters));
        return of.checked(relu_rescale({.in = of(weight_in),
                                        .in_bias = of(bias_in),
                                        .out = of(weights_out),
                                        .degree = degree,
                                        .whole = whole,
                                        .layout = layout_of(layout)}),
                          name);
      },
      parameters_arg(), py::arg("weight_in"), py::arg("weights_out"), py::kw_only(),
      py::arg("bias_in") = py::none(), py::arg("degree") = 1.0, py::arg("whole") = false,
      layout_arg(), name_arg());
  module.def(
      "chained_rescale",
      [](NamedTensors parameters, const Names& weights, const std::vector<Name>& biases,
         double degree, bool whole, const std::string& layout) {
        const Wiring of(std::move(parameters));
        std::vector<std::optional<NamedTensor>> found;
        for (const auto& bias : biases) found.push_back(of(bias));
        return of.checked(chained_rescale({.weights = of(weights),
                                           .biases = std::move(found),
                                           .degree = degree,
                                           .whole = whole,
                                           .layout = layout_of(layout)}));
      },
      parameters_arg(), py::arg("weights"), py::kw_only(), py::arg("biases") = std::vector<Name>{},
      py::arg("degree") = 1.0, py::arg("whole") = false, layout_arg());
  module.def(
      "glu_rescale",
      [](NamedTensors parameters, const std::string& weight_up, const Names& weights_down,
         const Name& bias_up, const std::string& layout, const Name& name) {
        const Wiring of(std::move(parameters));
        return of.checked(glu_rescale({.up = of(weight_up),
                                       .up_bias = of(bias_up),
                                       .down = of(weights_down),
                                       .layout = layout_of(layout)}),
                          name);
      },
      parameters_arg(), py::arg("weight_up"), py::arg("weights_down"), py::kw_only(),
      py::arg("bias_up") = py::none(), layout_arg(), name_arg());
  module.def(
      "diagonal_linear",
      [](NamedTensors parameters, const std::string& u, const std::string& v, const Name& name) {
        const Wiring of(std::move(parameters));
        return of.checked(diagonal_linear({.u = of(u), .v = of(v)}), name);
      },
      parameters_arg(), py::arg("u"), py::arg("v"), py::kw_only(), name_arg());
  module.def(
      "linear_pair",
      [](NamedTensors parameters, const std::string& weight_first, const std::string& weight_second,
         const std::string& layout, const Name& name) {
        const Wiring of(std::move(parameters));
        return of.checked(linear_pair({.first = of(weight_first),
                                       .second = of(weight_second),
                                       .layout = layout_of(layout)}),
                          name);
      },
      parameters_arg(), py::arg("weight_first"), py::arg("weight_second"), py::kw_only(),
      layout_arg(), name_arg());
}

NormReaders norm_of(const Wiring& of, const std::string& gain, const Readers& readers,
                    const Name& shift, bool gain_is_offset, const std::string& layout) {
  return {.gain = of(gain),
          .shift = of(shift),
          .readers = of(readers),
          .gain_is_offset = gain_is_offset,
          .layout = layout_of(layout)};
}

void bind_norms_and_shifts(py::module_& module) {
  module.def(
      "norm_scale",
      [](NamedTensors parameters, const std::string& gain, const Names& weights_out,
         const Name& shift, bool gain_is_offset, const std::string& layout, const Name& name) {
        const Wiring of(std::move(parameters));
        return of.checked(norm_scale({.gain = of(gain),
                                      .shift = of(shift),
                                      .readers = of(weights_out),
                                      .gain_is_offset = gain_is_offset,
                                      .layout = layout_of(layout)}),
                          name);
      },
      parameters_arg(), py::arg("gain"), py::arg("weights_out"), py::kw_only(),
      py::arg("shift") = py::none(), py::arg("gain_is_offset") = false, layout_arg(), name_arg());
  module.def(
      "norm_kernel_shifts",
      [](NamedTensors parameters, const std::string& gain, const Readers& readers,
         const Name& shift, bool gain_is_offset, const std::string& layout) {
        const Wiring of(std::move(parameters));
        return of.checked(
            norm_kernel_shifts(norm_of(of, gain, readers, shift, gain_is_offset, layout)));
      },
      parameters_arg(), py::arg("gain"), py::arg("readers"), py::kw_only(),
      py::arg("shift") = py::none(), py::arg("gain_is_offset") = false, layout_arg());
  module.def(
      "norm_shift_exchange",
      [](NamedTensors parameters, const std::string& gain, const Readers& readers,
         const std::string& shift, const Name& bias_added_next, const std::string& layout,
         const Name& name) {
        const Wiring of(std::move(parameters));
        auto norm = norm_of(of, gain, readers, shift, false, layout);
        norm.added_next = of(bias_added_next);
        return of.checked(norm_shift_exchange(norm), name);
      },
      parameters_arg(), py::arg("gain"), py::arg("readers"), py::kw_only(), py::arg("shift"),
      py::arg("bias_added_next") = py::none(), layout_arg(), name_arg());
  module.def(
      "cross_entropy_shift",
      [](NamedTensors parameters, const std::string& tensor, const std::string& layout,
         const Name& name) {
        const Wiring of(std::move(parameters));
        return of.checked(cross_entropy_shift(of(tensor), layout_of(layout)), name);
      },
      parameters_arg(), py::arg("tensor"), py::kw_only(), layout_arg(), name_arg());
  module.def(
      "null_shift",
      [](NamedTensors parameters, const std::string& tensor, const Name& name) {
        const Wiring of(std::move(parameters));
        return of.checked(null_shift(of(tensor)), name);
      },
      parameters_arg(), py::arg("tensor"), py::kw_only(), name_arg());
  module.def(
      "residual_mean_shift",
      [](NamedTensors parameters, const std::string& writer, int64_t axis, const Name& name) {
        const Wiring of(std::move(parameters));
        return of.checked(residual_mean_shift({of(writer), axis}), name);
      },
      parameters_arg(), py::arg("writer"), py::kw_only(), py::arg("axis") = 0, name_arg());
  using Norm = std::tuple<std::string, Readers, Name, bool, std::string>;
  module.def(
      "residual_rotation",
      [](NamedTensors parameters, const std::vector<std::pair<std::string, int64_t>>& writers,
         const std::vector<Norm>& norms, bool layer_norm, const Name& name) {
        const Wiring of(std::move(parameters));
        ResidualRotation spec;
        for (const auto& [tensor, axis] : writers) spec.writers.push_back({of(tensor), axis});
        for (const auto& [gain, readers, shift, gain_is_offset, layout] : norms) {
          spec.norms.push_back(norm_of(of, gain, readers, shift, gain_is_offset, layout));
        }
        spec.layer_norm = layer_norm;
        return of.checked(residual_rotation(spec), name);
      },
      parameters_arg(), py::arg("writers"), py::arg("norms"), py::kw_only(),
      py::arg("layer_norm") = true, name_arg());
}

void bind_attention(py::module_& module) {
  const auto query_key = [&](const char* title, Gauge (*make)(const QueryKey&)) {
    module.def(
        title,
        [make](NamedTensors parameters, const std::string& weight_query,
               const std::string& weight_key, int64_t heads, const std::optional<int64_t>& kv_heads,
               const Name& bias_query, const Name& bias_key, const std::string& pairing,
               const std::optional<int64_t>& rotary_size, const std::string& packing,
               const std::string& layout, const Name& name) {
          const Wiring of(std::move(parameters));
          return of.checked(make({.query = of(weight_query),
                                  .query_bias = of(bias_query),
                                  .key = of(weight_key),
                                  .key_bias = of(bias_key),
                                  .heads = heads,
                                  .kv_heads = kv_heads,
                                  .pairing = pairing_of(pairing),
                                  .rotary_size = rotary_size,
                                  .packing = packing_of(packing),
                                  .layout = layout_of(layout)}),
                            name);
        },
        parameters_arg(), py::arg("weight_query"), py::arg("weight_key"), py::kw_only(),
        py::arg("heads"), py::arg("kv_heads") = py::none(), py::arg("bias_query") = py::none(),
        py::arg("bias_key") = py::none(), py::arg("pairing") = "none",
        py::arg("rotary_size") = py::none(), py::arg("packing") = "separate", layout_arg(),
        name_arg());
  };
  query_key("qk_scale", &qk_scale);
  query_key("qk_torus", &qk_torus);
  query_key("qk_rotation", &qk_rotation);
  query_key("qk_linear", &qk_linear);
  query_key("key_bias_null", &key_bias_null);

  const auto value_output = [&](const char* title, Gauge (*make)(const ValueOutput&)) {
    module.def(
        title,
        [make](NamedTensors parameters, const std::string& weight_value,
               const std::string& weight_output, int64_t heads,
               const std::optional<int64_t>& kv_heads, const Name& bias_value,
               const Name& bias_output, const std::string& packing, const std::string& layout,
               const Name& name) {
          const Wiring of(std::move(parameters));
          return of.checked(make({.value = of(weight_value),
                                  .value_bias = of(bias_value),
                                  .output = of(weight_output),
                                  .output_bias = of(bias_output),
                                  .heads = heads,
                                  .kv_heads = kv_heads,
                                  .packing = packing_of(packing),
                                  .layout = layout_of(layout)}),
                            name);
        },
        parameters_arg(), py::arg("weight_value"), py::arg("weight_output"), py::kw_only(),
        py::arg("heads"), py::arg("kv_heads") = py::none(), py::arg("bias_value") = py::none(),
        py::arg("bias_output") = py::none(), py::arg("packing") = "separate", layout_arg(),
        name_arg());
  };
  value_output("vo_scale", &vo_scale);
  value_output("vo_rotation", &vo_rotation);
  value_output("vo_linear", &vo_linear);
  value_output("value_bias_exchange", &value_bias_exchange);
}

// ---- Measures -------------------------------------------------------------------------------------

/// pybind11's wrapper takes the interpreter's lock for as long as the call lasts.
using PythonEvaluate =
    std::function<std::tuple<at::Tensor, std::optional<at::Tensor>>(uint64_t batch)>;

Evaluate evaluate_of(PythonEvaluate function) {
  return [function = std::move(function)](uint64_t batch) {
    auto [loss, outputs] = function(batch);
    return Evaluation(std::move(loss), outputs.value_or(at::Tensor()));
  };
}

std::map<std::string, at::Tensor> dictionary(const Parameters& table) {
  std::map<std::string, at::Tensor> result;
  for (const auto& [name, tensor] : table) result[name] = tensor;
  return result;
}

void bind_measures(py::module_& module) {
  using OfThread = py::call_guard<py::gil_scoped_release>;
  module.def(
      "engagement",
      [](const std::vector<Gauge>& gauges, NamedTensors parameters, PythonEvaluate evaluate,
         int64_t steps, double lr, double weight_decay) {
        const auto table = table_of(std::move(parameters));
        for (const auto& gauge : gauges) validate(gauge, table);
        return engagement(gauges, table, evaluate_of(std::move(evaluate)),
                          {.steps = steps, .lr = lr, .weight_decay = weight_decay});
      },
      OfThread(), py::arg("gauges"), parameters_arg(), py::arg("evaluate"), py::kw_only(),
      py::arg("steps"), py::arg("lr"), py::arg("weight_decay"));
  module.def(
      "gate",
      [](const std::vector<Gauge>& gauges, NamedTensors parameters, PythonEvaluate evaluate,
         uint64_t seed) {
        return gate(gauges, table_of(std::move(parameters)), evaluate_of(std::move(evaluate)),
                    {.seed = seed});
      },
      OfThread(), py::arg("gauges"), parameters_arg(), py::arg("evaluate"), py::kw_only(),
      py::arg("seed"));

  py::class_<GaugeCoordinates>(module, "GaugeCoordinates")
      .def(py::init([](NamedTensors parameters, const std::vector<Gauge>& gauges) {
             return GaugeCoordinates(table_of(std::move(parameters)), gauges);
           }),
           parameters_arg(), py::arg("gauges"))
      .def("measure", &GaugeCoordinates::measure);

  py::class_<AdamWMoments>(module, "AdamWMoments")
      .def(py::init([](double beta1, double beta2, double eps) {
             AdamOptions options;
             options.beta1 = beta1;
             options.beta2 = beta2;
             options.eps = eps;
             check_options(options);
             return AdamWMoments(options);
           }),
           py::kw_only(), py::arg("beta1"), py::arg("beta2"), py::arg("eps"))
      .def(
          "update",
          [](AdamWMoments& moments, NamedTensors gradients) {
            moments.update(table_of(std::move(gradients)));
          },
          py::arg("gradients"))
      .def_property_readonly("direction",
                             [](const AdamWMoments& m) { return dictionary(m.direction()); })
      .def_property_readonly("preconditioner",
                             [](const AdamWMoments& m) { return dictionary(m.preconditioner()); })
      .def_property_readonly("momentum",
                             [](const AdamWMoments& m) { return dictionary(m.momentum()); });

  py::class_<Leakage>(module, "Leakage",
                      "Part of an update direction that points along the orbit of a gauge.\n\n"
                      "One number per channel of a scale, one skew matrix per block of a rotation.")
      .def_readonly("mean", &Leakage::mean,
                    "Part that would be there if every tensor had one number for a preconditioner.")
      .def_readonly("covariance", &Leakage::covariance,
                    "Part that comes from how the preconditioner differs between entries.")
      .def_property_readonly("total", &Leakage::total, "Sum of the two.");
  module.def(
      "leakage",
      [](const Gauge& gauge, NamedTensors parameters, NamedTensors preconditioner,
         NamedTensors momentum) {
        return leakage(gauge, table_of(std::move(parameters)), table_of(std::move(preconditioner)),
                       table_of(std::move(momentum)));
      },
      py::arg("gauge"), parameters_arg(), py::arg("preconditioner"), py::arg("momentum"));

  py::class_<PredictedDrift>(
      module, "PredictedDrift",
      "Change of a gauge coordinate in one step, as predicted before it is made.\n\n"
      "One number per channel of a scale; for a rotation, per block, the skew matrix whose\n"
      "exponential turns the weights as near as can be to where the step takes them.")
      .def_readonly("first_order", &PredictedDrift::first_order,
                    "Change up to the first order of the learning rate.")
      .def_readonly("second_order", &PredictedDrift::second_order,
                    "Change up to the second order of the learning rate.");
  module.def(
      "predicted_drift",
      [](const Gauge& gauge, NamedTensors parameters, NamedTensors direction, double lr,
         double weight_decay) {
        return predicted_drift(gauge, table_of(std::move(parameters)),
                               table_of(std::move(direction)),
                               {.lr = lr, .weight_decay = weight_decay});
      },
      py::arg("gauge"), parameters_arg(), py::arg("direction"), py::kw_only(), py::arg("lr"),
      py::arg("weight_decay"));
}

// ---- Invariants -----------------------------------------------------------------------------------

/// Loss of a batch at tensors that are not the model's.
using PythonLoss = std::function<at::Tensor(NamedTensors parameters, int64_t batch)>;

/// An optimizer, as Python describes one that it has made: rule, param groups (names and options),
/// recipe, and treatments (option, value, kind or name of a gauge).
using Description = std::tuple<std::string, std::vector<std::pair<Names, py::dict>>, std::string,
                               std::vector<std::tuple<std::string, py::object, std::string>>>;

testing::OptimizerFactory factory_of(const Description& description) {
  const auto& [rule, given, recipe_name, treatments_given] = description;
  std::vector<std::pair<Names, OptionValues>> groups;
  for (const auto& [names, options] : given) groups.emplace_back(names, option_values(options));
  std::vector<std::tuple<std::string, OptionValue, std::string>> treatments;
  for (const auto& [option, value, gauge] : treatments_given) {
    treatments.emplace_back(option, option_value(option, value), gauge);
  }
  return
      [rule = rule, groups, recipe_name = recipe_name, treatments](
          const Parameters& params, std::vector<Gauge> gauges) -> std::unique_ptr<LiftedOptimizer> {
        const auto& registered = registered_rule(rule);
        std::vector<torch::optim::OptimizerParamGroup> param_groups;
        for (const auto& [names, values] : groups) {
          std::vector<at::Tensor> tensors;
          for (const auto& name : names) tensors.push_back(params[name].tensor);
          auto options = registered.options();
          options->list().assign(values, rule);
          param_groups.emplace_back(std::move(tensors), std::move(options));
        }
        auto prepared = recipe(recipe_name, rule, std::move(gauges));
        for (const auto& [option, value, gauge] : treatments) {
          prepared.treatments.set(option, value, gauge);
        }
        return registered.make(param_groups, params, std::move(prepared.gauges),
                               std::move(prepared.treatments));
      };
}

template <class T>
std::string text_of(const T& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

void bind_invariants(py::module_& module) {
  py::class_<Check>(
      module, "Check",
      "Check of one identity in one regime, with the entry that has the largest error.")
      .def_readonly("identity", &Check::identity, "Name of the identity: 'invariance', ...")
      .def_readonly("regime", &Check::regime, "Group element and weights: 'huge element, ...'.")
      .def_readonly("where", &Check::where, "Tensor or channel with the largest error.")
      .def_readonly("expected", &Check::expected, "Value that the entry should have.")
      .def_readonly("actual", &Check::actual, "Value that the entry has.")
      .def_readonly("difference", &Check::difference,
                    "Error, relative to the largest entry of what is compared (of a gauge "
                    "coordinate, absolute).")
      .def_readonly("tolerance", &Check::tolerance, "Largest error that passes.")
      .def_property_readonly("passed", &Check::passed, "Whether the error is within the tolerance.")
      .def("__str__", &text_of<Check>)
      .def("__repr__", [](const Check& check) {
        return std::string("<Check '")
            .append(check.identity)
            .append(check.passed() ? "': passed>" : "': FAILED>");
      });

  py::class_<InvariantReport>(
      module, "InvariantReport",
      "Report of :func:`ddc.testing.gauge_invariants`: true if all checks passed.")
      .def_property_readonly("ok", &InvariantReport::ok, "Whether all checks passed.")
      .def_readonly("checks", &InvariantReport::checks, "Checks that were made.")
      .def_property_readonly("failures", &InvariantReport::failures, "Checks that failed.")
      .def("__bool__", &InvariantReport::ok)
      .def("__str__", &text_of<InvariantReport>)
      .def("__repr__", [](const InvariantReport& report) {
        const auto failed = report.failures().size();
        return "<InvariantReport: " + std::to_string(report.checks.size() - failed) + " of " +
               std::to_string(report.checks.size()) + " checks passed>";
      });

  module.def(
      "gauge_invariants",
      [](const Gauge& gauge, NamedTensors parameters, PythonLoss loss,
         const std::optional<Description>& optimizer, std::vector<Gauge> others, uint64_t seed,
         int64_t steps) {
        testing::InvariantOptions options;
        options.seed = seed;
        options.steps = steps;
        options.others = std::move(others);
        if (optimizer) options.optimizer = factory_of(*optimizer);
        const testing::Loss of_table = [&loss](const Parameters& table, int64_t batch) {
          NamedTensors tensors;
          for (const auto& [name, tensor] : table) tensors.emplace_back(name, tensor);
          return loss(std::move(tensors), batch);
        };
        const auto table = table_of(std::move(parameters));
        const py::gil_scoped_release unlocked;
        return testing::check_gauge_invariants(gauge, table, of_table, options);
      },
      py::arg("gauge"), parameters_arg(), py::arg("loss"), py::kw_only(), py::arg("optimizer"),
      py::arg("others"), py::arg("seed"), py::arg("steps"));
}

}  // namespace

void bind_makers(py::module_& module) {
  bind_rescales(module);
  bind_norms_and_shifts(module);
  bind_attention(module);
  bind_measures(module);
  bind_invariants(module);
  // Where users find the classes that are theirs, and what they are.
  const auto publish = [&](const char* name, const char* doc) {
    module.attr(name).attr("__module__") = "ddc";
    module.attr(name).attr("__doc__") = doc;
  };
  publish(
      "Finding",
      "Symmetry that was found and that passed the gate: a gauge, and what was measured of it.");
  publish(
      "Refusal",
      "Refusal of what looked like a symmetry, or would be one in a similar model, and is none.");
  publish("Completeness", "Count of the directions that no batch sees, and of those explained.");
  publish(
      "Verdict",
      "Verdict of the gate: the change of loss or outputs under random elements, and how much of\n"
      "it is rounding.");
  publish("Engagement",
          "Movement of a gauge coordinate over a few steps of AdamW (``plain``) and of DDCAdam\n"
          "(``lifted``): the root of the mean square over channels; for a rotation, the angle.");
  publish("Report", "Report of an optimizer: what is bound. A table when printed.");
  publish("GaugeReport", "Report on one gauge: how it is bound, and what the last step corrected.");
  for (const auto* name : {"Gauge", "Leg", "Reading"}) {
    module.attr(name).attr("__module__") = "ddc";
  }
  for (const auto* name : {"Leakage", "PredictedDrift"}) {
    module.attr(name).attr("__module__") = "ddc.measure";
  }
  for (const auto* name : {"Check", "InvariantReport"}) {
    module.attr(name).attr("__module__") = "ddc.testing";
  }
}

}  // namespace ddc::python
