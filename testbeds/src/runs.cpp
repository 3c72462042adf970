#include "ddc/testbeds/runs.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <cmath>

#include "ddc/gauge/action.h"

namespace ddc::testbeds {
namespace {

std::vector<at::Tensor> coordinates(const Frame& frame) {
  std::vector<at::Tensor> result;
  for (size_t k = 0; k < frame.plan().gauges.size(); ++k) {
    result.push_back(frame.gauge_coordinate(k).clone());
  }
  return result;
}

/// Batches of one run, all different, and none shared with another seed's.
uint64_t batch_seed(uint64_t seed, int64_t step) {
  return seed * 100000 + static_cast<uint64_t>(step);
}

double larger(double largest, double candidate) {
  if (std::isnan(candidate)) return INFINITY;
  return std::max(largest, candidate);
}

}  // namespace

at::Generator generator(uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

double backward(const Testbed& testbed, const Parameters& params, const Batch& batch) {
  for (const auto& entry : params) entry.tensor.mutable_grad() = at::Tensor();
  const auto loss = testbed.loss(params, batch);
  loss.backward();
  return loss.item<double>();
}

double relative_error(const Parameters& actual, const Parameters& expected) {
  double largest = 0;
  for (const auto& [name, tensor] : expected) {
    const auto b = tensor.detach().to(at::kDouble);
    const auto a = actual[name].tensor.detach().to(at::kDouble);
    const double scale = std::max(b.norm().item<double>(), 1e-300);
    largest = larger(largest, (a - b).norm().item<double>() / scale);
  }
  return largest;
}

OptimizerMaker adamw(double lr, double weight_decay) {
  return [=](const Parameters& params, const std::vector<Gauge>&) {
    return std::make_unique<torch::optim::AdamW>(
        params.tensors(), torch::optim::AdamWOptions(lr).weight_decay(weight_decay));
  };
}

OptimizerMaker ddc_adam(const DDCAdamOptions& options) {
  return [=](const Parameters& params, std::vector<Gauge> gauges) {
    return std::make_unique<DDCAdam>(params, std::move(gauges), options);
  };
}

double paired_error(const Testbed& testbed, const std::vector<Gauge>& gauges,
                    const OptimizerMaker& make, const PairedRun& run) {
  const auto first = testbed.init(run.seed, run.type);
  const auto second = first.clone();
  const auto element = random_element(gauges, first, run.size, generator(run.seed + 100));
  act_(gauges, element, second);
  const auto first_optimizer = make(first, gauges);
  const auto second_optimizer = make(second, gauges);
  for (int64_t step = 0; step < run.steps; ++step) {
    const auto batch = testbed.batch(batch_seed(run.seed, step), run.type);
    backward(testbed, first, batch);
    backward(testbed, second, batch);
    first_optimizer->step();
    second_optimizer->step();
  }
  const auto image = first.clone();
  act_(gauges, element, image);
  return relative_error(second, image);
}

Frame observer(const Parameters& params, const std::vector<Gauge>& gauges) {
  std::vector<GroupedParameter> grouped;
  for (const auto& parameter : params) grouped.push_back({parameter, 0});
  return Frame(grouped, gauges);
}

double Drift::largest() const {
  double result = 0;
  for (const auto& r : of_gauge) result = larger(result, r.abs().max().item<double>());
  return result;
}

double Drift::root_mean_square() const {
  double sum = 0;
  int64_t count = 0;
  for (const auto& r : of_gauge) {
    sum += r.square().sum().item<double>();
    count += r.numel();
  }
  return std::sqrt(sum / static_cast<double>(std::max<int64_t>(count, 1)));
}

Drift drift(const Testbed& testbed, const Parameters& params, const std::vector<Gauge>& gauges,
            const OptimizerMaker& make, const DriftRun& run,
            const std::function<void(int64_t, double)>& progress) {
  const auto optimizer = make(params, gauges);
  const auto* lifted = dynamic_cast<const LiftedOptimizer*>(optimizer.get());
  const Frame outside = lifted == nullptr ? observer(params, gauges) : Frame();
  const Frame& frame = lifted == nullptr ? outside : lifted->frame();
  const auto start = coordinates(frame);
  Drift result;
  for (int64_t step = 0; step < run.steps; ++step) {
    result.losses.push_back(
        backward(testbed, params, testbed.batch(batch_seed(run.seed, step), run.type)));
    optimizer->step();
    if (progress) progress(step + 1, result.losses.back());
  }
  result.final_loss = backward(testbed, params, testbed.batch(0, run.type));
  const auto end = coordinates(frame);
  for (size_t k = 0; k < start.size(); ++k) result.of_gauge.push_back(end[k] - start[k]);
  return result;
}

}  // namespace ddc::testbeds
