// The gauges of attention: their legs in every packing and layout, and what is wrong with what they were
// given. (That the maps are those of a network is shown in attention_network_test.cpp.)

#include "ddc/gauge/attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/legs.h"

namespace ddc::tests {
namespace {

using channel_maps::Pairing;

const NamedTensor undefined = undefined_tensor();

TEST(QKScale, MultipliesQueriesAndDividesKeysPerHead) {
  const auto gauge = qk_scale({.query = named("q", {4, 5}),
                               .query_bias = named("q_bias", {4}),
                               .key = named("k", {4, 5}),
                               .key_bias = named("k_bias", {4}),
                               .heads = 2});
  EXPECT_EQ(gauge.channels, 2);
  const Channels map{0, 0, 1, 1};
  EXPECT_EQ(gauge.legs, (Legs{head_leg(2, "q", 0, 1, map), head_leg(2, "q_bias", 0, 1, map),
                              head_leg(2, "k", 0, -1, map), head_leg(2, "k_bias", 0, -1, map)}));
}

TEST(QKScale, SharesAChannelInAGroupAndHasOnePerRotaryPlane) {
  const auto gauge = qk_scale({.query = named("q", {16, 5}),
                               .key = named("k", {8, 5}),
                               .heads = 4,
                               .kv_heads = 2,
                               .pairing = Pairing::half_split});
  EXPECT_EQ(gauge.channels, 4);
  EXPECT_EQ(gauge.legs[0].channel_of, (Channels{0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3}));
  EXPECT_EQ(gauge.legs[1].channel_of, (Channels{0, 1, 0, 1, 2, 3, 2, 3}));
}

TEST(QKScale, NamesWhatIsWrong) {
  const auto q = named("q", {6, 5});
  const auto k = named("k", {6, 5});
  expect_error([=] { qk_scale({.query = q, .key = k, .heads = 4}); }, {"'q'", "6", "4 heads"});
  expect_error([=] { qk_scale({.query = q, .key = k, .heads = 6, .kv_heads = 4}); },
               {"'q'", "6 heads", "4 groups"});
  expect_error([=] { qk_scale({.query = q, .key = k, .heads = 2, .kv_heads = 1}); },
               {"'q'", "3", "'k'", "6"});
  expect_error(
      [=] { qk_scale({.query = q, .key = k, .heads = 2, .pairing = Pairing::half_split}); },
      {"even", "3"});
  expect_error([=] { qk_scale({.query = undefined, .key = k, .heads = 2}); },
               {"nothing", "undefined"});
  expect_error([=] { qk_scale({.query = q, .key = k, .key_bias = undefined, .heads = 2}); },
               {"nothing", "undefined"});
}

TEST(VOScale, MultipliesValuesAndDividesTheColumnsOfTheOutput) {
  const auto gauge = vo_scale({.value = named("v", {4, 5}),
                               .value_bias = named("v_bias", {4}),
                               .output = named("o", {5, 8}),
                               .heads = 4,
                               .kv_heads = 2});
  EXPECT_EQ(gauge.channels, 2);
  const Channels map{0, 0, 1, 1};
  EXPECT_EQ(gauge.legs, (Legs{head_leg(2, "v", 0, 1, map), head_leg(2, "v_bias", 0, 1, map),
                              head_leg(2, "o", 1, -1, {0, 0, 0, 0, 1, 1, 1, 1})}));
}

TEST(VOScale, NamesWhatIsWrong) {
  const auto v = named("v", {6, 5});
  expect_error(
      [=] {
        vo_scale({.value = v, .output = named("o", {5, 6}), .heads = 4});
      },
      {"'v'", "6", "4 heads"});
  expect_error(
      [=] {
        vo_scale({.value = v, .output = named("o", {5, 7}), .heads = 2});
      },
      {"'o'", "7", "2 heads"});
  expect_error(
      [=] {
        vo_scale({.value = v, .output = named("o", {5, 8}), .heads = 2});
      },
      {"'v'", "3", "'o'", "4"});
  expect_error([=] { vo_scale({.value = v, .output = undefined, .heads = 2}); },
               {"nothing", "undefined"});
}

/// Channel maps of queries, keys and values with four heads of size two in two groups.
struct Packed {
  Packing packing;
  std::vector<int64_t> rows;  ///< of query, key and value
  Channels query, key, value;
};
const Packed grouped[] = {
    {Packing::separate, {8, 4, 4}, {0, 1, 0, 1, 2, 3, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}},
    {Packing::stacked,
     {16, 16, 16},
     {0, 1, 0, 1, 2, 3, 2, 3, -1, -1, -1, -1, -1, -1, -1, -1},
     {-1, -1, -1, -1, -1, -1, -1, -1, 0, 1, 2, 3, -1, -1, -1, -1},
     {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 1, 2, 3}},
    {Packing::per_head,
     {16, 16, 16},
     {0, 1, 0, 1, -1, -1, -1, -1, 2, 3, 2, 3, -1, -1, -1, -1},
     {-1, -1, -1, -1, 0, 1, -1, -1, -1, -1, -1, -1, 2, 3, -1, -1},
     {-1, -1, -1, -1, -1, -1, 0, 1, -1, -1, -1, -1, -1, -1, 2, 3}},
};

/// A matrix with `out` outputs and five inputs, in either layout.
NamedTensor matrix(std::string name, int64_t out, Layout layout, int64_t in = 5) {
  return layout == Layout::out_in ? named(std::move(name), {out, in})
                                  : named(std::move(name), {in, out});
}

/// What `action` on single coordinates has, in units of a head: c -> c / 2.
Channels per_head(Channels channels) {
  for (auto& c : channels) c = c < 0 ? -1 : c / 2;
  return channels;
}

TEST(AttentionPacking, FindsQueriesAndKeysInEveryLayout) {
  for (const auto& packed : grouped) {
    for (const auto layout : {Layout::out_in, Layout::in_out}) {
      SCOPED_TRACE(static_cast<int>(packed.packing) * 10 + static_cast<int>(layout));
      const int64_t axis = layout == Layout::out_in ? 0 : 1;
      const QueryKey spec{.query = matrix("q", packed.rows[0], layout),
                          .query_bias = named("qb", {packed.rows[0]}),
                          .key = matrix("k", packed.rows[1], layout),
                          .key_bias = named("kb", {packed.rows[1]}),
                          .heads = 4,
                          .kv_heads = 2,
                          .packing = packed.packing,
                          .layout = layout};
      const auto expect = [&](const Gauge& gauge, const Channels& q, const Channels& k, double e) {
        EXPECT_EQ(gauge.legs, (Legs{head_leg(2, "q", axis, 1, q), head_leg(2, "qb", 0, 1, q),
                                    head_leg(2, "k", axis, e, k), head_leg(2, "kb", 0, e, k)}));
      };
      expect(qk_scale(spec), per_head(packed.query), per_head(packed.key), -1);
      expect(qk_rotation(spec), packed.query, packed.key, 1);
      expect(qk_linear(spec), packed.query, packed.key, -1);
      EXPECT_EQ(key_bias_null(spec).legs, (Legs{leg("kb", 0, 1, packed.key)}));
    }
  }
}

TEST(AttentionPacking, FindsValuesAndTheirOutputsInEveryLayout) {
  const Channels columns{0, 1, 0, 1, 2, 3, 2, 3};
  for (const auto& packed : grouped) {
    for (const auto layout : {Layout::out_in, Layout::in_out}) {
      SCOPED_TRACE(static_cast<int>(packed.packing) * 10 + static_cast<int>(layout));
      const int64_t axis = layout == Layout::out_in ? 0 : 1;
      const ValueOutput spec{.value = matrix("v", packed.rows[2], layout),
                             .value_bias = named("vb", {packed.rows[2]}),
                             .output = matrix("o", 5, layout, 8),
                             .output_bias = named("ob", {5}),
                             .heads = 4,
                             .kv_heads = 2,
                             .packing = packed.packing,
                             .layout = layout};
      const auto expect = [&](const Gauge& gauge, const Channels& v, const Channels& o, double e) {
        EXPECT_EQ(gauge.legs, (Legs{head_leg(2, "v", axis, 1, v), head_leg(2, "vb", 0, 1, v),
                                    head_leg(2, "o", 1 - axis, e, o)}));
      };
      expect(vo_scale(spec), per_head(packed.value), per_head(columns), -1);
      expect(vo_rotation(spec), packed.value, columns, 1);
      expect(vo_linear(spec), packed.value, columns, -1);
      EXPECT_EQ(value_bias_exchange(spec).legs,
                (Legs{leg("vb", 0, 1, packed.value),
                      seen_through(leg("o", 1 - axis, 1, columns), {.bias = "ob"})}));
    }
  }
}

/// Two heads of size four without biases.
QueryKey rotary(Pairing pairing, std::optional<int64_t> size, int64_t kv_heads = 2) {
  return {.query = named("q", {8, 5}),
          .key = named("k", {kv_heads * 4, 5}),
          .heads = 2,
          .kv_heads = kv_heads,
          .pairing = pairing,
          .rotary_size = size};
}

TEST(QKTorus, TurnsBothCoordinatesOfAPlane) {
  const auto half_split = qk_torus(rotary(Pairing::half_split, {}));
  EXPECT_EQ(half_split.action, Action::rotation);
  EXPECT_EQ(half_split.block, 2);
  EXPECT_EQ(half_split.channels, 8);
  const Channels planes{0, 2, 1, 3, 4, 6, 5, 7};
  EXPECT_EQ(half_split.legs,
            (Legs{head_leg(4, "q", 0, 1, planes), head_leg(4, "k", 0, 1, planes)}));
  const auto interleaved = qk_torus(rotary(Pairing::interleaved, {}));
  EXPECT_EQ(interleaved.legs[0].channel_of, (Channels{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(QKTorus, SharesPlanesInAGroupAndLeavesPassingCoordinatesAlone) {
  const auto gauge = qk_torus(rotary(Pairing::half_split, 2, /*kv_heads=*/1));
  EXPECT_EQ(gauge.channels, 2);
  EXPECT_EQ(gauge.legs[0].channel_of, (Channels{0, 1, -1, -1, 0, 1, -1, -1}));
  EXPECT_EQ(gauge.legs[1].channel_of, (Channels{0, 1, -1, -1}));
}

TEST(PartialRotary, GivesPlanesAScaleAndTheRestTheirFullGroup) {
  for (const auto pairing : {Pairing::half_split, Pairing::interleaved}) {
    const auto spec = rotary(pairing, 2);
    EXPECT_EQ(qk_scale(spec).channels, 2);
    EXPECT_EQ(qk_scale(spec).legs[0].channel_of, (Channels{0, 0, -1, -1, 1, 1, -1, -1}));
    for (const auto& gauge : {qk_linear(spec), qk_rotation(spec)}) {
      EXPECT_EQ(gauge.block, 2);
      EXPECT_EQ(gauge.channels, 4);
      EXPECT_EQ(gauge.legs[0].channel_of, (Channels{-1, -1, 0, 1, -1, -1, 2, 3}));
      EXPECT_EQ(gauge.legs[1].channel_of, (Channels{-1, -1, 0, 1, -1, -1, 2, 3}));
    }
  }
}

TEST(PartialRotary, LeavesTheKeyBiasUnseenWhereItPasses) {
  auto spec = rotary(Pairing::half_split, 2);
  spec.key_bias = named("kb", {8});
  EXPECT_EQ(key_bias_null(spec).legs, (Legs{leg("kb", 0, 1, {-1, -1, 0, 1, -1, -1, 2, 3})}));
}

TEST(AttentionGroups, HaveTheirDimensionAndName) {
  struct Case {
    Gauge gauge;
    int64_t dimension;
    const char* group;
    const char* kind;
    const char* name;
  };
  // 3 query heads share a key head of size 4; 2 heads of size 4 without groups.
  const QueryKey mqa{.query = named("q", {12, 5}),
                     .key = named("k", {4, 5}),
                     .key_bias = named("kb", {4}),
                     .heads = 3,
                     .kv_heads = 1};
  const ValueOutput vo{.value = named("v", {8, 5}),
                       .value_bias = named("vb", {8}),
                       .output = named("o", {5, 8}),
                       .output_bias = named("ob", {5}),
                       .heads = 2};
  const Case cases[] = {
      {qk_scale(mqa), 1, "R+", "QK scale", "q:qk_scale"},
      {qk_rotation(mqa), 6, "O(4)", "QK rotation", "q:qk_rotation"},
      {qk_linear(mqa), 16, "GL(4)", "QK linear", "q:qk_linear"},
      {key_bias_null(mqa), 4, "R^4", "null shift", "kb:null"},
      {qk_scale(rotary(Pairing::half_split, {})), 4, "(R+)^4", "QK plane scale", "q:qk_scale"},
      {qk_torus(rotary(Pairing::half_split, {})), 4, "SO(2)^4", "QK torus", "q:qk_torus"},
      {qk_torus(rotary(Pairing::interleaved, 2)), 2, "SO(2)^2", "QK torus", "q:qk_torus"},
      {qk_linear(rotary(Pairing::interleaved, 2)), 8, "GL(2)^2", "QK linear", "q:qk_linear"},
      {vo_scale(vo), 2, "(R+)^2", "VO scale", "v:vo_scale"},
      {vo_rotation(vo), 12, "O(4)^2", "VO rotation", "v:vo_rotation"},
      {vo_linear(vo), 32, "GL(4)^2", "VO linear", "v:vo_linear"},
      {value_bias_exchange(vo), 8, "R^8", "value bias exchange", "vb:exchange"},
  };
  for (const auto& [gauge, size, group, kind, name] : cases) {
    SCOPED_TRACE(std::string(kind) + " " + group);
    const bool multi_query = gauge.legs.front().channel_of.size() == 12 || gauge.name == "kb:null";
    const Parameters params(std::vector<NamedTensor>{
        multi_query ? mqa.query : named("q", {8, 5}), multi_query ? mqa.key : named("k", {8, 5}),
        *mqa.key_bias, vo.value, *vo.value_bias, vo.output, *vo.output_bias});
    EXPECT_NO_THROW(validate(gauge, params));
    EXPECT_EQ(dimension(gauge, params), size);
    EXPECT_EQ(group_name(gauge, params), group);
    EXPECT_EQ(gauge.kind, kind);
    EXPECT_EQ(gauge.name, name);
  }
  EXPECT_EQ(vo_linear({.value = vo.value, .output = vo.output, .heads = 2, .name = "mine"}).name,
            "mine");
}

TEST(AttentionGauges, NameWhatIsWrong) {
  const auto q = named("q", {8, 5});
  const auto k = named("k", {8, 5});
  const auto bias = named("b", {8});
  expect_error([&] { qk_torus({.query = q, .key = k, .heads = 2}); },
               {"qk_torus", "'q'", "pairing"});
  for (const auto& make : {qk_linear, qk_rotation}) {
    expect_error([&] { make(rotary(Pairing::half_split, {})); }, {"'q'", "all 4", "qk_torus"});
  }
  for (const int64_t size : {0, 3, 6}) {
    expect_error([&] { qk_torus(rotary(Pairing::half_split, size)); },
                 {"'q'", "even", "head size 4", "got " + std::to_string(size)});
  }
  expect_error([&] { qk_scale({.query = q, .key = k, .heads = 2, .rotary_size = 2}); },
               {"'q'", "rotary_size", "no pairing"});
  expect_error([&] { qk_linear({.query = q, .key = k, .heads = 4, .kv_heads = 3}); },
               {"4 heads", "3 groups"});
  // Two heads, fused, have six blocks of rows.
  const auto fused = named("qkv", {8, 5});
  for (const auto packing : {Packing::stacked, Packing::per_head}) {
    expect_error([&] { qk_linear({.query = fused, .key = fused, .heads = 2, .packing = packing}); },
                 {"'qkv'", "8 indices", "6 heads"});
  }
  expect_error([&] { key_bias_null({.query = q, .key = k, .heads = 2}); }, {"'k'", "no bias"});
  expect_error(
      [&] {
        auto spec = rotary(Pairing::interleaved, {});
        spec.key_bias = bias;
        key_bias_null(spec);
      },
      {"'b'", "rotary"});
  const auto v = named("v", {8, 5});
  const auto o = named("o", {5, 8});
  expect_error([&] { value_bias_exchange({.value = v, .value_bias = bias, .output = o}); },
               {"'v'", "'o'", "both have a bias"});
  expect_error([&] { value_bias_exchange({.value = v, .output = o, .output_bias = bias}); },
               {"'v'", "'o'", "both have a bias"});
  expect_error([&] { vo_linear({.value = v, .output = undefined, .heads = 2}); },
               {"nothing", "undefined"});
}

}  // namespace
}  // namespace ddc::tests
