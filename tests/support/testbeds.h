#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ddc/gauge/action.h"
#include "ddc/gauge/gauge.h"
#include "ddc/testbeds/testbed.h"

// What the tests of testbeds share.

namespace ddc::testbeds {

inline at::Generator test_generator(uint64_t seed) {
  return at::make_generator<at::CPUGeneratorImpl>(seed);
}

inline double loss_value(const Testbed& bed, const Parameters& params, const Batch& batch) {
  const at::NoGradGuard no_grad;
  return bed.loss(params, batch).item<double>();
}

/// How far random elements of the gauges, of size 0.5, move the loss, relative to the loss: the
/// most that any of four did. One alone says little of a wrong gauge, whose effects on the samples
/// of a batch can cancel.
inline double loss_change(const Testbed& bed, const std::vector<Gauge>& gauges,
                          const Parameters& params, const Batch& batch) {
  const double before = loss_value(bed, params, batch);
  double largest = 0;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const auto moved = params.clone();
    act_(gauges, random_element(gauges, params, 0.5, test_generator(seed)), moved);
    const double after = loss_value(bed, moved, batch);
    const double change = std::abs(after - before) / std::abs(before);
    if (std::isnan(change)) return change;  // passes neither as unchanged nor as changed
    largest = std::max(largest, change);
  }
  return largest;
}

inline Parameters gradients_of(const Testbed& bed, const Parameters& params, const Batch& batch) {
  const auto copy = params.clone();
  bed.loss(copy, batch).backward();
  Parameters gradients;
  for (const auto& [name, tensor] : copy) {
    gradients.add(name, tensor.grad().defined() ? tensor.grad() : at::zeros_like(tensor));
  }
  return gradients;
}

inline Gauge gauge_called(const std::vector<Gauge>& gauges, const std::string& name) {
  const auto found = std::find_if(gauges.begin(), gauges.end(),
                                  [&](const Gauge& gauge) { return gauge.name == name; });
  TORCH_CHECK(found != gauges.end(), "no gauge is called '", name, "'");
  return *found;
}

/// The gauge with one leg left out, or with another exponent on it.
inline Gauge without_leg(Gauge gauge, size_t leg) {
  gauge.legs.erase(gauge.legs.begin() + static_cast<std::ptrdiff_t>(leg));
  return gauge;
}
inline Gauge with_exponent(Gauge gauge, size_t leg, double exponent) {
  gauge.legs[leg].exponent = exponent;
  return gauge;
}

/// The kinds of all gauges, each once, in order of the alphabet.
inline std::vector<std::string> kinds_of(const std::vector<Gauge>& gauges) {
  std::vector<std::string> kinds;
  for (const auto& gauge : gauges) kinds.push_back(gauge.kind);
  std::sort(kinds.begin(), kinds.end());
  kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
  return kinds;
}

/// The dimensions of all gauges of one kind together.
inline int64_t dimension_of_kind(const std::vector<Gauge>& gauges, const Parameters& params,
                                 const std::string& kind) {
  int64_t total = 0;
  for (const auto& gauge : gauges) total += gauge.kind == kind ? dimension(gauge, params) : 0;
  return total;
}

/// All entries of a table in one vector, in the order of the table.
inline at::Tensor flattened(const Parameters& params) {
  std::vector<at::Tensor> entries;
  for (const auto& [name, tensor] : params) entries.push_back(tensor.detach().flatten());
  return at::cat(entries);
}

/// The directions in which the gauges move the parameters, as columns: differences of fourth order,
/// so that they are exact up to rounding for all purposes here.
inline at::Tensor tangents(const std::vector<Gauge>& gauges, const Parameters& params) {
  constexpr double step = 1e-3;
  std::vector<at::Tensor> columns;
  for (const auto& gauge : gauges) {
    const auto identity = identity_element(gauge, params);
    for (int64_t i = 0; i < identity.numel(); ++i) {
      const auto moved = [&](double size) {
        const auto element = identity.clone();
        element.view(-1)[i] = size;
        const auto copy = params.clone();
        act_(gauge, element, copy);
        return flattened(copy);
      };
      columns.push_back((8 * (moved(step) - moved(-step)) - (moved(2 * step) - moved(-2 * step))) /
                        (12 * step));
    }
  }
  return at::stack(columns, 1);
}

}  // namespace ddc::testbeds
