#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "ddc/gauge/gauge.h"

// What a placement remembers, as a file may have it: values that no placement leaves behind are refused when
// they are loaded, and not when weights are moved by them.

namespace ddc {

/// Why a value cannot be what a placement remembers of a gauge that acts on tensors of `type`, in words that
/// follow its name; empty if it can. Its shape is right.
inline std::string unusable(const Gauge& gauge, const std::string& field, const at::Tensor& value,
                            at::ScalarType type) {
  if (value.numel() == 0 || (field != "element" && field != "target")) return {};
  const double most = type == at::kDouble ? std::numeric_limits<double>::max()
                                          : double{std::numeric_limits<float>::max()};
  const double largest = value.abs().max().item<double>();
  if (gauge.action == Action::scale && field == "element") {
    double exponent = 1;
    for (const auto& leg : gauge.legs) exponent = std::max(exponent, std::abs(leg.exponent));
    if (!(largest * exponent <= std::log(most))) {
      return "has the logarithm of a factor that overflows " + std::string(c10::toString(type));
    }
  }
  if ((gauge.action == Action::shift || gauge.action == Action::exchange) && !(largest <= most)) {
    return "has a shift that overflows " + std::string(c10::toString(type));
  }
  if (gauge.action == Action::rotation && field == "element") {
    constexpr double kOrthogonal = 1e-6;
    const auto one = at::eye(value.size(-1), value.options());
    if (!((value.matmul(value.mT()) - one).abs().max().item<double>() <= kOrthogonal)) {
      return "is no rotation: it is not orthogonal";
    }
  }
  if (gauge.action == Action::linear) {
    if (!(largest <= std::sqrt(most))) {
      return "has a factor whose square overflows " + std::string(c10::toString(type));
    }
    const auto sizes = at::linalg_svdvals(value);
    const auto least = std::numeric_limits<double>::epsilon() * std::get<0>(sizes.max(-1));
    if (!(std::get<0>(sizes.min(-1)) > least).all().item<bool>()) return "is a singular matrix";
  }
  return {};
}

}  // namespace ddc
