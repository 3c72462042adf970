#include "ddc/testbeds/language_model.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "ddc/discover/gate.h"
#include "ddc/testbeds/runs.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/testbeds.h"

namespace ddc::testbeds {
namespace {

using tests::expect_error;
using tests::Folder;

/// "0 is even. 1 is odd. 2 is even. ..."
std::string counting(int lines) {
  std::string text;
  for (int i = 0; i < lines; ++i) {
    text += std::to_string(i % 10).append(i % 2 == 0 ? " is even. " : " is odd. ");
  }
  return text;
}

class LanguageModel : public testing::Test {
 protected:
  LanguageModelOptions options() const {
    return {.text = file,
            .sequence = 12,
            .batch_size = 8,
            .d_model = 16,
            .heads = 4,
            .kv_heads = 2,
            .d_ff = 24,
            .layers = 2,
            .observed_windows = 10,
            .gain_spread = 0.2};
  }

  Folder folder;
  std::string text = counting(200);
  std::string file = folder.write("text", text);
};

TEST_F(LanguageModel, VocabularyAreTheBytesOfTheTextInOrder) {
  const auto split = language_model_split(options());
  EXPECT_EQ(split.vocabulary, " .0123456789deinosv");
  std::string spelled;
  for (int64_t i = 0; i < 30; ++i) {
    spelled += split.vocabulary[split.train[i].item<int64_t>()];
  }
  EXPECT_EQ(spelled, text.substr(0, 30));
}

TEST_F(LanguageModel, EndOfTheTextIsHeldOut) {
  auto some = options();
  some.validation_fraction = 0.25;
  const auto split = language_model_split(some);
  EXPECT_EQ(split.validation.size(0), std::llround(0.25 * static_cast<double>(text.size())));
  EXPECT_EQ(split.train.size(0) + split.validation.size(0), static_cast<int64_t>(text.size()));
  some.train_characters = 50;
  const auto slice = language_model_split(some);
  EXPECT_TRUE(at::equal(slice.train, split.train.narrow(0, 0, 50)));
  EXPECT_TRUE(at::equal(slice.validation, split.validation));
}

TEST_F(LanguageModel, BatchesAreWindowsOfTheSliceWithTheBytesThatFollow) {
  // Only one window and the byte after it fit.
  auto narrow = options();
  narrow.train_characters = 13;
  const auto split = language_model_split(narrow);
  const auto only = language_model(narrow).batch(1, at::kFloat);
  ASSERT_EQ(only.inputs.sizes(), at::IntArrayRef({8, 12}));
  EXPECT_TRUE(only.inputs.eq(split.train.narrow(0, 0, 12)).all().item<bool>());
  EXPECT_TRUE(only.targets.eq(split.train.narrow(0, 1, 12)).all().item<bool>());

  const auto bed = language_model(options());
  const auto batch = bed.batch(1, at::kFloat);
  EXPECT_TRUE(at::equal(batch.inputs.narrow(1, 1, 11), batch.targets.narrow(1, 0, 11)));
  EXPECT_TRUE(at::equal(batch.inputs, bed.batch(1, at::kFloat).inputs));
  EXPECT_FALSE(at::equal(batch.inputs, bed.batch(2, at::kFloat).inputs));
}

TEST_F(LanguageModel, HasTheTensorsOfALlama) {
  const auto params = language_model(options()).init(1, at::kFloat);
  EXPECT_EQ(params["embedding.weight"].tensor.sizes(), at::IntArrayRef({19, 16}));
  EXPECT_EQ(params["layers.1.attention.key.weight"].tensor.sizes(), at::IntArrayRef({8, 16}));
  EXPECT_EQ(params["layers.1.mlp.gate.weight"].tensor.sizes(), at::IntArrayRef({24, 16}));
  for (const auto& [name, tensor] : params) EXPECT_FALSE(name.ends_with(".bias")) << name;
  EXPECT_FALSE(params.contains("positions.weight"));
}

TEST_F(LanguageModel, GaugesPassTheGate) {
  for (const auto set : {GaugeSet::abelian, GaugeSet::rotations, GaugeSet::full}) {
    auto small = options();
    small.gauges = set;
    const auto bed = language_model(small);
    const auto params = bed.init(1, at::kDouble);
    const auto gauges = bed.gauges(params);
    for (const auto& gauge : gauges) {
      EXPECT_TRUE(gate(gauge, params, evaluation_of(bed, params)).passed) << gauge.name;
    }
    EXPECT_TRUE(gate(gauges, params, evaluation_of(bed, params)).passed);
  }
}

TEST_F(LanguageModel, LearnsTheTextAndTellsTheGap) {
  const auto bed = language_model(options());
  const auto params = bed.init(1, at::kFloat);
  const auto before = bed.observe(params);
  drift(bed, params, {}, adamw(5e-3, 0.01), {.steps = 150});
  auto after = bed.observe(params);
  EXPECT_LT(before.at("validation_accuracy"), 0.3);
  // The text goes on as it began.
  EXPECT_GT(after["validation_accuracy"], 0.85);
  EXPECT_LT(after["validation_loss"], before.at("validation_loss") / 3);
  EXPECT_DOUBLE_EQ(after["gap"], after["validation_loss"] - after["train_loss"]);
}

TEST_F(LanguageModel, ActivationsAreReadBeforeTheFinalNorm) {
  const auto bed = language_model(options());
  const auto params = bed.init(1, at::kDouble);
  auto before = bed.observe(params);
  EXPECT_GT(before["sigma_min"], 0);
  EXPECT_GT(before["effective_rank"], 1);
  EXPECT_LE(before["effective_rank"], 16);
  const at::NoGradGuard no_grad;
  at::Tensor(params["final_norm.weight"].tensor).mul_(5);
  EXPECT_DOUBLE_EQ(bed.observe(params)["sigma_min"], before["sigma_min"]);
  // A channel that nothing writes to.
  at::Tensor(params["embedding.weight"].tensor).select(1, 3).zero_();
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    at::Tensor(params[layer + "attention.output.weight"].tensor)[3].zero_();
    at::Tensor(params[layer + "mlp.down.weight"].tensor)[3].zero_();
  }
  auto dead = bed.observe(params);
  EXPECT_LT(dead["sigma_min"], 1e-12);
  EXPECT_LE(dead["effective_rank"], 15);
}

TEST_F(LanguageModel, MissingTextsAreNamed) {
  expect_error([] { language_model({.text = "/nowhere/text"}); }, {"/nowhere/text", "text"});
}

TEST_F(LanguageModel, BadOptionsAreNamed) {
  auto bad = options();
  bad.train_characters = 10000;
  expect_error([&] { language_model(bad); }, {"train_characters", file, "10000"});
  bad = options();
  bad.sequence = 500;
  expect_error([&] { language_model(bad); }, {"sequence", "500"});
  bad = options();
  bad.validation_fraction = 1;
  expect_error([&] { language_model(bad); }, {"validation_fraction", "1"});
  bad = options();
  bad.observed_windows = 0;
  expect_error([&] { language_model(bad); }, {"observed_windows", "0"});
}

}  // namespace
}  // namespace ddc::testbeds
