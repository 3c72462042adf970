#include "ddc/testbeds/runs.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "ddc/measure/gauge_coordinates.h"
#include "linalg/rotation.h"

namespace ddc::testbeds {
namespace {

/// Batches of one run, all different, and none shared with another seed's.
uint64_t batch_seed(uint64_t seed, int64_t step) {
  return seed * 100000 + static_cast<uint64_t>(step);
}

double larger(double largest, double candidate) {
  if (std::isnan(candidate)) return INFINITY;
  return std::max(largest, candidate);
}

// ---- Rotations of consecutive iterates. Plain linear algebra on rows: nothing of ddc/coordinates. ----

/// The rows of a block of a leg, in the order of the block's channels: [block, entries]. Where several
/// rows have the same channel (grouped queries) their entries stand side by side.
at::Tensor block_rows(const Gauge& gauge, const Leg& leg, const at::Tensor& weights,
                      int64_t block) {
  std::vector<int64_t> indices;
  for (int64_t p = 0; p < gauge.block; ++p) {
    for (int64_t i = 0; i < weights.size(leg.axis); ++i) {
      const int64_t channel = leg.channel_of.empty() ? i : leg.channel_of[i];
      if (channel == block * gauge.block + p) indices.push_back(i);
    }
  }
  return weights.movedim(leg.axis, 0)
      .index_select(0, at::tensor(indices, at::kLong))
      .reshape({gauge.block, -1});
}

/// What of the parameters a block of a gauge turns: [block, entries of all legs].
at::Tensor turned_block(const Gauge& gauge, const Parameters& params, int64_t block) {
  std::vector<at::Tensor> plus;
  std::vector<at::Tensor> minus;
  for (const auto& leg : gauge.legs) {
    const auto weights = params[leg.tensor].tensor.detach().to(at::kDouble) + leg.offset;
    auto& side = gauge.action == Action::linear && leg.exponent < 0 ? minus : plus;
    side.push_back(block_rows(gauge, leg, weights, block));
  }
  return minus.empty() ? at::cat(plus, 1) : balanced_sides(at::cat(plus, 1), at::cat(minus, 1));
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

OptimizerMaker ddc_adam(const AdamOptions& options, const Treatments& treatments) {
  return lifted<AdamRule>(options, treatments);
}

std::vector<std::string> left_to_adam(const Parameters& params) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : params) {
    const bool left = name.starts_with("embedding.") || name.starts_with("positions.") ||
                      name.starts_with("class_token.") || name.starts_with("unembedding.") ||
                      name == "patch_embedding.bias";
    if (left) names.push_back(name);
  }
  return names;
}

OptimizerMaker muon(const MuonOptions& options, const AdamOptions& adam) {
  return [=](const Parameters& params, const std::vector<Gauge>&) {
    return std::make_unique<DDCMuon>(params, std::vector<Gauge>{}, options, Treatments(),
                                     AdamPart{left_to_adam(params), adam});
  };
}

OptimizerMaker ddc_muon(const MuonOptions& options, const AdamOptions& adam,
                        const Treatments& treatments) {
  return [=](const Parameters& params, std::vector<Gauge> gauges) {
    return std::make_unique<DDCMuon>(params, std::move(gauges), options, treatments,
                                     AdamPart{left_to_adam(params), adam});
  };
}

double paired_error(const Testbed& testbed, const std::vector<Gauge>& gauges,
                    const OptimizerMaker& make, const PairedRun& run) {
  const auto params = testbed.init(run.seed, run.type);
  const auto element = random_element(gauges, params, run.size, generator(run.seed + 100));
  return paired_error(testbed, gauges, element, make, run);
}

double paired_error(const Testbed& testbed, const std::vector<Gauge>& gauges,
                    const std::vector<GroupElement>& element, const OptimizerMaker& make,
                    const PairedRun& run) {
  const auto first = testbed.init(run.seed, run.type);
  const auto second = first.clone();
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
  for (const auto* optimizer : {&first_optimizer, &second_optimizer}) {
    if (auto* lifted = dynamic_cast<LiftedOptimizer*>(optimizer->get())) lifted->to_original_();
  }
  const auto image = first.clone();
  act_(gauges, element, image);
  return relative_error(second, image);
}

double Drift::largest() const {
  double result = 0;
  for (const auto& r : of_gauge) {
    if (r.numel() > 0) result = larger(result, r.abs().max().item<double>());
  }
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
  std::optional<GaugeCoordinates> outside;
  if (lifted == nullptr || lifted->gauges().empty()) outside.emplace(params, gauges);
  const auto coordinates = [&] {
    return outside ? outside->measure() : lifted->gauge_coordinates();
  };
  const auto start = coordinates();
  Drift result;
  for (int64_t step = 0; step < run.steps; ++step) {
    result.losses.push_back(
        backward(testbed, params, testbed.batch(batch_seed(run.seed, step), run.type)));
    optimizer->step();
    if (progress) progress(step + 1, result.losses.back());
  }
  result.final_loss = backward(testbed, params, testbed.batch(0, run.type));
  const auto end = coordinates();
  for (size_t k = 0; k < start.size(); ++k) result.of_gauge.push_back(end[k] - start[k]);
  return result;
}

double RotationDrift::most_accumulated() const {
  double result = 0;
  for (const auto& angles : accumulated) result = larger(result, angles.max().item<double>());
  return result;
}

double RotationDrift::most_in_a_step() const {
  double result = 0;
  for (const auto& angles : largest_step) result = larger(result, angles.max().item<double>());
  return result;
}

std::vector<at::Tensor> turned_parts(const std::vector<Gauge>& gauges, const Parameters& params) {
  std::vector<at::Tensor> result;
  for (const auto& gauge : gauges) {
    if (!gauge.mixes()) continue;
    for (int64_t b = 0; b < gauge.blocks(); ++b) result.push_back(turned_block(gauge, params, b));
  }
  return result;
}

double largest_turn(const std::vector<at::Tensor>& before, const std::vector<at::Tensor>& after) {
  double largest = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    largest = larger(largest, rotation_angle(best_rotation(before[i], after[i])));
  }
  return largest;
}

