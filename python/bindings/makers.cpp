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
#include "ddc/gauge/norm.h"
#include "ddc/gauge/rescale.h"
#include "ddc/gauge/residual.h"
#include "ddc/gauge/shift.h"
#include "ddc/measure/engagement.h"
#include "ddc/measure/gauge_coordinates.h"
#include "ddc/measure/leakage.h"
#include "ddc/testing/gauge_invariants.h"

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

/// Arguments of a maker by name, as Python gives them, and tensors of the model.
class Arguments {
 public:
  Arguments(NamedTensors tensors, py::dict given)
      : table_(table_of(std::move(tensors))), given_(std::move(given)) {}

  /// An argument that the maker does not have is None.
  template <class T>
  T get(const char* argument) const {
    const py::object value = given_.attr("get")(argument);
    try {
      return value.cast<T>();
    } catch (const py::cast_error&) {
      TORCH_CHECK_TYPE(false, "argument ", argument,
                       " has a value of the wrong type: ", py::repr(value).cast<std::string>());
    }
  }

  NamedTensor tensor(const char* argument) const { return find(get<std::string>(argument)); }
  std::optional<NamedTensor> tensor_or_none(const char* argument) const {
    return find(get<Name>(argument));
  }
  std::vector<NamedTensor> tensors(const char* argument) const {
    return find_all<NamedTensor>(get<Names>(argument));
  }
  std::vector<std::optional<NamedTensor>> tensors_or_none(const char* argument) const {
    return find_all<std::optional<NamedTensor>>(get<std::vector<Name>>(argument));
  }
  NormReaders norm() const {
    return norm_of(get<std::string>("gain"), get<Readers>("readers"), get<Name>("shift"),
                   get<std::optional<bool>>("gain_is_offset").value_or(false),
                   get<std::string>("layout"));
  }
  std::vector<NormReaders> norms() const {
    using Norm = std::tuple<std::string, Readers, Name, bool, std::string>;
    std::vector<NormReaders> result;
    for (const auto& norm : get<std::vector<Norm>>("norms")) {
      result.push_back(std::apply([&](const auto&... part) { return norm_of(part...); }, norm));
    }
    return result;
  }
  std::vector<Writer> writers() const {
    std::vector<Writer> result;
    for (const auto& [name, axis] : get<std::vector<std::pair<std::string, int64_t>>>("writers")) {
      result.push_back({find(name), axis});
    }
    return result;
  }
  Layout layout() const { return layout_of(get<std::string>("layout")); }
  Packing packing() const {
    return word<Packing>("packing", get<std::string>("packing"),
                         {{"separate", Packing::separate},
                          {"stacked", Packing::stacked},
                          {"per_head", Packing::per_head}});
  }
  Pairing pairing() const {
    return word<Pairing>("pairing", get<std::string>("pairing"),
                         {{"none", Pairing::none},
                          {"half_split", Pairing::half_split},
                          {"interleaved", Pairing::interleaved}});
  }

  /// The gauges, if they fit the tensors.
  std::vector<Gauge> checked(std::vector<Gauge> gauges) const {
    for (auto& gauge : gauges) {
      gauge.name = get<Name>("name").value_or(gauge.name);
      validate(gauge, table_);
    }
    return gauges;
  }

 private:
  static Layout layout_of(const std::string& given) {
    return word<Layout>("layout", given, {{"out_in", Layout::out_in}, {"in_out", Layout::in_out}});
  }
  NamedTensor find(const std::string& name) const {
    if (!table_.contains(name)) {
      Names names;
      for (const auto& entry : table_) names.push_back(entry.name);
      TORCH_CHECK_VALUE(false, unknown("tensor", name, names));
    }
    return table_[name];
  }
  std::optional<NamedTensor> find(const Name& name) const {
    if (!name) return std::nullopt;
    return find(*name);
  }
  template <class Found, class Each>
  std::vector<Found> find_all(const std::vector<Each>& names) const {
    std::vector<Found> result;
    result.reserve(names.size());
    for (const auto& name : names) result.push_back(find(name));
    return result;
  }
  NormReaders norm_of(const std::string& gain, const Readers& readers, const Name& shift,
                      bool gain_is_offset, const std::string& layout) const {
    NormReaders norm{.gain = find(gain),
                     .shift = find(shift),
                     .gain_is_offset = gain_is_offset,
                     .layout = layout_of(layout)};
    for (const auto& [weight, bias] : readers) norm.readers.push_back({find(weight), find(bias)});
    return norm;
  }

