#include "ddc/testbeds/modular_addition.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <utility>

#include "support/errors.h"
#include "support/testbeds.h"

namespace ddc::testbeds {
namespace {

using tests::expect_error;

using Pairs = std::set<std::pair<int64_t, int64_t>>;

Pairs pairs_of(const Batch& batch) {
  Pairs pairs;
  const auto inputs = batch.inputs.contiguous();
  const auto* tokens = inputs.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < inputs.size(0); ++i) pairs.emplace(tokens[3 * i], tokens[3 * i + 1]);
  return pairs;
}

TEST(ModularAddition, SplitCoversAllPairsOnce) {
  const auto split = modular_addition_split();
  const auto train = pairs_of(split.train);
  const auto test = pairs_of(split.test);
  EXPECT_EQ(static_cast<int64_t>(train.size()), split.train.inputs.size(0));
  EXPECT_EQ(train.size(), 3831u);  // 30% of 113^2
  EXPECT_EQ(train.size() + test.size(), 113u * 113u);
  for (const auto& pair : train) EXPECT_EQ(test.count(pair), 0u);
}

TEST(ModularAddition, TargetsAreTheSums) {
  const auto split = modular_addition_split({.modulus = 7});
  for (const auto& batch : {split.train, split.test}) {
    const auto a = batch.inputs.select(1, 0);
    const auto b = batch.inputs.select(1, 1);
    EXPECT_TRUE(at::equal(batch.targets, (a + b).remainder(7)));
    EXPECT_TRUE(batch.inputs.select(1, 2).eq(7).all().item<bool>());
  }
}

TEST(ModularAddition, SplitDependsOnTheSplitSeedAlone) {
  EXPECT_EQ(pairs_of(modular_addition_split({.modulus = 7}).train),
            pairs_of(modular_addition({.modulus = 7}).batch(5, at::kFloat)));
  EXPECT_NE(pairs_of(modular_addition_split({.modulus = 7, .split_seed = 1}).train),
            pairs_of(modular_addition_split({.modulus = 7, .split_seed = 2}).train));
}

TEST(ModularAddition, MinibatchesAreTrainingPairs) {
  const ModularAdditionOptions options{.modulus = 11, .batch_size = 16};
  const auto train = pairs_of(modular_addition_split(options).train);
  const auto batch = pairs_of(modular_addition(options).batch(3, at::kFloat));
  EXPECT_EQ(batch.size(), 16u);
  for (const auto& pair : batch) EXPECT_EQ(train.count(pair), 1u);
}

TEST(ModularAddition, HasThePapersShapes) {
  const auto bed = modular_addition();
  const auto params = bed.init(0, at::kFloat);
  EXPECT_EQ(params["embedding.weight"].tensor.sizes(), at::IntArrayRef({114, 128}));
  EXPECT_EQ(params["layers.0.mlp.up.weight"].tensor.sizes(), at::IntArrayRef({512, 128}));
  EXPECT_EQ(params["unembedding.weight"].tensor.sizes(), at::IntArrayRef({113, 128}));
  EXPECT_FALSE(params.contains("unembedding.bias"));
  EXPECT_FALSE(params.contains("final_norm.weight"));
  EXPECT_FALSE(params.contains("layers.0.attention.query.bias"));
}

TEST(ModularAddition, EqualsSignAndDigitsExchangeWithTheirPositionsSeparately) {
  const auto bed = modular_addition({.modulus = 7, .d_model = 8, .d_ff = 16});
  const auto params = bed.init(1, at::kDouble);
  const auto exchange = gauge_called(bed.gauges(params), "embedding.weight:exchange");
  EXPECT_EQ(exchange.channels, 2);
  EXPECT_EQ(dimension(exchange, params), 2 * 8);
}

TEST(ModularAddition, ResidualMeanIsSeenWithoutAFinalNorm) {
  const ModularAdditionOptions options{.modulus = 7, .d_model = 8, .d_ff = 16};
  auto normed_options = options;
  normed_options.final_norm = true;
  const auto bed = modular_addition(options);
  const auto normed = modular_addition(normed_options);
  const auto params = normed.init(1, at::kDouble);
  const auto batch = bed.batch(2, at::kDouble);
  const auto shift = gauge_called(normed.gauges(params), "layers.0.mlp.down.weight:mean");
  EXPECT_LE(loss_change(normed, {shift}, params, batch), 1e-13);
  EXPECT_GT(loss_change(bed, {shift}, params, batch), 1e-4);
}

/// Full batches are computed from tables of tokens; batches that are drawn, pair by pair.
TEST(ModularAddition, TablesGiveWhatTheTransformerGives) {
  for (const bool equals_sign : {false, true}) {
    for (const int64_t degree : {1, 2}) {
      ModularAdditionOptions options{.modulus = 7,
                                     .d_model = 8,
                                     .heads = 2,
                                     .d_ff = 16,
                                     .degree = degree,
                                     .equals_sign = equals_sign,
                                     .gain_spread = 0.2,
                                     .bias_spread = 0.2};
      const auto tables = modular_addition(options);
      options.batch_size = 3;
      const auto pairs = modular_addition(options);
      const auto params = tables.init(1, at::kDouble);
      const auto other = params.clone();
      const auto batch = tables.batch(0, at::kDouble);
      tables.loss(params, batch).backward();
      pairs.loss(other, batch).backward();
      for (const auto& [name, tensor] : params) {
        EXPECT_TRUE(at::allclose(tensor.grad(), other[name].tensor.grad(), 1e-10, 1e-13)) << name;
      }
    }
  }
}

TEST(ModularAddition, StartsAsTorchDoes) {
  const auto params = modular_addition({.torch_init = true}).init(1, at::kDouble);
  for (const auto& [name, tensor] : params) {
    if (name == "embedding.weight") {
      EXPECT_NEAR(tensor.std().item<double>(), 1, 0.05);
    } else if (tensor.dim() == 2 && name != "positions.weight") {
      const double bound = 1 / std::sqrt(static_cast<double>(tensor.size(1)));
      EXPECT_LE(tensor.abs().max().item<double>(), bound) << name;
      EXPECT_NEAR(tensor.std().item<double>(), bound / std::sqrt(3.0), 0.05 * bound) << name;
    }
  }
  const auto bias = params["layers.0.mlp.up.bias"].tensor.abs();
  EXPECT_LE(bias.max().item<double>(), 1 / std::sqrt(128.0));
  EXPECT_GT(bias.min().item<double>(), 0);
  EXPECT_EQ(params["layers.0.mlp_norm.bias"].tensor.abs().max().item<double>(), 0);
}

TEST(ModularAddition, ObservesTheShiftOfTheReadout) {
  const auto bed = modular_addition({.modulus = 7, .d_model = 8, .d_ff = 16});
  const auto params = bed.init(1, at::kDouble);
  const auto before = bed.observe(params);
  {
    const at::NoGradGuard no_grad;
    params["unembedding.weight"].tensor.add_(at::ones({8}, at::kDouble));
  }
  const auto after = bed.observe(params);
  EXPECT_GT(after.at("shift_norm"), before.at("shift_norm") + 1);
  EXPECT_NEAR(after.at("quotient_norm"), before.at("quotient_norm"), 1e-12);
  EXPECT_EQ(after.at("test_accuracy"), before.at("test_accuracy"));
  EXPECT_NEAR(after.at("test_loss"), before.at("test_loss"), 1e-10);
}

TEST(ModularAddition, BadOptionsAreNamed) {
  expect_error([] { modular_addition({.modulus = 1}); }, {"modulus", "1"});
  expect_error([] { modular_addition({.train_fraction = 1.5}); }, {"train_fraction", "1.5"});
  expect_error([] { modular_addition({.modulus = 5, .batch_size = 9}); }, {"batch_size", "8", "9"});
  expect_error([] { modular_addition({.degree = 0}); }, {"degree", "0"});
}

TEST(Accuracy, CountsTheLargestLogit) {
  const auto logits = at::tensor({1., 2., 0., 5., 1., 1., 0., 0., 3.}, at::kDouble).view({3, 3});
  EXPECT_DOUBLE_EQ(accuracy(logits, at::tensor({1, 0, 0}, at::kLong)), 2.0 / 3);
}

TEST(Accuracy, CountsTheSignOfASingleOutput) {
  const auto outputs = at::tensor({0.3, -2., 1., -1.}, at::kDouble);
  EXPECT_DOUBLE_EQ(accuracy(outputs, at::tensor({1., -1., -1., -1.}, at::kDouble)), 0.75);
}

TEST(Accuracy, RefusesShapesThatDoNotMatch) {
  expect_error([] { accuracy(at::zeros({3, 5}), at::zeros({4}, at::kLong)); }, {"[3]", "[4]"});
}

}  // namespace
}  // namespace ddc::testbeds