RotationDrift rotation_drift(const Testbed& testbed, const Parameters& params,
                             const std::vector<Gauge>& gauges, const OptimizerMaker& make,
                             const DriftRun& run) {
  std::vector<Gauge> turning;
  for (const auto& gauge : gauges) {
    if (gauge.mixes()) turning.push_back(gauge);
  }
  const auto optimizer = make(params, gauges);
  auto before = turned_parts(turning, params);
  std::vector<at::Tensor> product;
  for (const auto& part : before) product.push_back(at::eye(part.size(0), at::kDouble));
  std::vector<double> largest(before.size(), 0);
  RotationDrift result;
  for (int64_t step = 0; step < run.steps; ++step) {
    result.losses.push_back(
        backward(testbed, params, testbed.batch(batch_seed(run.seed, step), run.type)));
    optimizer->step();
    const auto after = turned_parts(turning, params);
    for (size_t i = 0; i < after.size(); ++i) {
      const auto rotation = best_rotation(before[i], after[i]);
      product[i] = rotation.matmul(product[i]);
      largest[i] = larger(largest[i], rotation_angle(rotation));
    }
    before = after;
  }
  size_t next = 0;
  for (const auto& gauge : turning) {
    result.names.push_back(gauge.name);
    result.accumulated.push_back(at::zeros({gauge.blocks()}, at::kDouble));
    result.largest_step.push_back(at::zeros({gauge.blocks()}, at::kDouble));
    for (int64_t b = 0; b < gauge.blocks(); ++b, ++next) {
      result.accumulated.back()[b] = rotation_angle(product[next]);
      result.largest_step.back()[b] = largest[next];
    }
  }
  return result;
}

}  // namespace ddc::testbeds
