#include <c10/util/Exception.h>

#include "bindings.h"
#include "ddc/version.h"

namespace ddc::python {
namespace {

/// Errors with the sentence that they were thrown with. (By default what C++ says of its own stack
/// would follow it.)
void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const c10::ValueError& error) {
    py::set_error(PyExc_ValueError, error.what_without_backtrace());
  } catch (const c10::TypeError& error) {
    py::set_error(PyExc_TypeError, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    py::set_error(PyExc_RuntimeError, error.what_without_backtrace());
  }
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  py::register_local_exception_translator(translate);
  module.attr("__version__") = kVersion;
  module.attr("torch_version") = DDC_TORCH_VERSION;
  bind_gauges(module);
  bind_geometry(module);
  bind_symmetries(module);
  bind_optimizer(module);
  bind_makers(module);
  bind_placement(module);
}

}  // namespace ddc::python
