#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "ddc/parameters.h"

namespace ddc::tests {

/// max over tensors of |a - b| relative to |b|, or to a thousandth of the largest tensor: some are empty.
inline double apart(const Parameters& a, const Parameters& b) {
  const at::NoGradGuard no_grad;
  double most = 0;
  for (const auto& [name, tensor] : b) most = std::max(most, tensor.norm().item<double>());
  double result = 0;
  for (const auto& [name, tensor] : b) {
    const double size = std::max(tensor.norm().item<double>(), most * 1e-3);
    const double error = (a[name].tensor - tensor).norm().item<double>() / size;
    if (!(error <= result)) result = error;
  }
  return result;
}

}  // namespace ddc::tests
