#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddc/gauge/action.h"
#include "ddc/optim/ddc_adam.h"
#include "ddc/testbeds/testbed.h"

// What tests that train something share.

namespace ddc::tests {

using testbeds::Testbed;
using OptimizerMaker =
    std::function<std::unique_ptr<torch::optim::Optimizer>(const Parameters&, std::vector<Gauge>)>;

inline at::Generator generator(uint64_t seed) {
  return at::make_generator<at::CPUGeneratorImpl>(seed);
}

/// Forward and backward pass; leaves the gradients in the parameters and returns the loss.
inline double backward(const Testbed& testbed, const Parameters& params,
                       const testbeds::Batch& batch) {
  for (const auto& entry : params) entry.tensor.mutable_grad() = at::Tensor();
  const auto loss = testbed.loss(params, batch);
  loss.backward();
  return loss.item<double>();
}

/// max over tensors of |a - b| / |b| (Frobenius norms); NaN counts as infinite.
inline double relative_error(const Parameters& actual, const Parameters& expected) {
  double largest = 0;
  for (const auto& [name, tensor] : expected) {
    const auto b = tensor.detach().to(at::kDouble);
    const auto a = actual[name].tensor.detach().to(at::kDouble);
    const double scale = std::max(b.norm().item<double>(), 1e-300);
    const double error = (a - b).norm().item<double>() / scale;
    largest = error <= largest ? largest : std::isnan(error) ? INFINITY : error;
  }
  return largest;
}

inline DDCAdamOptions usual_options() { return DDCAdamOptions(1e-3).weight_decay(0.01); }

inline OptimizerMaker ddc_adam(DDCAdamOptions options = usual_options()) {
  return [options](const Parameters& params, std::vector<Gauge> gauges) {
    return std::make_unique<DDCAdam>(params, std::move(gauges), options);
  };
}

struct PairedRun {
  uint64_t seed = 1;
  int64_t steps = 50;
  at::ScalarType type = at::kDouble;
  /// Size of the group element between the copies.
  double size = 0.5;
};

/// Trains two copies related by a random element of all the gauges, a new batch each step (the same
/// for both), each copy on gradients of its own. Returns how far they are from being related still.
inline double paired_error(const Testbed& testbed, const std::vector<Gauge>& gauges,
                           const OptimizerMaker& make, const PairedRun& run = {}) {
  auto first = testbed.init(run.seed, run.type);
  auto random = generator(run.seed + 100);
  const auto element = random_element(gauges, first, run.size, random);
  auto second = first.clone();
  act_(gauges, element, second);
  const auto first_optimizer = make(first, gauges);
  const auto second_optimizer = make(second, gauges);
  for (int64_t step = 0; step < run.steps; ++step) {
    const auto batch = testbed.batch(run.seed * 100000 + step, run.type);
    backward(testbed, first, batch);
    backward(testbed, second, batch);
    first_optimizer->step();
    second_optimizer->step();
  }
  auto image = first.clone();
  act_(gauges, element, image);
  return relative_error(second, image);
}

}  // namespace ddc::tests