  Parameters table_;
  py::dict given_;
};

// ---- Makers ---------------------------------------------------------------------------------------

py::arg parameters_arg() { return py::arg("parameters"); }

using Made = std::vector<Gauge>;

template <Gauge (*make)(const QueryKey&)>
Made of_query_key(const Arguments& of) {
  return {make({.query = of.tensor("weight_query"),
                .query_bias = of.tensor_or_none("bias_query"),
                .key = of.tensor("weight_key"),
                .key_bias = of.tensor_or_none("bias_key"),
                .heads = of.get<int64_t>("heads"),
                .kv_heads = of.get<std::optional<int64_t>>("kv_heads"),
                .pairing = of.pairing(),
                .rotary_size = of.get<std::optional<int64_t>>("rotary_size"),
                .packing = of.packing(),
                .layout = of.layout()})};
}

template <Gauge (*make)(const ValueOutput&)>
Made of_value_output(const Arguments& of) {
  return {make({.value = of.tensor("weight_value"),
                .value_bias = of.tensor_or_none("bias_value"),
                .output = of.tensor("weight_output"),
                .output_bias = of.tensor_or_none("bias_output"),
                .heads = of.get<int64_t>("heads"),
                .kv_heads = of.get<std::optional<int64_t>>("kv_heads"),
                .packing = of.packing(),
                .layout = of.layout()})};
}

/// Makers by name. Python has their signatures and says what they are for.
const std::map<std::string, Made (*)(const Arguments&)>& makers() {
  static const std::map<std::string, Made (*)(const Arguments&)> all{
      {"relu_rescale",
       [](const Arguments& of) -> Made {
         return {relu_rescale({.in = of.tensor("weight_in"),
                               .in_bias = of.tensor_or_none("bias_in"),
                               .out = of.tensors("weights_out"),
                               .degree = of.get<double>("degree"),
                               .whole = of.get<bool>("whole"),
                               .layout = of.layout()})};
       }},
      {"chained_rescale",
       [](const Arguments& of) {
         return chained_rescale({.weights = of.tensors("weights"),
                                 .biases = of.tensors_or_none("biases"),
                                 .degree = of.get<double>("degree"),
                                 .whole = of.get<bool>("whole"),
                                 .layout = of.layout()});
       }},
      {"glu_rescale",
       [](const Arguments& of) -> Made {
         return {glu_rescale({.up = of.tensor("weight_up"),
                              .up_bias = of.tensor_or_none("bias_up"),
                              .down = of.tensors("weights_down"),
                              .layout = of.layout()})};
       }},
      {"diagonal_linear",
       [](const Arguments& of) -> Made {
         return {diagonal_linear({.u = of.tensor("u"), .v = of.tensor("v")})};
       }},
      {"linear_pair",
       [](const Arguments& of) -> Made {
         return {linear_pair({.first = of.tensor("weight_first"),
                              .second = of.tensor("weight_second"),
                              .layout = of.layout()})};
       }},
      {"norm_scale",
       [](const Arguments& of) -> Made {
         return {norm_scale({.gain = of.tensor("gain"),
                             .shift = of.tensor_or_none("shift"),
                             .readers = of.tensors("weights_out"),
                             .gain_is_offset = of.get<bool>("gain_is_offset"),
                             .layout = of.layout()})};
       }},
      {"norm_kernel_shifts", [](const Arguments& of) { return norm_kernel_shifts(of.norm()); }},
      {"norm_shift_exchange",
       [](const Arguments& of) -> Made {
         auto norm = of.norm();
         norm.added_next = of.tensor_or_none("bias_added_next");
         return {norm_shift_exchange(norm)};
       }},
      {"cross_entropy_shift",
       [](const Arguments& of) -> Made {
         return {cross_entropy_shift(of.tensor("tensor"), of.layout())};
       }},
      {"null_shift", [](const Arguments& of) -> Made { return {null_shift(of.tensor("tensor"))}; }},
      {"residual_mean_shift",
       [](const Arguments& of) -> Made {
         return {residual_mean_shift({of.tensor("writer"), of.get<int64_t>("axis")})};
       }},
      {"residual_rotation",
       [](const Arguments& of) -> Made {
         return {residual_rotation({.writers = of.writers(),
                                    .norms = of.norms(),
                                    .layer_norm = of.get<bool>("layer_norm")})};
       }},
      {"qk_scale", &of_query_key<&qk_scale>},
      {"qk_torus", &of_query_key<&qk_torus>},
      {"qk_rotation", &of_query_key<&qk_rotation>},
      {"qk_linear", &of_query_key<&qk_linear>},
      {"key_bias_null", &of_query_key<&key_bias_null>},
      {"vo_scale", &of_value_output<&vo_scale>},
      {"vo_rotation", &of_value_output<&vo_rotation>},
      {"vo_linear", &of_value_output<&vo_linear>},
      {"value_bias_exchange", &of_value_output<&value_bias_exchange>},
  };
  return all;
}

