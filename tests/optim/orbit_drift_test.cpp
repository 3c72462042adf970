// Rotations have no coordinate that could be held; what is asked is that no step turns the weights
// along the orbit. Measured on the weights by plain linear algebra (testbeds/runs.h), with the gauges
// of heads bound alone, so that the weights are coordinates.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <iostream>
#include <ostream>

#include "ddc/gauge/attention.h"
#include "ddc/testbeds/blocks.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

using testbeds::rotation_drift;
using testbeds::RotationDrift;

constexpr int64_t kHeads = 2;
constexpr double kWeightDecay = 0.01;

/// A network with the gauges of its heads, and nothing else bound.
struct Case {
  std::string name;
  Testbed bed;
  std::function<std::vector<Gauge>(const Parameters&)> gauges;
};
void PrintTo(const Case& each, std::ostream* out) { *out << each.name; }

QueryKey query_key(const Parameters& params, const std::string& attention) {
  QueryKey spec{.query = params[attention + ".query.weight"],
                .key = params[attention + ".key.weight"],
                .heads = kHeads};
  if (params.contains(attention + ".query.bias")) {
    spec.query_bias = params[attention + ".query.bias"];
    spec.key_bias = params[attention + ".key.bias"];
  } else {
    spec.kv_heads = 1;
    spec.pairing = channel_maps::Pairing::half_split;
  }
  return spec;
}

ValueOutput value_output(const Parameters& params, const std::string& attention) {
  ValueOutput spec{.value = params[attention + ".value.weight"],
                   .output = params[attention + ".output.weight"],
                   .heads = kHeads};
  if (params.contains(attention + ".value.bias")) {
    spec.value_bias = params[attention + ".value.bias"];
  } else {
    spec.kv_heads = 1;
  }
  return spec;
}

const std::string kAttention = "layers.0.attention";

Case layer_norm_case(const std::string& name, Gauge (*qk)(const QueryKey&),
                     Gauge (*vo)(const ValueOutput&)) {
  return {
      name,
      testbeds::layer_norm_block({.d_model = 8,
                                  .heads = kHeads,
                                  .d_ff = 10,
                                  .sequence = 4,
                                  .batch_size = 4,
                                  .relu_part = false}),
      [=](const Parameters& params) {
        return std::vector{qk(query_key(params, kAttention)), vo(value_output(params, kAttention))};
      }};
}

Case rms_norm_case(const std::string& name, Gauge (*qk)(const QueryKey&),
                   Gauge (*vo)(const ValueOutput&)) {
  return {
      name,
      testbeds::rms_norm_block({.d_model = 8,
                                .heads = kHeads,
                                .kv_heads = 1,
                                .d_ff = 10,
                                .sequence = 4,
                                .batch_size = 4}),
      [=](const Parameters& params) {
        return std::vector{qk(query_key(params, kAttention)), vo(value_output(params, kAttention))};
      }};
}

Case rotations() { return layer_norm_case("Rotations", qk_rotation, vo_rotation); }
Case torus() { return rms_norm_case("Torus", qk_torus, vo_rotation); }
Case linear() { return layer_norm_case("Linear", qk_linear, vo_linear); }
Case torus_and_linear() { return rms_norm_case("TorusAndLinear", qk_torus, vo_linear); }

RotationDrift run(const Case& each, const OptimizerMaker& make, int64_t steps) {
  const auto params = each.bed.init(1, at::kDouble);
  return rotation_drift(each.bed, params, each.gauges(params), make,
                        {.seed = 1, .steps = steps, .type = at::kDouble});
}

OptimizerMaker lifted_adam(double lr, double weight_decay, bool procrustes) {
  return ddc_adam({.lr = lr, .weight_decay = weight_decay}, in_place({.procrustes = procrustes}));
}

double mean(const std::vector<double>& values, size_t first, size_t count) {
  double sum = 0;
  for (size_t i = first; i < first + count; ++i) sum += values[i];
  return sum / static_cast<double>(count);
}

class OrbitDrift : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(All, OrbitDrift,
                         ::testing::Values(rotations(), torus(), linear(), torus_and_linear()),
                         [](const auto& instance) { return instance.param.name; });

