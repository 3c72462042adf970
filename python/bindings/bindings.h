#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

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

/// An optimizer with param groups `groups` of options `options`. `rule` is the name of a registered one, or
/// (name, rule, init) in Python. `placed`: its weights are at their canonical place already.
std::unique_ptr<LiftedOptimizer> make_optimizer(const py::object& rule,
                                                const std::vector<NamedTensors>& groups,
                                                const std::vector<py::dict>& options,
                                                std::vector<Gauge> gauges,
                                                const std::string& recipe,
                                                const py::dict& treatment, bool placed = false);

void bind_gauges(py::module_& module);
void bind_symmetries(py::module_& module);
void bind_optimizer(py::module_& module);
void bind_makers(py::module_& module);
void bind_placement(py::module_& module);

}  // namespace ddc::python
