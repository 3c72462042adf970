#include <ATen/ATen.h>
#include <pybind11/functional.h>

#include <map>
#include <optional>
#include <sstream>
#include <tuple>

#include "bindings.h"
#include "ddc/gauge/gauge.h"
#include "ddc/geometry/curvature.h"
#include "ddc/geometry/observables.h"

namespace ddc::python {
namespace {

template <class Enum>
Enum named(const std::string& option, const std::string& name) {
  for (size_t k = 0; k < EnumNames<Enum>.size(); ++k) {
    if (name == EnumNames<Enum>[k]) return static_cast<Enum>(k);
  }
  TORCH_CHECK_VALUE(false, "option ", option, " cannot be '", name, "'");
}

using PythonProduct = std::function<at::Tensor(const at::Tensor&)>;

LinearOperator symmetric_of(int64_t size, PythonProduct product, const at::Tensor& like) {
  return LinearOperator::symmetric(size, std::move(product), like.scalar_type());
}

Deflation projection_of(const std::optional<at::Tensor>& deflate) {
  if (!deflate) return {};
  return [basis = *deflate](const at::Tensor& vector) {
    return vector - basis.mv(basis.t().mv(vector));
  };
}

using Pair = std::tuple<double, double>;
Pair pair_of(const Bounded& bounded) { return {bounded.value, bounded.error}; }

}  // namespace

void bind_geometry(py::module_& module) {
  using WithoutLock = py::call_guard<Unlocked>;
  const auto product_of = [](const LinearOperator& matrix, const at::Tensor& v, bool transposed) {
    return transposed ? matrix.transposed(v) : matrix.product(v);
  };

  py::class_<Curvature>(module, "Curvature")
      .def(py::init([](NamedTensors parameters, const PythonEvaluate& evaluate,
                       const std::string& kind, int64_t batches, std::vector<std::string> tensors,
                       int64_t labels, uint64_t seed) {
             const py::gil_scoped_release unlocked;
             return Curvature(table_of(std::move(parameters)), evaluate_of(evaluate),
                              {.kind = named<CurvatureKind>("kind", kind),
                               .batches = batches,
                               .tensors = std::move(tensors),
                               .labels = labels,
                               .seed = seed});
           }),
           py::arg("parameters"), py::arg("evaluate"), py::kw_only(), py::arg("kind"),
           py::arg("batches"), py::arg("tensors"), py::arg("labels"), py::arg("seed"))
      .def_property_readonly("kind", [](const Curvature& c) { return to_string(c.kind()); })
      .def_property_readonly("likelihood",
                             [](const Curvature& c) { return to_string(c.likelihood()); })
      .def_property_readonly("size", &Curvature::size)
      .def_property_readonly("dtype", [](const Curvature& c) { return c.dtype(); })
      .def_property_readonly("samples", &Curvature::samples)
      .def_property_readonly("labels", &Curvature::labels)
      .def_property_readonly("rows", &Curvature::rows)
      .def_property_readonly("tensors",
                             [](const Curvature& c) {
                               NamedTensors tensors;
                               for (const auto& [name, tensor] : c.table()) {
                                 tensors.emplace_back(name, tensor);
                               }
                               return tensors;
                             })
      .def("product", &Curvature::product, WithoutLock(), py::arg("vector"))
      .def(
          "jacobian",
          [product_of](const Curvature& c, const at::Tensor& v, bool transposed) {
            const py::gil_scoped_release unlocked;
            return product_of(c.jacobian(), v, transposed);
          },
          py::arg("vector"), py::arg("transposed"))
      .def(
          "factor",
          [product_of](const Curvature& c, const at::Tensor& v, bool transposed) {
            const py::gil_scoped_release unlocked;
            const auto factor = c.factor();
            TORCH_CHECK_VALUE(factor, to_string(c.kind()), " has no factor with likelihood ",
                              to_string(c.likelihood()));
            return product_of(*factor, v, transposed);
          },
          py::arg("vector"), py::arg("transposed"))
      .def("dense", &Curvature::dense, WithoutLock());

  py::class_<OrbitSpace>(module, "OrbitSpace")
      .def_readonly("dimension", &OrbitSpace::dimension)
      .def_readonly("gauges", &OrbitSpace::gauges)
      .def_property_readonly("basis",
                             [](const OrbitSpace& o) {
                               return o.basis.defined() ? std::optional(o.basis) : std::nullopt;
                             })
      .def(
          "without",
          [](const OrbitSpace& o, const at::Tensor& vector) {
            return o.without ? o.without(vector) : vector;
          },
          py::arg("vector"));
  module.def(
      "orbit_space",
      [](const std::vector<Gauge>& gauges, NamedTensors parameters, const Curvature& curvature,
         const std::vector<std::pair<std::string, at::Tensor>>& others, int64_t memory) {
        std::vector<NamedDirection> named;
        for (const auto& [name, direction] : others) named.push_back({name, direction});
        return orbit_space(gauges, table_of(std::move(parameters)), curvature, named, memory);
      },
      WithoutLock(), py::arg("gauges"), py::arg("parameters"), py::arg("curvature"), py::kw_only(),
      py::arg("others"), py::arg("memory"));

  py::class_<Spectrum>(module, "Spectrum")
      .def_readonly("method", &Spectrum::method)
      .def_readonly("parameters", &Spectrum::parameters)
      .def_readonly("removed", &Spectrum::removed)
      .def_readonly("removed_by", &Spectrum::removed_by)
      .def_readonly("dead", &Spectrum::dead)
      .def_readonly("zeros", &Spectrum::zeros)
      .def_readonly("zeros_in", &Spectrum::zeros_in)
      .def_readonly("gap", &Spectrum::gap)
      .def_readonly("eigenvalues", &Spectrum::eigenvalues)
      .def_readonly("errors", &Spectrum::errors)
      .def_property_readonly("smallest", [](const Spectrum& s) { return pair_of(s.smallest); })
      .def_property_readonly("largest", [](const Spectrum& s) { return pair_of(s.largest); })
      .def_property_readonly("trace", [](const Spectrum& s) { return pair_of(s.trace); })
      .def_property_readonly("log_determinant",
                             [](const Spectrum& s) { return pair_of(s.log_determinant); })
      .def_property_readonly("effective_rank",
                             [](const Spectrum& s) { return pair_of(s.effective_rank); })
      .def_readonly("density", &Spectrum::density)
      .def_readonly("samples", &Spectrum::samples)
      .def_readonly("samples_per_parameter", &Spectrum::samples_per_parameter)
      .def_readonly("few_samples", &Spectrum::few_samples)
      .def_readonly("products", &Spectrum::products)
      .def_readonly("notes", &Spectrum::notes)
      .def("__str__", [](const Spectrum& s) {
        std::ostringstream text;
        text << s;
        return text.str();
      });
  module.def(
      "spectrum",
      [](const Curvature& curvature, const OrbitSpace* orbits, int64_t dense_up_to,
         int64_t iterations, double tolerance, int64_t probes, int64_t quadrature_steps,
         uint64_t seed, bool few_samples) {
        return spectrum(curvature, orbits == nullptr ? OrbitSpace{} : *orbits,
                        {.dense_up_to = dense_up_to,
                         .iterations = iterations,
                         .tolerance = tolerance,
                         .probes = probes,
                         .quadrature_steps = quadrature_steps,
                         .seed = seed,
                         .few_samples = few_samples});
      },
      WithoutLock(), py::arg("curvature"), py::arg("orbits"), py::kw_only(), py::arg("dense_up_to"),
      py::arg("iterations"), py::arg("tolerance"), py::arg("probes"), py::arg("quadrature_steps"),
      py::arg("seed"), py::arg("few_samples"));

  module.def(
      "check_samples",
      [](const Curvature& curvature, const OrbitSpace* orbits, bool few_samples) {
        check_samples(curvature, orbits == nullptr ? OrbitSpace{} : *orbits,
                      {.few_samples = few_samples});
      },
      py::arg("curvature"), py::arg("orbits"), py::kw_only(), py::arg("few_samples"));

  py::class_<Ritz>(module, "Ritz")
      .def_readonly("values", &Ritz::values)
      .def_readonly("errors", &Ritz::errors)
      .def_readonly("weights", &Ritz::weights)
      .def_readonly("products", &Ritz::products)
      .def_readonly("exhausted", &Ritz::exhausted)
      .def_readonly("complete", &Ritz::complete);
  module.def(
      "lanczos",
      [](PythonProduct product, const at::Tensor& start, int64_t iterations, double tolerance,
         const std::optional<at::Tensor>& deflate, bool restart) {
        return lanczos(symmetric_of(start.size(0), std::move(product), start), start, iterations,
                       tolerance, projection_of(deflate),
                       restart ? Exhausted::restart : Exhausted::stop);
      },
      WithoutLock(), py::arg("product"), py::arg("start"), py::kw_only(), py::arg("iterations"),
      py::arg("tolerance"), py::arg("deflate"), py::arg("restart"));

  py::class_<EigenPairs>(module, "EigenPairs")
      .def_readonly("values", &EigenPairs::values)
      .def_readonly("errors", &EigenPairs::errors)
      .def_readonly("vectors", &EigenPairs::vectors)
      .def_readonly("products", &EigenPairs::products);
  module.def(
      "lobpcg_smallest",
      [](PythonProduct product, const at::Tensor& like, int64_t count, int64_t iterations,
         double tolerance, uint64_t seed, const std::optional<at::Tensor>& deflate) {
        return lobpcg_smallest(symmetric_of(like.size(0), std::move(product), like), count,
                               iterations, tolerance, seed, projection_of(deflate));
      },
      WithoutLock(), py::arg("product"), py::arg("like"), py::kw_only(), py::arg("count"),
      py::arg("iterations"), py::arg("tolerance"), py::arg("seed"), py::arg("deflate"));

  py::class_<ActivationSpectrum>(module, "ActivationSpectrum")
      .def_readonly("sigma_min", &ActivationSpectrum::sigma_min)
      .def_readonly("sigma_max", &ActivationSpectrum::sigma_max)
      .def_readonly("effective_rank", &ActivationSpectrum::effective_rank);
  module.def("activation_spectrum", &activation_spectrum, WithoutLock(), py::arg("activations"));
  py::class_<DeadUnits>(module, "DeadUnits")
      .def_readonly("units", &DeadUnits::units)
      .def_readonly("never_on", &DeadUnits::never_on)
      .def_readonly("always_on", &DeadUnits::always_on)
      .def_property_readonly("dead", &DeadUnits::dead);
  module.def("dead_units", &dead_units, WithoutLock(), py::arg("preactivations"));
  module.def("joint_norms", &joint_norms, WithoutLock(), py::arg("entering"), py::arg("leaving"),
             py::arg("degree"));
  module.def("axis_alignment", &axis_alignment, WithoutLock(), py::arg("directions"));
  module.def("space_alignment", &space_alignment, WithoutLock(), py::arg("directions"));
  module.def("dead_directions", &dead_directions, WithoutLock(), py::arg("weight"),
             py::arg("floor"));
  module.def(
      "cluster_gap",
      [](const at::Tensor& values) {
        const auto gap = cluster_gap(values);
        return std::make_tuple(gap.ratio, gap.below);
      },
      WithoutLock(), py::arg("values"));

  module.def(
      "horizontal_length",
      [](const std::vector<Gauge>& gauges, NamedTensors parameters, NamedTensors displacement) {
        return horizontal_length(gauges, table_of(std::move(parameters)),
                                 table_of(std::move(displacement)));
      },
      WithoutLock(), py::arg("gauges"), py::arg("parameters"), py::arg("displacement"));
  py::class_<StepValidity>(module, "StepValidity")
      .def_readonly("kappa", &StepValidity::kappa)
      .def_readonly("tau", &StepValidity::tau)
      .def_readonly("ratio", &StepValidity::ratio)
      .def_property_readonly("valid", &StepValidity::valid);
  module.def(
      "step_validity",
      [](NamedTensors preconditioner, double lr, double beta2) {
        return step_validity(table_of(std::move(preconditioner)), lr, beta2);
      },
      py::arg("preconditioner"), py::kw_only(), py::arg("lr"), py::arg("beta2"));

  py::class_<Rate>(module, "Rate")
      .def_property_readonly("verdict", [](const Rate& r) { return to_string(r.verdict); })
      .def_readonly("reason", &Rate::reason)
      .def_readonly("slope", &Rate::slope)
      .def_property_readonly("interval",
                             [](const Rate& r) {
                               return Pair{r.low, r.high};
                             })
      .def_readonly("order", &Rate::order)
      .def_readonly("learning_coefficient", &Rate::learning_coefficient)
      .def_readonly("end", &Rate::end)
      .def_readonly("first", &Rate::first)
      .def_readonly("points", &Rate::points)
      .def_readonly("r_squared", &Rate::r_squared)
      .def_readonly("path_noise", &Rate::path_noise);
  module.def(
      "rate",
      [](const std::vector<double>& arc, const std::vector<double>& values, const std::string& of,
         std::optional<double> end, int64_t min_points, double min_decades, double max_ascent,
         double max_drift, double max_uncertainty, double min_r_squared, double confidence,
         int64_t resamples, uint64_t seed) {
        return rate(arc, values,
                    {.of = named<RateOf>("of", of),
                     .end = end,
                     .min_points = min_points,
                     .min_decades = min_decades,
                     .max_ascent = max_ascent,
                     .max_drift = max_drift,
                     .max_uncertainty = max_uncertainty,
                     .min_r_squared = min_r_squared,
                     .confidence = confidence,
                     .resamples = resamples,
                     .seed = seed});
      },
      py::arg("arc"), py::arg("values"), py::kw_only(), py::arg("of"), py::arg("end"),
      py::arg("min_points"), py::arg("min_decades"), py::arg("max_ascent"), py::arg("max_drift"),
      py::arg("max_uncertainty"), py::arg("min_r_squared"), py::arg("confidence"),
      py::arg("resamples"), py::arg("seed"));

  // Where users find the classes that are theirs, and what they are.
  const auto publish = [&](const char* name, const char* doc) {
    module.attr(name).attr("__module__") = "ddc.geometry";
    module.attr(name).attr("__doc__") = doc;
  };
  publish("Spectrum",
          "Spectrum of a curvature modulo symmetry: both ends, what was removed and what is null, "
          "with\n"
          "names. Numbers are pairs: the value, and how far from the truth it may be.");
  publish("Ritz", "Ritz values of Lanczos' method: an eigenvalue is within the error of each.");
  publish("EigenPairs", "Eigenvalues with residuals, and orthonormal eigenvectors as columns.");
  publish("ActivationSpectrum",
          "Singular values of a matrix of activations, and its effective rank.");
  publish("DeadUnits",
          "Count of the units whose input never crosses zero: never on, or always on.");
  publish("StepValidity", "Size of a step against the bound of the paper: lr kappa / tau <= 0.1.");
  publish("Rate",
          "Rate at which an observable vanishes: verdict, reason, slope with its interval, order.");
}

}  // namespace ddc::python
