#pragma once

#include "bindings.h"
#include "ddc/options.h"
#include "ddc/treatment.h"

// Options between Python and C++: values by name, and declarations as dictionaries.

namespace ddc::python {

/// A value of an option. None is "default"; a tensor or a NumPy number of one entry is that number.
inline OptionValue option_value(const std::string& option, const py::handle& value) {
  if (value.is_none()) return std::string("default");
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>();
  if (py::isinstance<py::int_>(value)) {
    try {
      return value.cast<int64_t>();
    } catch (const py::cast_error&) {
      return value.cast<double>();  // beyond 64 bits
    }
  }
  if (py::isinstance<py::float_>(value)) return value.cast<double>();
  if (py::isinstance<py::str>(value)) return value.cast<std::string>();
  if (py::hasattr(value, "numel") && value.attr("numel")().cast<int64_t>() != 1) {
    TORCH_CHECK_VALUE(false, "Tensor ", option, " must be 1-element, has shape ",
                      py::str(value.attr("shape")).cast<std::string>());
  }
  if (py::hasattr(value, "item")) return option_value(option, value.attr("item")());
  TORCH_CHECK_VALUE(false, "option ", option, " must be a number, a truth value or a word, got ",
                    py::repr(value).cast<std::string>());
}

inline OptionValues option_values(const py::dict& values) {
  OptionValues result;
  for (const auto& [key, value] : values) {
    const auto name = key.cast<std::string>();
    result[name] = option_value(name, value);
  }
  return result;
}

/// Treatments from {option: value, or {kind or name: value}}. What is said for all comes first.
inline Treatments treatments_of(Treatments treatments, const py::dict& given) {
  for (const auto& [key, value] : given) {
    const auto option = key.cast<std::string>();
    if (py::isinstance<py::dict>(value)) continue;
    treatments.set(option, option_value(option, value));
  }
  for (const auto& [key, value] : given) {
    if (!py::isinstance<py::dict>(value)) continue;
    const auto option = key.cast<std::string>();
    for (const auto& [kind, each] : value.cast<py::dict>()) {
      treatments.set(option, option_value(option, each), kind.cast<std::string>());
    }
  }
  return treatments;
}

inline py::object to_python(const Option& option, const OptionValue& value) {
  if (option.is_optional() && value == OptionValue(std::string("default"))) return py::none();
  return std::visit([](const auto& each) -> py::object { return py::cast(each); }, value);
}

/// Declarations as dictionaries: what Python signatures, help and tables are made of.
inline py::list declarations(const OptionList& options) {
  static const char* const types[] = {"bool", "int", "float", "str", "choice"};
  py::list result;
  for (const auto& option : options) {
    py::dict each;
    each["name"] = option.name();
    each["type"] = types[static_cast<int>(option.type())];
    each["default"] = to_python(option, option.get());
    each["choices"] = option.choices();
    each["optional"] = option.is_optional();
    each["rule"] = option.rule();
    each["help"] = option.help();
    result.append(each);
  }
  return result;
}

}  // namespace ddc::python
