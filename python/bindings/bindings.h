#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ddc/discover/evaluate.h"
#include "ddc/optim/lifted.h"
#include "ddc/parameters.h"

// The Python extension `ddc._C`: the library's own types and nothing that decides anything. What
// users see is written in Python over it.

namespace ddc::python {

namespace py = pybind11;

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Without the lock of the interpreter, and without the autocast that the caller may be under: matrix
/// products of weights and gradients must not be rounded to 16 bits.
class Unlocked {
 private:
  c10::impl::ExcludeDispatchKeyGuard no_autocast_{c10::autocast_dispatch_keyset};
  py::gil_scoped_release unlocked_;
};

inline Parameters table_of(NamedTensors tensors) {
  Parameters table;
  for (auto& [name, tensor] : tensors) table.add(std::move(name), std::move(tensor));
  return table;
}

/// The loss of a batch, and the outputs that it is computed from. pybind11's wrapper takes the interpreter's lock
/// for as long as the call lasts.
using PythonEvaluate =
    std::function<std::tuple<at::Tensor, std::optional<at::Tensor>>(uint64_t batch)>;

inline Evaluate evaluate_of(PythonEvaluate function) {
  return [function = std::move(function)](uint64_t batch) {
    try {
      auto [loss, outputs] = function(batch);
      return Evaluation(std::move(loss), outputs.value_or(at::Tensor()));
    } catch (py::error_already_set& error) {
      const py::gil_scoped_acquire locked;
      if (error.matches(PyExc_KeyboardInterrupt)) throw Interrupted();
      throw;
    }
  };
}

/// An optimizer with param groups `groups` of options `options`. `rule` is the name of a registered one, or
/// (name, rule, init) in Python. `placed`: its weights are at their canonical place already.
std::unique_ptr<LiftedOptimizer> make_optimizer(const py::object& rule,
                                                const std::vector<NamedTensors>& groups,
                                                const std::vector<py::dict>& options,
                                                std::vector<Gauge> gauges,
                                                const std::string& recipe,
                                                const py::dict& treatment, bool placed = false);

void bind_gauges(py::module_& module);
void bind_geometry(py::module_& module);
void bind_symmetries(py::module_& module);
void bind_optimizer(py::module_& module);
void bind_makers(py::module_& module);
void bind_placement(py::module_& module);

}  // namespace ddc::python
