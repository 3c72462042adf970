// The rotary grokking testbed: its task, its gauges, and that it can be learned.

#include "ddc/testbeds/rope_grokking.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "ddc/discover/gate.h"
#include "ddc/testbeds/runs.h"
#include "support/errors.h"
#include "support/testbeds.h"

namespace ddc::testbeds {
namespace {

RopeGrokkingOptions small() {
  return {.modulus = 7,
          .sequence = 8,
          .batch_size = 3,
          .d_model = 16,
          .heads = 2,
          .d_ff = 12,
          .layers = 2};
}

/// The numbers a * p + b of all equations, after a look at each of them.
std::vector<int64_t> pairs_of(const Batch& batch, int64_t modulus) {
  const auto tokens = batch.inputs.view({-1, 4});
  const auto targets = batch.targets.view({-1, 4});
  std::vector<int64_t> pairs;
  for (int64_t i = 0; i < tokens.size(0); ++i) {
    const auto token = [&](int64_t t) { return tokens[i][t].item<int64_t>(); };
    const int64_t sum = (token(0) + token(1)) % modulus;
    EXPECT_LT(token(0), modulus);
    EXPECT_LT(token(1), modulus);
    EXPECT_EQ(token(2), modulus);
    EXPECT_EQ(token(3), sum);
    EXPECT_EQ(targets[i][2].item<int64_t>(), sum);
    for (const int64_t silent : {0, 1, 3}) {
      EXPECT_EQ(targets[i][silent].item<int64_t>(), ignored_target);
    }
    pairs.push_back(token(0) * modulus + token(1));
  }
  return pairs;
}

TEST(RopeGrokking, SequencesAreEquationsThatAskForTheirSums) {
  const auto options = small();
  const auto batch = rope_grokking(options).batch(5, at::kFloat);
  EXPECT_EQ(batch.inputs.sizes(), at::IntArrayRef({3, 8}));
  EXPECT_EQ(pairs_of(batch, options.modulus).size(), 6u);
}

TEST(RopeGrokking, EveryPairIsForTrainingOrHeldOut) {
  auto options = small();
  options.sequence = 4;  // so that none is left out
  const auto split = rope_grokking_split(options);
  const auto train = pairs_of(split.train, options.modulus);
  const auto test = pairs_of(split.test, options.modulus);
  EXPECT_EQ(train.size(), 15u);  // 0.3 * 49
  std::set<int64_t> all(train.begin(), train.end());
  all.insert(test.begin(), test.end());
  EXPECT_EQ(train.size() + test.size(), 49u);
  EXPECT_EQ(all.size(), 49u);
}

TEST(RopeGrokking, BatchesHoldTrainingPairsOnlyAndAsManyAsAreAskedFor) {
  auto options = small();
  const auto split = pairs_of(rope_grokking_split({.modulus = 7, .sequence = 4}).train, 7);
  const std::set<int64_t> train(split.begin(), split.end());
  // More than there are training pairs, and all of them that fill sequences.
  for (const auto& [batch_size, equations] : {std::pair{20, 40u}, {0, 14u}}) {
    options.batch_size = batch_size;
    const auto pairs = pairs_of(rope_grokking(options).batch(5, at::kFloat), options.modulus);
    EXPECT_EQ(pairs.size(), equations);
    for (const int64_t pair : pairs) EXPECT_TRUE(train.contains(pair)) << pair;
  }
}

TEST(RopeGrokking, LossAndAccuracyCountAnswersOnly) {
  const auto options = small();
  const auto bed = rope_grokking(options);
  const auto params = bed.init(1, at::kDouble);
  const auto batch = bed.batch(5, at::kDouble);
  const auto asked = batch.targets != ignored_target;
  const auto outputs = bed.outputs(params, batch.inputs);
  const auto log_softmax = outputs.index({asked}).log_softmax(-1);
  const auto answers = batch.targets.index({asked});
  EXPECT_NEAR(bed.loss(params, batch).item<double>(),
              -log_softmax.gather(1, answers.unsqueeze(1)).mean().item<double>(), 1e-12);
  EXPECT_EQ(accuracy(outputs, batch.targets), accuracy(outputs.index({asked}), answers));
}

TEST(RopeGrokking, AnAnswerDoesNotSeeItselfNorWhatComesLater) {
  const auto bed = rope_grokking(small());
  const auto params = bed.init(1, at::kDouble);
  const auto inputs = bed.batch(5, at::kDouble).inputs;
  auto changed = inputs.clone();
  changed.slice(1, 3) = (changed.slice(1, 3) + 1).remainder(7);
  const auto first = [&](const at::Tensor& tokens) {
    return bed.outputs(params, tokens).select(1, 2);
  };
  EXPECT_TRUE(at::allclose(first(inputs), first(changed), 0, 1e-12));
}

TEST(RopeGrokking, GaugesOfTheTorusPassTheGate) {
  for (const bool all : {false, true}) {
    auto options = small();
    options.scales_and_shifts = all;
    const auto bed = rope_grokking(options);
    const auto params = bed.init(1, at::kDouble);
    const auto gauges = bed.gauges(params);
    const auto evaluate = evaluation_of(bed, params);
    for (const auto& gauge : gauges) {
      EXPECT_TRUE(gate(gauge, params, evaluate).passed) << gauge.name;
    }
    EXPECT_TRUE(gate(gauges, params, evaluate).passed);
  }
}

TEST(RopeGrokking, TheGateRefusesTheFullRotationOfQueriesAndKeys) {
  auto options = small();
  options.rotation = Rotation::full;
  const auto bed = rope_grokking(options);
  const auto params = bed.init(1, at::kDouble);
  const auto evaluate = evaluation_of(bed, params);
  int refused = 0;
  for (const auto& gauge : bed.gauges(params)) {
    const bool of_values = gauge.legs.front().tensor.ends_with("value.weight");
    EXPECT_EQ(gate(gauge, params, evaluate).passed, of_values) << gauge.name;
    refused += of_values ? 0 : 1;
  }
  EXPECT_EQ(refused, options.layers);
}

TEST(RopeGrokking, RotationsAreListedAsAskedFor) {
  auto options = small();
  const auto kinds = [&](Rotation rotation) {
    options.rotation = rotation;
    const auto bed = rope_grokking(options);
    return kinds_of(bed.gauges(bed.init(1, at::kDouble)));
  };
  EXPECT_EQ(kinds(Rotation::torus), (std::vector<std::string>{"QK torus", "VO rotation"}));
  EXPECT_EQ(kinds(Rotation::full), (std::vector<std::string>{"QK rotation", "VO rotation"}));
  EXPECT_TRUE(kinds(Rotation::none).empty());
  options.scales_and_shifts = true;
  EXPECT_FALSE(kinds(Rotation::none).empty());
}

TEST(RopeGrokking, ObservationsAreThoseOfTheResidualStream) {
  auto options = small();
  options.layers = 1;
  const auto bed = rope_grokking(options);
  const auto params = bed.init(1, at::kDouble);
  {
    // Without branches every equals sign has the same stream: one direction, and nothing else.
    const at::NoGradGuard no_grad;
    params["layers.0.attention.output.weight"].tensor.zero_();
    params["layers.0.mlp.down.weight"].tensor.zero_();
  }
  const auto seen = bed.observe(params);
  EXPECT_NEAR(seen.at("sigma_min"), 0, 1e-12);
  EXPECT_NEAR(seen.at("effective_rank"), 1, 1e-9);
  const auto test = rope_grokking_split(options).test;
  EXPECT_NEAR(seen.at("test_bits") * std::log(2), loss_value(bed, params, test), 1e-12);
}

TEST(RopeGrokking, TrainingPairsAreLearned) {
  auto options = small();
  options.batch_size = 0;
  const auto bed = rope_grokking(options);
  // In float32 one of 14 pairs comes and goes at this rate.
  const auto params = bed.init(1, at::kDouble);
  const auto optimizer = ddc_adam(AdamOptions{.lr = 1e-2})(params, bed.gauges(params));
  for (uint64_t step = 0; step < 200; ++step) {
    backward(bed, params, bed.batch(step, at::kDouble));
    optimizer->step();
  }
  EXPECT_EQ(bed.observe(params).at("train_accuracy"), 1);
}

TEST(RopeGrokking, OptionsThatDoNotFitAreNamed) {
  tests::expect_error([] { rope_grokking({.sequence = 10}); },
                      {"sequence must be a multiple of 4", "got 10"});
  tests::expect_error([] { rope_grokking({.modulus = 7, .sequence = 128}); },
                      {"sequence", "training pairs (15)", "got 128"});
}

}  // namespace
}  // namespace ddc::testbeds
