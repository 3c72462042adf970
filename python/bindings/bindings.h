#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>
#include <utility>
#include <vector>

#include "ddc/parameters.h"

// The Python extension `ddc._C`: the library's own types and nothing that decides anything. What
// users see is written in Python over it.

namespace ddc::python {

namespace py = pybind11;

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

inline Parameters table_of(NamedTensors tensors) {
  Parameters table;
  for (auto& [name, tensor] : tensors) table.add(std::move(name), std::move(tensor));
  return table;
}

void bind_gauges(py::module_& module);
void bind_symmetries(py::module_& module);
void bind_optimizer(py::module_& module);
void bind_makers(py::module_& module);

}  // namespace ddc::python
