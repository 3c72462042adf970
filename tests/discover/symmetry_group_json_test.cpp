#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>

#include "support/errors.h"
#include "support/symmetry_groups.h"

namespace ddc::tests {
namespace {

using nlohmann::json;

TEST(SymmetryGroupJson, EveryFieldSurvivesTheText) {
  const auto group = unusual_group();
  const auto text = group.to_json();
  expect_same(group, SymmetryGroup::parse(text));
  EXPECT_EQ(text, SymmetryGroup::parse(text).to_json());
  expect_same(SymmetryGroup(), SymmetryGroup::parse(SymmetryGroup().to_json()));
}

TEST(SymmetryGroupJson, EveryWordOfTheActionSurvives) {
  Parameters params;
  params.add("w", at::zeros({4, 4}));
  params.add("b", at::zeros({4}));
  for (const auto action : {Action::scale, Action::shift, Action::rotation, Action::linear}) {
    Gauge gauge;
    gauge.name = "g";
    gauge.action = action;
    gauge.channels = 4;
    gauge.block = gauge.mixes() ? 2 : 1;
    gauge.legs = {{.tensor = "w", .axis = 0, .channel_of = {}}};
    const auto group = group_of({gauge}, params);
    expect_same(gauge, SymmetryGroup::parse(group.to_json()).findings[0].gauge);
  }
  Gauge exchange;
  exchange.name = "exchange";
  exchange.action = Action::exchange;
  exchange.channels = 4;
  exchange.legs = {{.tensor = "b", .axis = 0, .channel_of = {}},
                   {.tensor = "w", .axis = 1, .channel_of = {}, .through = {.bias = "c"}}};
  params.add("c", at::zeros({4}));
  const auto group = group_of({exchange}, params);
  expect_same(exchange, SymmetryGroup::parse(group.to_json()).findings[0].gauge);
}

// The patch embedding of a ViT has its bias as one row beside the rows of a table.
TEST(SymmetryGroupJson, AnAxisInFrontOfAllOthersSurvives) {
  Parameters params;
  params.add("positions", at::zeros({4, 3}));
  params.add("bias", at::zeros({3}));
  Gauge gauge;
  gauge.name = "patches";
  gauge.action = Action::shift;
  gauge.channels = 1;
  gauge.legs = {{.tensor = "positions", .axis = 0, .channel_of = {0, 0, 0, 0}},
                {.tensor = "bias", .axis = -1, .exponent = -1, .channel_of = {0}}};
  const auto group = group_of({gauge}, params);
  expect_same(group, SymmetryGroup::parse(group.to_json()));
}

// Heads, grouped queries and fused tensors: long channel maps of few pieces.
TEST(SymmetryGroupJson, LongChannelMapsAreStoredAsRuns) {
  Parameters params;
  params.add("fused", at::zeros({3072, 8}));
  Gauge gauge;
  gauge.name = "heads";
  gauge.channels = 1024;
  gauge.legs = {{.tensor = "fused", .axis = 0, .channel_of = {}}};
  auto& map = gauge.legs[0].channel_of;
  for (int64_t i = 0; i < 1024; ++i) map.push_back(1023 - i);
  for (int64_t i = 0; i < 1024; ++i) map.push_back(-1);
  for (int64_t i = 0; i < 1024; ++i) map.push_back(i < 512 ? 2 * i : 2 * (i - 512) + 1);
  const auto group = group_of({gauge}, params);
  const auto text = group.to_json();
  EXPECT_LT(text.size(), 1500U);
  expect_same(group, SymmetryGroup::parse(text));
}

// 24 layers of width 192: about ten million parameters.
TEST(SymmetryGroupJson, ADeepModelTakesLessThanAMegabyte) {
  const auto testbed =
      testbeds::rms_norm_block({.d_model = 192,
                                .heads = 6,
                                .kv_heads = 3,
                                .d_ff = 512,
                                .layers = 24,
                                .gauges = testbeds::GaugeSet::with_residual_rotation});
  const auto params = testbed.init(1, at::kFloat);
  const auto group = group_of(testbed.gauges(params), params);
  const auto text = group.to_json();
  EXPECT_LT(text.size(), 1000000U);
  expect_same(group, SymmetryGroup::parse(text));
}

/// The text with one place changed.
std::string with(const std::string& pointer, const json& value) {
  auto document = json::parse(unusual_group().to_json());
  document[json::json_pointer(pointer)] = value;
  return document.dump();
}

std::string without(const std::string& parent, const std::string& name) {
  auto document = json::parse(unusual_group().to_json());
  EXPECT_EQ(document[json::json_pointer(parent)].erase(name), 1U);
  return document.dump();
}

void expect_refused(const std::string& text, std::vector<std::string> parts) {
  SCOPED_TRACE(text.substr(0, 200));
  parts.insert(parts.begin(), "symmetries: ");
  expect_error([&] { SymmetryGroup::parse(text); }, parts);
}

TEST(SymmetryGroupJson, ATruncatedTextIsRefusedWhereverItEnds) {
  for (const auto& group : {unusual_group(), SymmetryGroup()}) {
    const auto text = group.to_json();
    ASSERT_EQ(text.substr(text.size() - 2), "}\n");
    for (size_t size = 0; size + 1 < text.size(); size += (size < 40 ? 1 : 7)) {
      expect_refused(text.substr(0, size), {"truncated", "at byte"});
    }
  }
}

TEST(SymmetryGroupJson, ForeignTextIsRefused) {
  expect_refused("", {"not JSON"});
  expect_refused("hello", {"not JSON", "byte 1"});
  expect_refused("[]", {"the text is []", "must be an object"});
  expect_refused("3", {"the text is 3", "must be an object"});
  expect_refused("{}", {"not that of a symmetry group", "format is missing"});
  expect_refused(R"({"format": "pt"})", {R"(format is "pt")", "must be \"ddc symmetries\""});
  expect_refused(R"({"format": "ddc symmetries"})", {"version is missing"});
  expect_refused(with("/version", 3), {"version is 3", "reads 1 and 2"});
  expect_refused(with("/version", "1"), {"version is \"1\"", "an integer"});
  expect_refused(unusual_group().to_json() + "x", {"not JSON"});
  expect_refused(unusual_group().to_json() + std::string(1, '\0') + "x", {"is zero"});
  expect_refused(R"({"format": 1e999})", {"out of range"});
}

TEST(SymmetryGroupJson, AWrongFieldIsRefusedByItsPath) {
  const std::string gauge = "/findings/1/gauge";
  const std::string leg = gauge + "/legs/0";
  expect_refused(with(leg + "/axis", -2),
                 {"findings[1].gauge.legs[0].axis is -2", "must be >= -1"});
  expect_refused(with(leg + "/axis", 1.5), {"legs[0].axis is 1.5", "must be an integer"});
  expect_refused(with(leg + "/axis", 18446744073709551615ULL), {"must be an integer"});
  expect_refused(with(leg + "/exponent", "two"), {"exponent is \"two\"", "must be a number"});
  expect_refused(with(leg + "/tensor", 3), {"legs[0].tensor is 3", "must be a string"});
  expect_refused(with(leg + "/channel_of", 3), {"channel_of is 3", "must be a list"});
  expect_refused(with(leg + "/channel_of/2", -2), {"channel_of[2] is -2", "must be >= -1"});
  expect_refused(with(leg + "/head_size", -4), {"head_size is -4", ">= 0"});
  expect_refused(with("/findings/0/gauge/legs/0/through", "x"),
                 {"legs[0].through is \"x\"", "an object"});
  expect_refused(with("/findings/0/gauge/legs/0/through/gain", false),
                 {"through.gain is false", "a string"});
  expect_refused(with(gauge + "/action", "twist"),
                 {"findings[1].gauge.action is \"twist\"", "one of: scale, shift, rotation"});
  expect_refused(with(gauge + "/channels", 0), {"channels is 0", "must be >= 1"});
  expect_refused(with(gauge + "/legs", json::object()), {"gauge.legs is {}", "must be a list"});
  expect_refused(with("/findings/0", nullptr), {"findings[0] is null", "must be an object"});
  expect_refused(with("/findings/0/engagement/engaged", "no"), {"engagement.engaged"});
  expect_refused(with("/refusals/0/tensors/1", 1), {"refusals[0].tensors[1] is 1"});
  expect_refused(with("/completeness/per_tensor/1/dimensions", "x"),
                 {"completeness.per_tensor[1].dimensions"});
  expect_refused(with("/notes", "one"), {"notes is \"one\"", "a list"});
  expect_refused(with("/parameters/0/shape", {3, -1}), {"parameters[0].shape[1] is -1"});
  const std::string long_text(500, 'x');
  expect_error([&] { SymmetryGroup::parse(with("/joint_residual", long_text)); },
               {"joint_residual is \"xxx", "xxx..., must be"});
}

TEST(SymmetryGroupJson, AMissingFieldIsNamed) {
  expect_refused(without("", "parameters"), {"parameters is missing"});
  expect_refused(without("", "joint_residual"), {"joint_residual is missing"});
  expect_refused(without("/findings/1", "gauge"), {"findings[1].gauge is missing"});
  expect_refused(without("/findings/1/gauge/legs/1", "axis"),
                 {"findings[1].gauge.legs[1].axis is missing"});
}

TEST(SymmetryGroupJson, UnknownFieldsAreIgnored) {
  expect_same(unusual_group(), SymmetryGroup::parse(with("/findings/0/gauge/colour", "red")));
}

/// The text as version 1 wrote it: each gauge said how an optimizer was to treat it.
json version_1() {
  auto document = json::parse(unusual_group().to_json());
  document["version"] = 1;
  for (auto& finding : document["findings"]) {
    finding["gauge"].update({{"vertical", "frozen"},
                             {"radial", "linear"},
                             {"max_log_step", 0.1},
                             {"second_moment", "transported"},
                             {"tau", 1e-2},
                             {"frame_drift", 0.1},
                             {"frame_interval", 1000},
                             {"procrustes", false},
                             {"rebalance_above", 1e-12}});
  }
  return document;
}

TEST(SymmetryGroupJson, VersionOneIsReadIfItTreatsItsGaugesAsByDefault) {
  expect_same(unusual_group(), SymmetryGroup::parse(version_1().dump()));
  const std::vector<std::pair<std::string, json>> changes{{"coordinates", "polar"},
                                                          {"hold", "unit"},
                                                          {"vertical", "adam"},
                                                          {"radial", "log"},
                                                          {"max_log_step", 0.25},
                                                          {"second_moment", "none"},
                                                          {"tau", 0.07},
                                                          {"frame_drift", "inf"},
                                                          {"frame_interval", 7},
                                                          {"procrustes", true},
                                                          {"rebalance_above", 0}};
  for (const auto& [option, value] : changes) {
    auto document = version_1();
    document["findings"][1]["gauge"][option] = value;
    expect_refused(document.dump(), {"findings[1].gauge." + option + " is " + value.dump(),
                                     "since version 2", option + " of its treatment"});
  }
}

TEST(SymmetryGroupJson, TextNestedTooDeepIsRefused) {
  for (const size_t levels : {size_t{100}, size_t{1000000}}) {
    expect_refused(std::string(levels, '['), {"nested deeper than 64 levels"});
    expect_refused(std::string(levels, '[') + std::string(levels, ']'),
                   {"nested deeper than 64 levels"});
  }
}

TEST(SymmetryGroupJson, GaugesThatDoNotFitTheStoredShapesAreRefused) {
  const std::string gauge = "/findings/1/gauge";
  expect_refused(with(gauge + "/legs/0/tensor", "nobody"),
                 {"findings[1].gauge", "nobody", "no parameter has that name"});
  expect_refused(with(gauge + "/legs/0/axis", 2), {"findings[1].gauge", "axis 2", "[12, 6]"});
  expect_refused(with(gauge + "/legs/0/exponent", "inf"), {"exponent must be finite"});
  expect_refused(with(gauge + "/legs/0/exponent", 0), {"exponent must be finite and not zero"});
  expect_refused(with(gauge + "/legs/0/channel_of/0", 4), {"channel 4", "not in [-1, 4)"});
  expect_refused(with(gauge + "/channels", 1000000000000000), {"channels is 1000000000000000"});
  expect_refused(with(gauge + "/legs", json::array()), {"'scale' has no legs"});
  expect_refused(with(gauge + "/name", "turn \u03b8"), {"findings[1].gauge.name", "unique"});
  expect_refused(with(gauge + "/name", ""), {"findings[1].gauge", "no name"});
  expect_refused(with("/parameters/1/name", "fused"), {"parameters[1]", "'fused'", "twice"});
  expect_refused(with("/parameters/1/shape", {INT64_MAX, INT64_MAX}), {"parameters[1]"});
}

TEST(SymmetryGroupJson, RunsThatMakeNoSenseAreRefused) {
  const std::string map = "/findings/1/gauge/legs/0/channel_of";
  const auto runs = [&](const json& list) { return with(map, {{"runs", list}}); };
  EXPECT_NO_THROW(SymmetryGroup::parse(runs({{0, 1, 4}, {-1, 0, 8}})));
  expect_refused(with(map, json::object()), {"channel_of is {}", "runs"});
  expect_refused(runs(3), {"channel_of is {\"runs\":3}"});
  expect_refused(runs({{0, 1}}), {"runs[0] is [0,1]", "[first, step, count]"});
  expect_refused(runs({{0, 1, "4"}}), {"an integer"});
  expect_refused(runs({{0, 1, 4}, {0, 1, 0}}), {"runs[1]", ">= 1"});
  expect_refused(runs({{0, 0, 4000000000000}}), {"no longer than the axes"});
  expect_refused(runs({{3, -2, 12}}), {"runs[0]", ">= -1"});
  // A parameter may be said to be of any size; memory for its channels is not taken for that.
  auto huge = json::parse(runs({{0, 0, int64_t{1} << 40}}));
  huge["parameters"][0]["shape"] = {int64_t{1} << 41};
  expect_refused(huge.dump(), {"all lists together below 134217728 entries"});
  expect_refused(runs({{0, INT64_MAX, 12}}), {"runs[0]"});
}

TEST(SymmetryGroupJson, TextThatIsNotUtf8IsNotWritten) {
  auto group = unusual_group();
  group.findings[1].gauge.kind = "\xff";
  expect_error([&] { group.to_json(); }, {"findings[1].gauge.kind", "UTF-8"});
}

}  // namespace
}  // namespace ddc::tests
