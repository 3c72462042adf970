#include "ddc/optim/sgd.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "support/rules.h"

namespace ddc::tests {
namespace {

struct Pair {
  at::Tensor ours;
  at::Tensor theirs;
  at::Tensor our_buffer;
  at::Tensor their_buffer;
};

/// 50 steps of the rule and of torch::optim::SGD on the same gradients.
Pair run_both(at::IntArrayRef shape, at::ScalarType type, const SgdOptions& settings) {
  auto random = rule_generator(7);
  const auto ours = at::randn(shape, random, type);
  auto theirs = ours.clone().requires_grad_();
  torch::optim::SGD reference({theirs}, torch::optim::SGDOptions(settings.lr)
                                            .momentum(settings.momentum)
                                            .dampening(settings.dampening)
                                            .nesterov(settings.nesterov));
  auto moments = SgdRule::init(alone(ours), settings);
  for (int64_t step = 1; step <= 50; ++step) {
    const auto gradient = at::randn(shape, random, type);
    theirs.mutable_grad() = gradient.clone();
    reference.step();
    ours.add_(SgdRule::step(gradient, step, alone(ours), moments, settings));
  }
  Pair result{ours, theirs.detach(), moments.momentum_buffer, {}};
  const auto found = reference.state().find(theirs.unsafeGetTensorImpl());
  if (found != reference.state().end()) {
    result.their_buffer =
        dynamic_cast<const torch::optim::SGDParamState&>(*found->second).momentum_buffer();
  }
  return result;
}

std::vector<SgdOptions> variants(double lr) {
  return {{.lr = lr},
          {.lr = lr, .momentum = 0.9},
          {.lr = lr, .momentum = 0.9, .dampening = 0.3},
          {.lr = lr, .momentum = 0.95, .nesterov = true}};
}

const std::vector<std::vector<int64_t>> kShapes{{}, {11}, {6, 6}, {3, 5, 7}, {0, 4}};

TEST(SgdRule, EqualsTorchToTheLastBitWhereTheRateIsAPowerOfTwo) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    for (const auto& shape : kShapes) {
      for (const auto& settings : variants(0.125)) {
        SCOPED_TRACE(testing::Message()
                     << type << " " << at::IntArrayRef(shape) << " momentum " << settings.momentum);
        const auto both = run_both(shape, type, settings);
        EXPECT_TRUE(at::equal(both.ours, both.theirs));
        ASSERT_EQ(both.our_buffer.defined(), settings.momentum != 0);
        ASSERT_EQ(both.their_buffer.defined(), settings.momentum != 0);
        if (settings.momentum != 0) {
          EXPECT_TRUE(at::equal(both.our_buffer, both.their_buffer));
        }
      }
    }
  }
}

TEST(SgdRule, IsWithinARoundingPerStepOfTorchAtOtherRates) {
  // torch fuses the product with the rate and the sum; the buffers have no such product.
  for (const auto type : {at::kDouble, at::kFloat}) {
    const double epsilon = type == at::kDouble ? 2.3e-16 : 1.2e-7;
    for (const auto& settings : variants(0.1)) {
      const auto both = run_both({40, 30}, type, settings);
      const double size = both.theirs.abs().max().item<double>();
      const double error = (both.ours - both.theirs).abs().max().item<double>();
      EXPECT_LE(error, 50 * epsilon * size) << type << " momentum " << settings.momentum;
      if (settings.momentum != 0) {
        EXPECT_TRUE(at::equal(both.our_buffer, both.their_buffer));
      }
    }
  }
}

TEST(SgdRule, LeavesTheGradientAlone) {
  for (const auto& settings : variants(0.1)) {
    const auto gradient = at::ones({3}, at::kDouble);
    displacements(rule_of<SgdRule>(settings), {gradient, gradient, gradient});
    EXPECT_TRUE(at::equal(gradient, at::ones({3}, at::kDouble)));
  }
}

TEST(SgdRule, TakesZeroGradients) {
  for (const auto& settings : variants(0.1)) {
    const std::vector<at::Tensor> zeros(3, at::zeros({2, 3}));
    for (const auto& moved : displacements(rule_of<SgdRule>(settings), zeros)) {
      EXPECT_TRUE(at::equal(moved, at::zeros({2, 3})));
    }
  }
}

TEST(SgdRule, StartsItsMomentumWhenItIsSwitchedOnLater) {
  const auto gradients = drawn_gradients({4, 3}, 4, 1);
  SgdOptions options{.lr = 1};
  auto moments = SgdRule::init(alone(gradients[0]), options);
  const auto step = [&](int64_t i) {
    return SgdRule::step(gradients[static_cast<size_t>(i)], i + 1, alone(gradients[0]), moments,
                         options);
  };
  EXPECT_TRUE(at::equal(step(0), -gradients[0]));
  EXPECT_FALSE(moments.momentum_buffer.defined());
  options.momentum = 0.5;
  EXPECT_TRUE(at::equal(step(1), -gradients[1]));
  EXPECT_TRUE(at::equal(step(2), -(gradients[1] * 0.5 + gradients[2])));
}

}  // namespace
}  // namespace ddc::tests
