#pragma once

#include <torch/optim/adamw.h>

#include "ddc/frame/frame.h"
#include "support/training.h"

// Training runs whose gauge coordinates are followed.

namespace ddc::tests {

struct TrainingRun {
  double final_loss = 0;
  /// r(end) - r(start) per gauge.
  std::vector<at::Tensor> drift;

  double largest_drift() const {
    double largest = 0;
    for (const auto& r : drift) {
      const double here = r.abs().max().item<double>();
      largest = here <= largest ? largest : std::isnan(here) ? INFINITY : here;
    }
    return largest;
  }
};

struct TrainingSettings {
  uint64_t seed = 42;
  int64_t steps = 4000;
  double lr = 1e-3;
  double weight_decay = 0.01;
  at::ScalarType type = at::kFloat;
};

/// Coordinates of all gauges, measured on the weights that the frame watches.
inline std::vector<at::Tensor> coordinates(const Frame& frame) {
  std::vector<at::Tensor> result;
  for (size_t k = 0; k < frame.plan().gauges.size(); ++k) {
    result.push_back(frame.gauge_coordinate(k).clone());
  }
  return result;
}

inline TrainingRun follow(const Testbed& testbed, const Parameters& params,
                          torch::optim::Optimizer& optimizer, const Frame& frame,
                          const TrainingSettings& settings) {
  const auto start = coordinates(frame);
  for (int64_t step = 0; step < settings.steps; ++step) {
    backward(testbed, params, testbed.batch(settings.seed * 100000 + step, settings.type));
    optimizer.step();
  }
  TrainingRun run;
  run.final_loss = backward(testbed, params, testbed.batch(0, settings.type));
  const auto end = coordinates(frame);
  for (size_t k = 0; k < start.size(); ++k) run.drift.push_back(end[k] - start[k]);
  return run;
}

inline TrainingRun train_adamw(const Testbed& testbed, const TrainingSettings& settings) {
  const auto params = testbed.init(settings.seed, settings.type);
  std::vector<GroupedParameter> grouped;
  for (const auto& parameter : params) grouped.push_back({parameter, 0});
  const Frame frame(grouped, testbed.gauges(params));
  torch::optim::AdamW optimizer(
      params.tensors(),
      torch::optim::AdamWOptions(settings.lr).weight_decay(settings.weight_decay));
  return follow(testbed, params, optimizer, frame, settings);
}

inline TrainingRun train_ddc(const Testbed& testbed, const std::vector<Gauge>& gauges,
                             const TrainingSettings& settings) {
  const auto params = testbed.init(settings.seed, settings.type);
  DDCAdam optimizer(params, gauges,
                    DDCAdamOptions(settings.lr).weight_decay(settings.weight_decay));
  return follow(testbed, params, optimizer, optimizer.frame(), settings);
}

}  // namespace ddc::tests