void bind_makers_of_gauges(py::module_& module) {
  module.def(
      "make_gauges",
      [](const std::string& maker, NamedTensors parameters, py::dict arguments) {
        const Arguments of(std::move(parameters), std::move(arguments));
        return of.checked(makers().at(maker)(of));
      },
      py::arg("maker"), parameters_arg(), py::arg("arguments"));
}

// ---- Measures -------------------------------------------------------------------------------------

std::map<std::string, at::Tensor> dictionary(const Parameters& table) {
  std::map<std::string, at::Tensor> result;
  for (const auto& [name, tensor] : table) result[name] = tensor;
  return result;
}

void bind_measures(py::module_& module) {
  using OfThread = py::call_guard<Unlocked>;
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
/// recipe, and treatment.
using Description =
    std::tuple<py::object, std::vector<std::pair<Names, py::dict>>, std::string, py::dict>;

/// What makes such optimizers of other tensors. Its copies share the description, since they are made
/// without the interpreter's lock.
testing::OptimizerFactory factory_of(Description description) {
  return [shared = std::make_shared<Description>(std::move(description))](
             const Parameters& params, std::vector<Gauge> gauges) {
    const py::gil_scoped_acquire lock;
    const auto& [rule, described, recipe, treatment] = *shared;
    std::vector<NamedTensors> groups;
    std::vector<py::dict> options;
    for (const auto& [names, values] : described) {
      groups.emplace_back();
      for (const auto& name : names) groups.back().emplace_back(name, params[name].tensor);
      options.push_back(values);
    }
    return make_optimizer(rule, groups, options, std::move(gauges), recipe, treatment);
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
         std::optional<Description> optimizer, std::vector<Gauge> others, uint64_t seed,
         int64_t steps) {
        testing::InvariantOptions options;
        options.seed = seed;
        options.steps = steps;
        options.others = std::move(others);
        if (optimizer) options.optimizer = factory_of(std::move(*optimizer));
        const testing::Loss of_table = [&loss](const Parameters& table, int64_t batch) {
          NamedTensors tensors;
          for (const auto& [name, tensor] : table) tensors.emplace_back(name, tensor);
          return loss(std::move(tensors), batch);
        };
        const auto table = table_of(std::move(parameters));
        const Unlocked unlocked;
        return testing::check_gauge_invariants(gauge, table, of_table, options);
      },
      py::arg("gauge"), parameters_arg(), py::arg("loss"), py::kw_only(), py::arg("optimizer"),
      py::arg("others"), py::arg("seed"), py::arg("steps"));
}

}  // namespace

void bind_makers(py::module_& module) {
  bind_makers_of_gauges(module);
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
  publish("StepCost", "Cost of the steps of an optimizer, in bytes, operations and seconds.");
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
