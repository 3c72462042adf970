#include "ddc/testbeds/blocks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <utility>

#include "ddc/gauge/attention.h"
#include "ddc/gauge/norm.h"
#include "ddc/gauge/rescale.h"
#include "ddc/gauge/shift.h"
#include "support/errors.h"
#include "support/testbeds.h"

namespace ddc::testbeds {
namespace {

using tests::expect_error;

constexpr double broken = 1e-4;

/// A change of the last token must not be seen before it, and must be seen at it.
void expect_causal(const Testbed& bed) {
  const at::NoGradGuard no_grad;
  const auto params = bed.init(1, at::kDouble);
  const auto tokens = bed.batch(2, at::kDouble).inputs;
  const int64_t time = tokens.size(1);
  const auto changed = tokens.clone();
  changed.select(1, -1).add_(1).remainder_(11);
  const auto difference = (bed.outputs(params, tokens) - bed.outputs(params, changed)).abs();
  EXPECT_EQ(difference.narrow(1, 0, time - 1).max().item<double>(), 0);
  EXPECT_GT(difference.select(1, -1).max().item<double>(), 1e-3);
}

/// A swap of the first two tokens must be seen later: attention knows positions.
void expect_order_matters(const Testbed& bed) {
  const at::NoGradGuard no_grad;
  const auto params = bed.init(1, at::kDouble);
  const auto tokens = bed.batch(2, at::kDouble).inputs;
  const auto swapped = at::cat({tokens.narrow(1, 0, 2).flip(1), tokens.narrow(1, 2, 4)}, 1);
  const auto difference = (bed.outputs(params, tokens) - bed.outputs(params, swapped)).abs();
  EXPECT_GT(difference.select(1, -1).max().item<double>(), 1e-3);
}

TEST(LayerNormBlock, HasTheGaugesOfItsLayers) {
  const auto bed = layer_norm_block();
  const auto params = bed.init(1, at::kDouble);
  const auto gauges = bed.gauges(params);
  EXPECT_EQ(kinds_of(gauges),
            (std::vector<std::string>{"CE bias shift", "CE row shift", "QK scale", "VO scale",
                                      "embedding exchange", "norm scale", "null shift",
                                      "relu rescale", "residual mean shift"}));
  EXPECT_EQ(dimension_of_kind(gauges, params, "norm scale"), 4 * 16);
  EXPECT_EQ(dimension_of_kind(gauges, params, "QK scale"), 4);
  EXPECT_EQ(dimension_of_kind(gauges, params, "VO scale"), 4);
  EXPECT_EQ(dimension_of_kind(gauges, params, "relu rescale"), 2 * 24);
  EXPECT_EQ(dimension_of_kind(gauges, params, "null shift"), 16);
  EXPECT_EQ(dimension_of_kind(gauges, params, "CE row shift"), 16);
  EXPECT_EQ(dimension_of_kind(gauges, params, "CE bias shift"), 1);
  EXPECT_EQ(dimension_of_kind(gauges, params, "embedding exchange"), 16);
  // Tokens, positions, and the columns and bias of three output projections.
  EXPECT_EQ(dimension_of_kind(gauges, params, "residual mean shift"),
            11 + 6 + (16 + 1) + 2 * (24 + 1));
}

TEST(LayerNormBlock, ResidualShiftsCanBeLeftOut) {
  const auto bed = layer_norm_block({.residual_shifts = false});
  const auto params = bed.init(1, at::kDouble);
  EXPECT_EQ(kinds_of(bed.gauges(params)),
            (std::vector<std::string>{"CE bias shift", "CE row shift", "QK scale", "VO scale",
                                      "norm scale", "null shift", "relu rescale"}));
}

TEST(LayerNormBlock, IsCausal) { expect_causal(layer_norm_block({.layers = 2})); }

TEST(LayerNormBlock, SeesTheOrderOfTokens) { expect_order_matters(layer_norm_block()); }

TEST(LayerNormBlock, QueryBiasIsNotNull) {
  const auto bed = layer_norm_block();
  const auto params = bed.init(1, at::kDouble);
  const auto wrong = null_shift(params["layers.0.attention.query.bias"]);
  EXPECT_GT(loss_change(bed, {wrong}, params, bed.batch(2, at::kDouble)), broken);
}

TEST(LayerNormBlock, NormScaleWithoutItsShiftIsBroken) {
  const auto bed = layer_norm_block();
  const auto params = bed.init(1, at::kDouble);
  const auto wrong =
      norm_scale({.gain = params["final_norm.weight"], .readers = {params["unembedding.weight"]}});
  EXPECT_GT(loss_change(bed, {wrong}, params, bed.batch(2, at::kDouble)), broken);
}

TEST(LayerNormBlock, SquaredReluTakesDegreeTwo) {
  const auto bed = layer_norm_block();
  const auto params = bed.init(1, at::kDouble);
  auto spec = ReluRescale{.in = params["layers.0.squared_mlp.up.weight"],
                          .in_bias = params["layers.0.squared_mlp.up.bias"],
                          .out = {params["layers.0.squared_mlp.down.weight"]}};
  const auto batch = bed.batch(2, at::kDouble);
  EXPECT_GT(loss_change(bed, {relu_rescale(spec)}, params, batch), broken);
  spec.degree = 2;
  EXPECT_LE(loss_change(bed, {relu_rescale(spec)}, params, batch), 1e-13);
}

TEST(RmsNormBlock, HasTheGaugesOfItsLayers) {
  const auto bed = rms_norm_block();
  const auto params = bed.init(1, at::kDouble);
  const auto gauges = bed.gauges(params);
  EXPECT_EQ(kinds_of(gauges), (std::vector<std::string>{"CE row shift", "QK plane scale",
                                                        "VO scale", "glu rescale", "norm scale"}));
  EXPECT_EQ(dimension_of_kind(gauges, params, "norm scale"), 3 * 16);
  EXPECT_EQ(dimension_of_kind(gauges, params, "QK plane scale"), 2 * 2);
  EXPECT_EQ(dimension_of_kind(gauges, params, "VO scale"), 2);
  EXPECT_EQ(dimension_of_kind(gauges, params, "glu rescale"), 24);
  EXPECT_EQ(dimension_of_kind(gauges, params, "CE row shift"), 16);
}

TEST(RmsNormBlock, IsCausal) { expect_causal(rms_norm_block({.layers = 2})); }

TEST(RmsNormBlock, SeesTheOrderOfTokens) { expect_order_matters(rms_norm_block()); }

TEST(RmsNormBlock, OnlyTheModelsPairingIsAGauge) {
  const auto bed = rms_norm_block();
  const auto params = bed.init(1, at::kDouble);
  const auto batch = bed.batch(2, at::kDouble);
  QueryKey spec{.query = params["layers.0.attention.query.weight"],
                .key = params["layers.0.attention.key.weight"],
                .heads = 4,
                .kv_heads = 2,
                .pairing = channel_maps::Pairing::interleaved};
  EXPECT_GT(loss_change(bed, {qk_scale(spec)}, params, batch), broken);
  spec.pairing = channel_maps::Pairing::none;
  EXPECT_LE(loss_change(bed, {qk_scale(spec)}, params, batch), 1e-13);
}

TEST(RmsNormBlock, ResidualMeanIsSeenByRmsNorm) {
  const auto bed = rms_norm_block();
  const auto params = bed.init(1, at::kDouble);
  // The leg is that of a cross-entropy shift: the same row added to every row.
  const auto wrong = cross_entropy_shift(params["layers.0.attention.output.weight"]);
  EXPECT_GT(loss_change(bed, {wrong}, params, bed.batch(2, at::kDouble)), broken);
}

TEST(RmsNormBlock, OffsetGainIsTheSameNetworkWrittenDifferently) {
  const auto plain = rms_norm_block();
  const auto offset = rms_norm_block({.gain_is_offset = true});
  const auto batch = plain.batch(2, at::kDouble);
  EXPECT_NEAR(loss_value(plain, plain.init(1, at::kDouble), batch),
              loss_value(offset, offset.init(1, at::kDouble), batch), 1e-13);
}

TEST(RmsNormBlock, NormScaleThatForgetsTheOffsetIsBroken) {
  const auto bed = rms_norm_block({.gain_is_offset = true});
  const auto params = bed.init(1, at::kDouble);
  auto gauge = gauge_called(bed.gauges(params), "final_norm.weight:scale");
  EXPECT_EQ(gauge.legs.front().offset, 1);
  gauge.legs.front().offset = 0;
  EXPECT_GT(loss_change(bed, {gauge}, params, bed.batch(2, at::kDouble)), broken);
}

TEST(GptJBlock, HasTheGaugesOfItsLayers) {
  const auto bed = gpt_j_block();
  const auto params = bed.init(1, at::kDouble);
  const auto gauges = bed.gauges(params);
  EXPECT_EQ(
      kinds_of(gauges),
      (std::vector<std::string>{"CE bias shift", "CE row shift", "QK plane scale", "QK scale",
                                "VO scale", "norm scale", "relu rescale", "residual mean shift"}));
  EXPECT_EQ(dimension_of_kind(gauges, params, "norm scale"), 2 * 16);
  EXPECT_EQ(dimension_of_kind(gauges, params, "QK plane scale"), 2 * 2);
  EXPECT_EQ(dimension_of_kind(gauges, params, "QK scale"), 2);
  EXPECT_EQ(dimension_of_kind(gauges, params, "VO scale"), 2);
  EXPECT_EQ(dimension_of_kind(gauges, params, "relu rescale"), 24);
  EXPECT_EQ(dimension_of_kind(gauges, params, "residual mean shift"), 11 + 16 + (24 + 1));
}

TEST(GptJBlock, IsCausal) { expect_causal(gpt_j_block({.layers = 2})); }

TEST(GptJBlock, SeesTheOrderOfTokens) { expect_order_matters(gpt_j_block()); }

TEST(GptJBlock, BothBranchesReadOneNorm) {
  const auto bed = gpt_j_block();
  const auto params = bed.init(1, at::kDouble);
  EXPECT_FALSE(params.contains("layers.0.attention_norm.weight"));
  EXPECT_FALSE(params.contains("layers.0.mlp_norm.weight"));
  const auto gauge = gauge_called(bed.gauges(params), "layers.0.norm.weight:scale");
  EXPECT_EQ(gauge.legs.size(), 2 + 4);  // gain, shift; query, key, value, up
}

TEST(GptJBlock, OnlyTheModelsPlanesAreAGauge) {
  const auto bed = gpt_j_block();
  const auto params = bed.init(1, at::kDouble);
  const auto batch = bed.batch(2, at::kDouble);
  QueryKey spec{.query = params["layers.0.attention.query.weight"],
                .key = params["layers.0.attention.key.weight"],
                .heads = 2,
                .pairing = channel_maps::Pairing::half_split};
  EXPECT_GT(loss_change(bed, {qk_scale(spec)}, params, batch), broken);
  // In interleaved pairs the planes of the whole head go on where the turned ones end.
  spec.pairing = channel_maps::Pairing::interleaved;
  EXPECT_LE(loss_change(bed, {qk_scale(spec)}, params, batch), 1e-13);
}

TEST(GptJBlock, SingleCoordinatesAreFreeOnlyWhereTheyPassThrough) {
  const auto bed = gpt_j_block();
  const auto params = bed.init(1, at::kDouble);
  const auto batch = bed.batch(2, at::kDouble);
  auto gauge =
      gauge_called(bed.gauges(params), "layers.0.attention.query.weight:qk_scale:pass_through");
  const auto only = [&](int64_t coordinate) {
    for (auto& leg : gauge.legs) {
      leg.channel_of.assign(16, -1);
      for (const int64_t head : {0, 1}) leg.channel_of[head * 8 + coordinate] = head;
    }
    return loss_change(bed, {gauge}, params, batch);
  };
  for (const int64_t coordinate : {0, 1, 2, 3}) EXPECT_GT(only(coordinate), 1e-6) << coordinate;
  for (const int64_t coordinate : {4, 5, 6, 7}) EXPECT_LE(only(coordinate), 1e-13) << coordinate;
}

/// Every block, with the embedding learned and fixed.
std::vector<std::pair<Testbed, Testbed>> learned_and_fixed() {
  return {{layer_norm_block(), layer_norm_block({.fixed_embedding = true})},
          {rms_norm_block(), rms_norm_block({.fixed_embedding = true})},
          {gpt_j_block(), gpt_j_block({.fixed_embedding = true})},
          {vit_block(), vit_block({.fixed_embedding = true})}};
}

TEST(Blocks, FixedEmbeddingsAreNotParameters) {
  const std::set<std::string> tables{"embedding.weight", "positions.weight",
                                     "patch_embedding.weight", "patch_embedding.bias",
                                     "class_token.weight"};
  for (const auto& [learned, fixed] : learned_and_fixed()) {
    const auto params = fixed.init(1, at::kDouble);
    for (const auto& [name, tensor] : learned.init(1, at::kDouble)) {
      EXPECT_NE(params.contains(name), tables.contains(name)) << fixed.name << ": " << name;
    }
  }
}

TEST(Blocks, FixedEmbeddingsAreTheSameWheneverTheTestbedIsMade) {
  const auto beds = learned_and_fixed();
  const auto again = learned_and_fixed();
  for (size_t k = 0; k < beds.size(); ++k) {
    const auto& bed = beds[k].second;
    const auto params = bed.init(1, at::kDouble);
    const auto inputs = bed.batch(2, at::kDouble).inputs;
    EXPECT_TRUE(at::equal(bed.outputs(params, inputs), again[k].second.outputs(params, inputs)));
  }
}

TEST(Blocks, NormEpsReachesTheNorms) {
  for (const auto& [small, large] :
       {std::pair{layer_norm_block(), layer_norm_block({.norm_eps = 1})},
        {rms_norm_block(), rms_norm_block({.norm_eps = 1})},
        {gpt_j_block(), gpt_j_block({.norm_eps = 1})},
        {vit_block(), vit_block({.norm_eps = 1})}}) {
    const auto params = small.init(1, at::kDouble);
    const auto batch = small.batch(2, at::kDouble);
    EXPECT_GT(std::abs(loss_value(small, params, batch) - loss_value(large, params, batch)), 1e-4);
  }
}

TEST(Blocks, TargetsFollowTheRule) {
  const auto batch = layer_norm_block().batch(2, at::kDouble);
  ASSERT_EQ(batch.inputs.sizes(), at::IntArrayRef({8, 6}));
  const auto tokens = batch.inputs.const_data_ptr<int64_t>();
  const auto targets = batch.targets.contiguous();
  for (int64_t b = 0; b < 8; ++b) {
    for (int64_t t = 0; t < 6; ++t) {
      const int64_t previous = t == 0 ? 0 : tokens[b * 6 + t - 1];
      EXPECT_EQ(targets.const_data_ptr<int64_t>()[b * 6 + t],
                (3 * tokens[b * 6 + t] + previous) % 11);
    }
  }
}

TEST(Blocks, BadOptionsAreNamed) {
  expect_error([] { layer_norm_block({.heads = 3}); }, {"heads", "d_model (16)", "3"});
  expect_error([] { rms_norm_block({.heads = 4, .kv_heads = 3}); }, {"kv_heads", "heads (4)", "3"});
  expect_error([] { rms_norm_block({.heads = 16, .kv_heads = 16}); }, {"even", "16 / 16"});
  expect_error([] { layer_norm_block({.layers = 0}); }, {"layers", "0"});
  expect_error([] { layer_norm_block({.batch_size = 0}); }, {"batch_size", "0"});
  expect_error([] { gpt_j_block({.rotary_size = 3}); }, {"rotary_size", "head (8)", "3"});
  expect_error([] { gpt_j_block({.rotary_size = 10}); }, {"rotary_size", "head (8)", "10"});
  expect_error([] { vit_block({.d_patch = 0}); }, {"d_patch", "0"});
  expect_error([] { vit_block({.norm_eps = -1}); }, {"norm_eps", "-1"});
}

}  // namespace
}  // namespace ddc::testbeds
