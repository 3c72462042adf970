// The contract on memory: at its peak a step takes, beyond AdamW's two states, at most the largest single
// tensor and vectors per channel. Where no gauge acts it is kept. With gauges it is not yet: what is
// reached is written down here, so that it does not grow. (Bytes are counted, and are the same in every
// run.)

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <ostream>

#include "ddc/testbeds/tally.h"
#include "ddc/testbeds/zoo.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

/// Bytes of a model that is large enough for matrices to count, and what the second step takes.
struct Measured {
  double model = 0;
  double largest = 0;
  double state = 0;
  /// One per tensor.
  double counts = 0;
  /// What the rule remembers, without what gauges do.
  double moments = 0;
  /// Weights at their last turn, which gauges that mix channels are turned back to.
  double anchors = 0;
  double peak = 0;
};

Measured measure(const std::string& network, const OptimizerMaker& make, bool with_gauges) {
  const auto entry = testbeds::zoo_entry(network, {.d_model = 64,
                                                   .heads = 4,
                                                   .d_ff = 256,
                                                   .layers = 3,
                                                   .sequence = 4,
                                                   .vocabulary = 128,
                                                   .batch_size = 2,
                                                   .norm_eps = 1e-5});
  const auto params = entry.testbed.init(entry.seed, at::kFloat);
  Measured result;
  for (const auto& tensor : params.tensors()) {
    result.model += static_cast<double>(tensor.nbytes());
    result.largest = std::max(result.largest, static_cast<double>(tensor.nbytes()));
  }
  const auto gauges = with_gauges ? entry.testbed.gauges(params) : std::vector<Gauge>{};
  backward(entry.testbed, params, entry.testbed.batch(0, at::kFloat));
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  // Most of it is made at construction.
  result.state = static_cast<double>(testbeds::tally_of([&] {
                                       optimizer = make(params, gauges);
                                       optimizer->step();
                                     })->live());
  result.counts = static_cast<double>(params.size() * sizeof(int64_t));
  for (const auto& slot : dynamic_cast<LiftedOptimizer&>(*optimizer).state_slots()) {
    if (slot.field.starts_with("anchor.")) {
      result.anchors += static_cast<double>(slot.tensor->nbytes());
    }
    if (slot.owner != StateSlot::Owner::parameter) continue;
    result.moments += static_cast<double>(slot.tensor->nbytes());
  }
  backward(entry.testbed, params, entry.testbed.batch(1, at::kFloat));
  result.peak = static_cast<double>(testbeds::tally_of([&] { optimizer->step(); })->most());
  std::cout << network << ": the state is " << result.state / result.model << " models, the peak "
            << result.peak / result.model << " models or " << result.peak / result.largest
            << " largest tensors, anchors " << result.anchors / result.model << " models\n";
  return result;
}

OptimizerMaker muon() { return testbeds::ddc_muon({.lr = 1e-2}, {}, in_place()); }

/// A few numbers: what a gradient's check finds, factors.
constexpr double kScalars = 64;

TEST(StepMemory, WithoutGaugesIsOneTensor) {
  const auto adam = measure("rms_swiglu_rope", ddc_adam(), /*with_gauges=*/false);
  EXPECT_LE(adam.state, 2 * adam.model + adam.counts + kScalars);
  EXPECT_GE(adam.state, 2 * adam.model);
  EXPECT_LE(adam.peak, adam.largest + kScalars);
  // Muon remembers one tensor per matrix; the polar factor may use what is left of the second.
  const auto polar = measure("rms_swiglu_rope", muon(), /*with_gauges=*/false);
  EXPECT_LE(polar.state + polar.peak, 2 * polar.model + polar.largest);
}

TEST(StepMemory, WithAllGaugesInPlaceIsThatOfStepsInFloat64) {
  // A rotation of the residual stream ties all tensors together. What there is of all of them at once
  // is the stepped coordinates in float64, two models; the rest is work on single tensors.
  for (const auto* network : {"rms_swiglu_rope", "ln_relu"}) {
    for (const auto& make : {ddc_adam(usual_options(), in_place()), muon()}) {
      const auto measured = measure(network, make, /*with_gauges=*/true);
      EXPECT_LE(measured.moments, 2.1 * measured.model) << network;
      EXPECT_LE(measured.peak, 2 * measured.model + 7 * measured.largest) << network;
    }
  }
}

/// At the canonical place a step works on the weights themselves. Beyond AdamW's state there are the weights as they
/// were at the last turn (anchors) of what is turned, between steps, and in a step in which nothing is turned next to
/// nothing. Where all is due, the residual stream too, it is not the largest tensor yet: what is reached is written
/// down.
TEST(StepMemory, WithAllGaugesAtTheCanonicalPlaceIsAnchorsAndWhatIsTurned) {
  for (const auto* network : {"rms_swiglu_rope", "ln_relu"}) {
    const auto usual = measure(network, ddc_adam(usual_options(), placed()), true);
    EXPECT_LE(usual.peak, usual.largest) << network;
    EXPECT_LE(usual.anchors, 0.3 * usual.model) << network;
    const auto due = measure(network, ddc_adam(usual_options(), placed({.every = 1})), true);
    EXPECT_LE(due.peak, 9 * due.largest) << network;
    EXPECT_LE(due.anchors, due.model) << network;
    for (const auto& measured : {usual, due}) {
      EXPECT_LE(measured.moments, 2 * measured.model + measured.counts) << network;
      EXPECT_GT(measured.anchors, 0) << network;
    }
  }
}

}  // namespace
}  // namespace ddc::tests
