#pragma once

#include <torch/optim/optimizer.h>

#include <map>
#include <string>

#include "ddc/frame/chart.h"

namespace ddc {

/// An option's value, and whether the user gave it. A param group takes what it was not given from
/// the optimizer's defaults; an option given the value that happens to be the default stays given.
template <class T>
struct Setting {
  T value;
  bool given = false;

  void inherit(const Setting& defaults) {
    if (!given) value = defaults.value;
  }
};

/// Options of an optimizer that is lifted by the construction. A new base rule derives its own.
class LiftedOptions : public torch::optim::OptimizerOptions {
 public:
  /// For one of the group's tensors.
  virtual StepSettings step_settings(const at::Tensor& tensor) const = 0;
  /// Takes every option that was not given from `defaults`, which must be of the same type.
  virtual void inherit(const LiftedOptions& defaults) = 0;
  /// Throws, naming the option, its value and the rule, unless all values are usable.
  virtual void validate() const = 0;
  /// All options by name, for checkpoints and for printing (flags as 0 and 1).
  virtual std::map<std::string, double> values() const = 0;
  virtual void assign(const std::map<std::string, double>& values) = 0;
};

}  // namespace ddc

/// Declares option `name` in the manner of TORCH_ARG: `name()` reads, `name(value)` sets.
#define DDC_OPTION(T, name, initial)              \
 public:                                          \
  const T& name() const { return name##_.value; } \
  auto name(const T& value)->decltype(*this) {    \
    name##_ = {value, true};                      \
    return *this;                                 \
  }                                               \
                                                  \
 private:                                         \
  ::ddc::Setting<T> name##_ { initial }
