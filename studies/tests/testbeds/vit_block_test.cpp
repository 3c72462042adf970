#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "ddc/testbeds/blocks.h"
#include "support/testbeds.h"

namespace ddc::testbeds {
namespace {

constexpr double broken = 1e-4;

class VitBlock : public testing::Test {
 protected:
  Testbed bed = vit_block();
  Parameters params = bed.init(1, at::kDouble);
  Batch batch = bed.batch(2, at::kDouble);

  /// How far the logits move when the inputs and the parameters are replaced.
  double change(const Parameters& other, const at::Tensor& inputs) const {
    const at::NoGradGuard no_grad;
    return (bed.outputs(other, inputs) - bed.outputs(params, batch.inputs))
        .abs()
        .max()
        .item<double>();
  }
};

TEST_F(VitBlock, HasTheGaugesOfItsLayers) {
  const auto gauges = bed.gauges(params);
  EXPECT_EQ(kinds_of(gauges),
            (std::vector<std::string>{"CE bias shift", "CE row shift", "QK scale", "VO scale",
                                      "embedding exchange", "norm scale", "null shift",
                                      "relu rescale", "residual mean shift"}));
  EXPECT_EQ(dimension_of_kind(gauges, params, "norm scale"), 5 * 16);
  EXPECT_EQ(dimension_of_kind(gauges, params, "QK scale"), 2 * 2);
  EXPECT_EQ(dimension_of_kind(gauges, params, "null shift"), 2 * 16);
  // Bias of the patches and class token, each against its positions.
  EXPECT_EQ(dimension_of_kind(gauges, params, "embedding exchange"), 2 * 16);
  // Columns and bias of the patch embedding, class token, positions, and per layer the columns and
  // bias of two output projections.
  EXPECT_EQ(dimension_of_kind(gauges, params, "residual mean shift"),
            6 + 1 + 1 + 5 + 2 * ((16 + 1) + (24 + 1)));
}

TEST_F(VitBlock, PatchesMayChangePlacesTogetherWithTheirPositions) {
  const auto order = at::tensor({2, 0, 3, 1}, at::kLong);
  const auto inputs = batch.inputs.index_select(1, order);
  const auto moved = params.clone();
  {
    const at::NoGradGuard no_grad;
    auto positions = moved["positions.weight"].tensor.narrow(0, 1, 4);
    positions.copy_(positions.index_select(0, order));
  }
  EXPECT_LE(change(moved, inputs), 1e-13);
  EXPECT_GT(change(params, inputs), 1e-3);
  EXPECT_GT(change(moved, batch.inputs), 1e-3);
}

TEST_F(VitBlock, EveryPatchIsSeen) {
  // By a class token that stands before them all: attention is not causal.
  for (int64_t patch = 0; patch < 4; ++patch) {
    const auto inputs = batch.inputs.clone();
    inputs.select(1, patch).neg_();
    EXPECT_GT(change(params, inputs), 1e-3) << patch;
  }
}

TEST_F(VitBlock, LogitsAreReadFromTheClassToken) {
  ASSERT_EQ(bed.outputs(params, batch.inputs).sizes(), at::IntArrayRef({16, 10}));
  // Without attention's output the class token does not hear of the patches.
  const auto deaf = params.clone();
  const at::NoGradGuard no_grad;
  for (const auto* layer : {"layers.0.", "layers.1."}) {
    at::Tensor(deaf[std::string(layer) + "attention.output.weight"].tensor).zero_();
  }
  const auto logits = bed.outputs(deaf, batch.inputs);
  EXPECT_LE((logits - logits[0]).abs().max().item<double>(), 1e-14);
  at::Tensor(deaf["class_token.weight"].tensor).neg_();
  EXPECT_GT((bed.outputs(deaf, batch.inputs) - logits).abs().max().item<double>(), 1e-3);
}

TEST_F(VitBlock, BiasOfThePatchesIsNotExchangedWithThePositionOfTheClassToken) {
  auto gauge = gauge_called(bed.gauges(params), "patch_embedding.bias:exchange");
  EXPECT_LE(loss_change(bed, {gauge}, params, batch), 1e-13);
  gauge.legs.back().channel_of.front() = 0;
  EXPECT_GT(loss_change(bed, {gauge}, params, batch), broken);
}

TEST_F(VitBlock, ClassesAreAFunctionOfTheMeanPatch) {
  const auto many = vit_block({.batch_size = 2000}).batch(3, at::kDouble);
  const auto seen = at::bincount(many.targets, {}, 10);
  EXPECT_GT(seen.min().item<int64_t>(), 0);
  // The classes' regions are cones around directions, which the means of the classes lie close to.
  const auto mean = many.inputs.mean(1);
  const auto centres = at::zeros({10, 6}, at::kDouble).index_add_(0, many.targets, mean);
  const auto guess = mean.matmul((centres / seen.unsqueeze(1)).t());
  EXPECT_GT(accuracy(guess, many.targets), 0.5);
}

}  // namespace
}  // namespace ddc::testbeds
