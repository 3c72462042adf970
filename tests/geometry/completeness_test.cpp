#include "ddc/geometry/completeness.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <sstream>

#include "ddc/gauge/action.h"
#include "ddc/gauge/rescale.h"
#include "ddc/testbeds/blocks.h"
#include "ddc/testbeds/mlp.h"
#include "support/errors.h"
#include "support/testbeds.h"

namespace ddc {
namespace {

using testbeds::gauge_called;
using testbeds::GaugeSet;
using testbeds::Testbed;
using tests::expect_error;

/// Between what is null and what is not, or the dimension is not to be trusted.
constexpr double clear_gap = 1e3;

Evaluate cross_entropy_of(const Testbed& bed, const Parameters& params, bool tell_outputs = true) {
  return [=](uint64_t number) {
    const auto batch = bed.batch(number, at::kDouble);
    const auto logits = bed.outputs(params, batch.inputs);
    const auto loss = at::cross_entropy_loss(logits.flatten(0, -2), batch.targets.flatten());
    return Evaluation(loss, tell_outputs ? logits : at::Tensor());
  };
}

Evaluate squared_error_of(const Testbed& bed, const Parameters& params) {
  return [=](uint64_t number) {
    const auto batch = bed.batch(number, at::kDouble);
    const auto outputs = bed.outputs(params, batch.inputs);
    return Evaluation((outputs - batch.targets).square().mean(), outputs);
  };
}

std::string described(const Completeness& found) {
  std::ostringstream out;
  out << found.method << ": " << found.parameters << " parameters, kernel " << found.kernel
      << ", explained " << found.explained << ", dead " << found.dead << ", unexplained "
      << found.unexplained << ", gap " << found.gap;
  for (const auto& [tensor, dimensions] : found.per_tensor) {
    out << "\n  " << tensor << " " << dimensions;
  }
  return out.str();
}

double sum_of_shares(const Completeness& found) {
  double sum = 0;
  for (const auto& share : found.per_tensor) sum += share.dimensions;
  return sum;
}

std::vector<Gauge> without(std::vector<Gauge> gauges, const std::string& name) {
  std::erase_if(gauges, [&](const Gauge& gauge) { return gauge.name == name; });
  return gauges;
}

Testbed small_layer_norm(double eps = 0.1) {
  return testbeds::layer_norm_block({.d_model = 8,
                                     .heads = 2,
                                     .d_ff = 6,
                                     .relu_part = false,
                                     .norm_eps = eps,
                                     .gauges = GaugeSet::with_residual_rotation});
}

Testbed small_rms_norm(double eps = 0.1) {
  return testbeds::rms_norm_block({.d_model = 8,
                                   .heads = 2,
                                   .kv_heads = 1,
                                   .d_ff = 6,
                                   .norm_eps = eps,
                                   .gauges = GaugeSet::with_residual_rotation});
}

struct Network {
  std::string name;
  Testbed bed;
  uint64_t seed;
};
void PrintTo(const Network& network, std::ostream* out) { *out << network.name; }

class CompletenessOfBlocks : public testing::TestWithParam<Network> {};

/// An eps of 1e-5 leaves the scale of the residual stream all but null, and it must not count.
INSTANTIATE_TEST_SUITE_P(
    All, CompletenessOfBlocks,
    testing::Values(Network{"LayerNorm", small_layer_norm(), 1},
                    Network{"LayerNormTinyEps", small_layer_norm(1e-5), 1},
                    Network{"RmsNorm", small_rms_norm(), 1},
                    Network{"RmsNormTinyEps", small_rms_norm(1e-5), 1},
                    Network{"Vit",
                            testbeds::vit_block({.d_model = 8,
                                                 .heads = 2,
                                                 .d_ff = 6,
                                                 .norm_eps = 0.1,
                                                 .gauges = GaugeSet::with_residual_rotation}),
                            3}),
    [](const auto& instance) { return instance.param.name; });

TEST_P(CompletenessOfBlocks, EverythingIsExplained) {
  const auto& [name, bed, seed] = GetParam();
  const auto params = bed.init(seed, at::kDouble);
  const auto found = completeness(bed.gauges(params), params, cross_entropy_of(bed, params));
  std::cout << name << " " << described(found) << "\n";
  EXPECT_EQ(found.method, "exact");
  EXPECT_GT(found.gap, clear_gap) << described(found);
  EXPECT_EQ(found.dead, 0) << described(found);
  EXPECT_EQ(found.unexplained, 0) << described(found);
  EXPECT_GT(found.explained, 0);
  EXPECT_TRUE(found.per_tensor.empty()) << described(found);
}

/// The dimensions and shares by the square of the Jacobian are those by itself.
void expect_the_same_by_square(const std::vector<Gauge>& gauges, const Parameters& params,
                               const Evaluate& evaluate) {
  const auto dense = completeness(gauges, params, evaluate);
  const auto found = completeness(gauges, params, evaluate, {.decomposed_up_to = 0});
  EXPECT_EQ(dense.method, "exact");
  EXPECT_EQ(found.method, "exact");
  EXPECT_EQ(found.parameters, dense.parameters);
  EXPECT_EQ(found.kernel, dense.kernel) << described(found);
  EXPECT_EQ(found.explained, dense.explained) << described(found);
  EXPECT_EQ(found.dead, dense.dead) << described(found);
  EXPECT_EQ(found.unexplained, dense.unexplained) << described(found);
  EXPECT_GT(found.gap, clear_gap) << described(found);
  ASSERT_EQ(found.per_tensor.size(), dense.per_tensor.size()) << described(found);
  for (const auto& share : found.per_tensor) {
    const auto same = std::find_if(dense.per_tensor.begin(), dense.per_tensor.end(),
                                   [&](const auto& other) { return other.tensor == share.tensor; });
    ASSERT_NE(same, dense.per_tensor.end()) << share.tensor;
    EXPECT_NEAR(share.dimensions, same->dimensions, 1e-5) << share.tensor;
  }
}

TEST_P(CompletenessOfBlocks, TheSquareOfTheJacobianGivesTheSame) {
  const auto& [name, bed, seed] = GetParam();
  const auto params = bed.init(seed, at::kDouble);
  const auto gauges = bed.gauges(params);
  const auto evaluate = cross_entropy_of(bed, params);
  expect_the_same_by_square(gauges, params, evaluate);
  expect_the_same_by_square(without(gauges, gauges.front().name), params, evaluate);
  expect_error([&] { completeness({}, params, evaluate, {.decomposed_up_to = 0}); },
               {"more than 32 directions are unexplained, too many to count"});
}

TEST(Completeness, TheSquareOfTheJacobianGivesTheSameOfThousandsOfParameters) {
  const auto bed = testbeds::relu_chain({.depth = 3, .d_in = 16, .d_hidden = 32, .d_out = 16});
  const auto params = bed.init(1, at::kDouble);
  const auto gauges = bed.gauges(params);
  expect_the_same_by_square(without(gauges, gauges.front().name), params,
                            squared_error_of(bed, params));
}

TEST(Completeness, AGaugeThatIsLeftOutIsMissingWithItsOwnDimensionsAndTensors) {
  const auto bed = small_rms_norm();
  const auto params = bed.init(1, at::kDouble);
  const auto gauges = bed.gauges(params);
  const auto evaluate = cross_entropy_of(bed, params);
  const auto all = completeness(gauges, params, evaluate);
  for (const auto& gauge : gauges) {
    const auto rest = without(gauges, gauge.name);
    const auto found = completeness(rest, params, evaluate);
    // Those of its dimensions that no other gauge has.
    const auto missing = static_cast<double>(all.explained - found.explained);
    EXPECT_GT(missing, 0) << gauge.name;
    EXPECT_EQ(found.unexplained, missing) << gauge.name;
    EXPECT_NEAR(sum_of_shares(found), found.unexplained, 1e-8) << gauge.name;
    for (const auto& leg : gauge.legs) {
      const auto named = std::any_of(found.per_tensor.begin(), found.per_tensor.end(),
                                     [&](const auto& share) { return share.tensor == leg.tensor; });
      EXPECT_TRUE(named) << gauge.name << ": " << leg.tensor;
    }
    EXPECT_TRUE(
        std::is_sorted(found.per_tensor.begin(), found.per_tensor.end(),
                       [](const auto& a, const auto& b) { return a.dimensions > b.dimensions; }));
  }
}

TEST(Completeness, OfTheLossAloneIsTheSame) {
  const auto bed = small_rms_norm();
  const auto params = bed.init(1, at::kDouble);
  const auto gauges = bed.gauges(params);
  const auto seen = completeness(gauges, params, cross_entropy_of(bed, params));
  const auto found = completeness(gauges, params, cross_entropy_of(bed, params, false));
  EXPECT_EQ(found.kernel, seen.kernel) << described(found);
  EXPECT_EQ(found.unexplained, 0) << described(found);
  EXPECT_GT(found.gap, clear_gap) << described(found);
}

TEST(Completeness, OfAChainUnderSquaredError) {
  const auto bed = testbeds::relu_chain({.depth = 3, .d_in = 4, .d_hidden = 6, .d_out = 3});
  const auto params = bed.init(1, at::kDouble);
  const auto found = completeness(bed.gauges(params), params, squared_error_of(bed, params));
  EXPECT_EQ(found.explained, 12) << described(found);
  EXPECT_EQ(found.unexplained, 0) << described(found);
  EXPECT_EQ(found.dead, 0) << described(found);
  EXPECT_GT(found.gap, clear_gap);
}

TEST(Completeness, DeadUnitsAreCountedApart) {
  const auto bed = testbeds::relu_chain({.depth = 2, .d_in = 4, .d_hidden = 6, .d_out = 3});
  const auto params = bed.init(1, at::kDouble);
  {
    const at::NoGradGuard no_grad;
    params["layers.0.bias"].tensor[2].fill_(-100);
  }
  const auto gauges = bed.gauges(params);
  const auto found = completeness(gauges, params, squared_error_of(bed, params));
  const auto by_square =
      completeness(gauges, params, squared_error_of(bed, params), {.decomposed_up_to = 0});
  // All that enters and leaves the dead unit, and of that one direction is its scale.
  for (const auto& count : {found, by_square}) {
    EXPECT_EQ(count.kernel, 5 + (4 + 1 + 3)) << described(count);
    EXPECT_EQ(count.explained, 6) << described(count);
    EXPECT_EQ(count.dead, (4 + 1 + 3) - 1) << described(count);
    EXPECT_EQ(count.unexplained, 0) << described(count);
  }

  const auto bare = completeness({}, params, squared_error_of(bed, params));
  EXPECT_EQ(bare.explained, 0);
  EXPECT_EQ(bare.dead, 4 + 1 + 3);
  EXPECT_EQ(bare.unexplained, 5);
  EXPECT_NEAR(sum_of_shares(bare), 5, 1e-9);
}

/// Logits W tanh(V x), with vocabulary 5.
struct Classifier {
  Parameters params;
  explicit Classifier(bool tied_alias = false) {
    params.add("v", at::randn({3, 4}, testbeds::test_generator(1), at::kDouble).requires_grad_());
    params.add("w", at::randn({5, 3}, testbeds::test_generator(2), at::kDouble).requires_grad_());
    if (tied_alias) params.add("again", params["w"].tensor);
  }
  at::Tensor logits(uint64_t number) const {
    const auto inputs = at::randn({8, 4}, testbeds::test_generator(10 + number), at::kDouble);
    return inputs.matmul(params["v"].tensor.t()).tanh().matmul(params["w"].tensor.t());
  }
  static at::Tensor targets(uint64_t number) {
    return at::randint(0, 5, {8}, testbeds::test_generator(1000 + number), at::kLong);
  }
};

TEST(Completeness, TheLogitShiftIsNullUnderCrossEntropyOnly) {
  const Classifier model;
  const auto kernel_of = [&](double z_loss) {
    return completeness({}, model.params,
                        [&](uint64_t number) {
                          const auto logits = model.logits(number);
                          const auto z = logits.logsumexp(-1).square().mean() * z_loss;
                          return Evaluation(
                              at::cross_entropy_loss(logits, Classifier::targets(number)) + z,
                              logits);
                        })
        .kernel;
  };
  // One shift of all rows of w per hidden unit.
  EXPECT_EQ(kernel_of(0), 3);
  EXPECT_EQ(kernel_of(1e-4), 0);
}

TEST(Completeness, OutputsThatTheLossDoesNotReadDoNotCount) {
  const Classifier model;
  const auto found = completeness({}, model.params, [&](uint64_t number) {
    const auto outputs = model.logits(number);
    return Evaluation(outputs.narrow(1, 0, 2).square().mean(), outputs);
  });
  EXPECT_EQ(found.kernel, 3 * 3) << described(found);
  EXPECT_EQ(found.dead, 3 * 3) << described(found);
}

TEST(Completeness, WhatReachesTheLossBesideTheOutputsCounts) {
  const Classifier model;
  const auto found = completeness({}, model.params, [&](uint64_t number) {
    const auto logits = model.logits(number);
    const auto weight = at::randn({3}, testbeds::test_generator(number), at::kDouble);
    const auto penalty = (model.params["w"].tensor.sum(0) * weight).sum() * 0.1;
    return Evaluation(at::cross_entropy_loss(logits, Classifier::targets(number)) + penalty,
                      logits);
  });
  EXPECT_EQ(found.kernel, 0) << described(found);
}

TEST(Completeness, TiedParametersCountOnce) {
  const Classifier model(/*tied_alias=*/true);
  const auto evaluate = [&](uint64_t number) {
    const auto logits = model.logits(number);
    return Evaluation(at::cross_entropy_loss(logits, Classifier::targets(number)), logits);
  };
  const auto found = completeness({}, model.params, evaluate);
  EXPECT_EQ(found.parameters, 12 + 15);
  EXPECT_EQ(found.kernel, 3) << described(found);
  ASSERT_EQ(found.per_tensor.size(), 1U);
  EXPECT_EQ(found.per_tensor[0].tensor, "w");
}

TEST(Completeness, FrozenParametersHoldStill) {
  const auto bed = testbeds::relu_chain({.depth = 3, .d_in = 4, .d_hidden = 6, .d_out = 3});
  const auto params = bed.init(1, at::kDouble);
  at::Tensor(params["layers.2.weight"].tensor).requires_grad_(false);
  const auto found = completeness(bed.gauges(params), params, squared_error_of(bed, params));
  // Nothing takes up the scales of the second layer's units.
  EXPECT_EQ(found.explained, 6) << described(found);
  EXPECT_EQ(found.unexplained, 0) << described(found);
}

TEST(Completeness, AGaugeThatIsNoneIsAnErrorThatNamesIt) {
  const auto bed = testbeds::relu_chain({.depth = 3, .d_in = 4, .d_hidden = 6, .d_out = 3});
  const auto params = bed.init(1, at::kDouble);
  auto gauges = bed.gauges(params);
  gauges[1] = testbeds::with_exponent(gauges[1], gauges[1].legs.size() - 1, -2);
  expect_error([&] { completeness(gauges, params, squared_error_of(bed, params)); },
               {gauges[1].name, "moves what the loss sees"});
}

TEST(Completeness, NaNsAreAnErrorThatNamesTensorAndBatch) {
  const Classifier model;
  expect_error(
      [&] {
        completeness({}, model.params, [&](uint64_t number) {
          return Evaluation((model.logits(number) * (number == 1 ? NAN : 1.0)).square().mean());
        });
      },
      {"'v'", "batch 1", "NaN"});
}

TEST(Completeness, ALossWithoutParametersIsAnError) {
  const Classifier model;
  expect_error(
      [&] {
        completeness({}, model.params, [&](uint64_t number) {
          return Evaluation(model.logits(number).detach().mean());
        });
      },
      {"batch 0", "does not depend on any parameter"});
}

/// A bound of a few dimensions where nothing is missing, and of as many more where something is.
TEST(Completeness, TheEstimateIsAnUpperBoundThatIterationsLower) {
  const auto bed = testbeds::rms_norm_block({.vocabulary = 32,
                                             .d_model = 8,
                                             .heads = 2,
                                             .kv_heads = 1,
                                             .d_ff = 6,
                                             .batch_size = 16,
                                             .gauges = GaugeSet::with_residual_rotation});
  const auto params = bed.init(1, at::kDouble);
  const auto gauges = bed.gauges(params);
  const auto evaluate = cross_entropy_of(bed, params);
  const auto exact = completeness(gauges, params, evaluate);
  ASSERT_EQ(exact.unexplained, 0) << described(exact);
  const auto bound = [&](const std::vector<Gauge>& bound_gauges, int64_t iterations) {
    return completeness(bound_gauges, params, evaluate,
                        {.exact_up_to = 0, .probes = 2, .iterations = iterations});
  };
  const auto early = bound(gauges, 30);
  const auto late = bound(gauges, 200);
  std::cout << "30 iterations " << early.unexplained << ", 200 " << late.unexplained << " of "
            << late.parameters << "\n";
  EXPECT_EQ(late.method, "estimate after 200 iterations");
  EXPECT_EQ(late.parameters, exact.parameters);
  EXPECT_EQ(late.explained, exact.explained);
  EXPECT_EQ(late.dead, 0);
  EXPECT_LT(late.unexplained, 0.5 * early.unexplained);
  EXPECT_LT(late.unexplained, 0.01 * static_cast<double>(late.parameters));
  EXPECT_NEAR(late.kernel, static_cast<double>(late.explained) + late.unexplained, 1e-9);
  EXPECT_NEAR(sum_of_shares(late), late.unexplained, 1e-6);

  // Twenty-eight dimensions are missing, which two random vectors see as 28 +- 5.
  const auto missing = bound(without(gauges, "residual:rotation"), 200);
  EXPECT_EQ(missing.explained, exact.explained - 28) << described(missing);
  EXPECT_GT(missing.unexplained, late.unexplained + 28 - 15) << described(missing);
}

TEST(Completeness, TheEstimateNamesAWrongGaugeAndNeedsOutputs) {
  const auto bed = testbeds::relu_chain({.depth = 3, .d_in = 4, .d_hidden = 6, .d_out = 3});
  const auto params = bed.init(1, at::kDouble);
  auto gauges = bed.gauges(params);
  const auto evaluate = squared_error_of(bed, params);
  const CompletenessOptions options{.exact_up_to = 0, .probes = 1, .iterations = 50};
  EXPECT_EQ(completeness(gauges, params, evaluate, options).explained, 12);
  expect_error(
      [&] {
        completeness(
            gauges, params, [&](uint64_t batch) { return Evaluation(evaluate(batch).loss); },
            options);
      },
      {"exact_up_to", "93", "outputs"});
  gauges[1] = testbeds::with_exponent(gauges[1], gauges[1].legs.size() - 1, -2);
  expect_error([&] { completeness(gauges, params, evaluate, options); },
               {gauges[1].name, "moves what the loss sees"});
}

CompletenessOptions estimate_of(int64_t iterations) {
  return {.exact_up_to = 0, .probes = 4, .iterations = iterations};
}

TEST(Completeness, TheEstimateCountsOverlapsDeadUnitsAndFrozenParametersAsTheExactMethodDoes) {
  const auto bed = testbeds::relu_chain({.depth = 3, .d_in = 4, .d_hidden = 6, .d_out = 3});
  const auto params = bed.init(1, at::kDouble);
  const auto evaluate = squared_error_of(bed, params);
  auto gauges = bed.gauges(params);
  const auto agree = [&](const char* what) {
    const auto exact = completeness(gauges, params, evaluate);
    const auto found = completeness(gauges, params, evaluate, estimate_of(1));
    EXPECT_EQ(found.explained, exact.explained) << what << "\n" << described(found);
    EXPECT_EQ(found.dead, exact.dead) << what << "\n" << described(found);
    return exact.explained;
  };
  EXPECT_EQ(agree("chain"), 12);
  auto again = gauges[0];
  again.name = "again";
  gauges.push_back(again);
  EXPECT_EQ(agree("one gauge twice"), 12);
  {
    const at::NoGradGuard no_grad;
    params["layers.0.bias"].tensor[2].fill_(-100);
  }
  EXPECT_EQ(agree("a dead unit"), 12);
  at::Tensor(params["layers.2.weight"].tensor).requires_grad_(false);
  EXPECT_EQ(agree("a frozen layer"), 6);
}

TEST(Completeness, AnEstimateThatMayNotBeComputedSaysThatItTellsNothing) {
  const auto bed = small_rms_norm();
  const auto params = bed.init(1, at::kFloat);
  const auto gauges = bed.gauges(params);
  const Evaluate evaluate = [&](uint64_t number) {
    const auto batch = bed.batch(number, at::kFloat);
    const auto logits = bed.outputs(params, batch.inputs);
    return Evaluation(at::cross_entropy_loss(logits.flatten(0, -2), batch.targets.flatten()),
                      logits);
  };
  auto options = estimate_of(100);
  options.work = 1;
  const auto found = completeness(gauges, params, evaluate, options);
  EXPECT_EQ(found.method, "not counted: after 0 iterations the bound is too loose");
  EXPECT_EQ(found.explained, 86) << described(found);
  EXPECT_EQ(found.unexplained, static_cast<double>(found.parameters - found.explained));
  options.work = 0;
  expect_error([&] { completeness(gauges, params, evaluate, options); }, {"work", "0"});
}

/// In float32 the scale of the residual stream, seen through an eps of 1e-5 alone, is not seen.
TEST(Completeness, OfAFloatModelIsExactUpToItsPrecision) {
  for (const double eps : {0.1, 1e-5}) {
    const auto bed = small_rms_norm(eps);
    const auto params = bed.init(1, at::kFloat);
    const auto found = completeness(bed.gauges(params), params, cross_entropy_of(bed, params));
    EXPECT_GT(found.gap, clear_gap) << described(found);
    EXPECT_EQ(found.unexplained, eps < 1e-3 ? 1 : 0) << described(found);
  }
}

TEST(Completeness, OfNothingIsEmpty) {
  const auto found =
      completeness({}, Parameters(), [](uint64_t) { return Evaluation(at::zeros({})); });
  EXPECT_EQ(found.parameters, 0);
  EXPECT_EQ(found.kernel, 0);
}

}  // namespace
}  // namespace ddc