TEST_P(OrbitDrift, IsRoundingWithProcrustesWhereAdamWTurnsTheHeads) {
  constexpr int64_t kSteps = 2000;
  constexpr double kLr = 1e-3;
  const auto held = run(GetParam(), lifted_adam(kLr, kWeightDecay, /*procrustes=*/true), kSteps);
  // A quarter of the steps is enough to see them turn.
  const auto projected =
      run(GetParam(), lifted_adam(kLr, kWeightDecay, /*procrustes=*/false), kSteps / 4);
  const auto plain = run(GetParam(), testbeds::adamw(kLr, kWeightDecay), kSteps / 4);
  const auto print = [](const char* what, const RotationDrift& drift) {
    std::cout << what << ": angle " << drift.most_accumulated() << " after " << drift.losses.size()
              << " steps, at most " << drift.most_in_a_step() << " in one\n";
  };
  print("procrustes", held);
  print("projected", projected);
  print("AdamW", plain);
  EXPECT_LE(held.most_accumulated(), 1e-10);
  EXPECT_GE(plain.most_accumulated(), 1e-2);
  EXPECT_LT(mean(held.losses, kSteps - 20, 20), 0.8 * mean(held.losses, 0, 20));
}

/// A step D without orbit part has D X^T symmetric, and then (X + D) X^T is too: such a step turns
/// nothing, of whatever size it is. What re-balances a linear gauge after the step does, to second
/// order in the step; this is what the Procrustes lift takes out.
TEST(OrbitDriftTest, OfRotationsIsRoundingWithoutProcrustesToo) {
  for (const auto& each : {rotations(), torus()}) {
    const auto projected = run(each, lifted_adam(1e-2, kWeightDecay, /*procrustes=*/false), 200);
    EXPECT_LE(projected.most_in_a_step(), 1e-12) << each.name;
    EXPECT_LE(projected.most_accumulated(), 1e-11) << each.name;
  }
}

TEST(OrbitDriftTest, OfLinearGaugesIsOfSecondOrderInTheStep) {
  for (const auto& each : {linear(), torus_and_linear()}) {
    double before = 0;
    for (const double lr : {1e-2, 5e-3, 2.5e-3, 1.25e-3}) {
      // Without decay, and the first step only, in which Adam's direction does not depend on lr.
      const auto step = run(each, lifted_adam(lr, 0, /*procrustes=*/false), 1);
      const double angle = step.most_in_a_step();
      std::cout << each.name << ": " << angle << " in a step at lr " << lr << "\n";
      EXPECT_GT(angle, 1e-10);  // not rounding
      if (before > 0) {
        EXPECT_NEAR(std::log2(before / angle), 2, 0.3) << each.name << " at " << lr;
      }
      before = angle;
      EXPECT_LE(run(each, lifted_adam(lr, 0, /*procrustes=*/true), 1).most_in_a_step(), 1e-13);
    }
  }
}

/// Entries of the tensors that a gauge acts on, in one vector.
at::Tensor gauged_entries(const Gauge& gauge, const Parameters& params) {
  std::vector<at::Tensor> entries;
  for (const auto& leg : gauge.legs)
    entries.push_back(params[leg.tensor].tensor.detach().flatten());
  return at::cat(entries);
}

/// The largest over dimensions of the group of |<tangent, step>| / (|tangent| |step|) in any of 50
/// steps, for tangents where the step starts.
double orbit_part(const Case& each, const OptimizerMaker& make) {
  const auto params = each.bed.init(1, at::kDouble);
  const auto gauges = each.gauges(params);
  const auto optimizer = make(params, gauges);
  double largest = 0;
  for (uint64_t step = 0; step < 50; ++step) {
    backward(each.bed, params, each.bed.batch(step, at::kDouble));
    const auto before = params.clone();
    optimizer->step();
    for (const auto& gauge : gauges) {
      // The tensors that it acts on only: the others' steps would hide a part in these.
      Parameters own;
      for (const auto& leg : gauge.legs) own.add(leg.tensor, before[leg.tensor].tensor);
      const auto tangents = orbit_tangents(gauge, own);
      const auto moved = gauged_entries(gauge, params) - gauged_entries(gauge, before);
      const auto share = tangents.matmul(moved).abs() / (tangents.norm(2, {1}) * moved.norm());
      largest = std::max(largest, share.max().item<double>());
    }
  }
  return largest;
}

TEST(OrbitDriftTest, EveryStepIsOrthogonalToTheOrbits) {
  for (const auto& each : {rotations(), torus()}) {
    for (const double decay : {0.0, 0.1}) {
      for (const bool procrustes : {false, true}) {
        const double part = orbit_part(each, lifted_adam(1e-2, decay, procrustes));
        std::cout << each.name << ", decay " << decay << ": " << part
                  << " of a step is along orbits\n";
        // The rotation that Procrustes makes is rounded relative to the weights, not to the step.
        EXPECT_LE(part, procrustes ? 2e-12 : 1e-13) << each.name << ", decay " << decay;
      }
    }
    EXPECT_GE(orbit_part(each, testbeds::adamw(1e-2, 0)), 1e-2) << each.name;
  }
}

}  // namespace
}  // namespace ddc::tests
