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

TEST(SymmetryGroupJson, EveryWordOfEveryEnumSurvives) {
  auto group = unusual_group();
  auto& gauge = group.findings[0].gauge;
  for (int word = 0; word < 6; ++word) {
    gauge.second_moment = static_cast<SecondMoment>(word);
    gauge.coordinates = static_cast<Coordinates>(word % 3);
    gauge.vertical = static_cast<Vertical>(word % 3);
    gauge.hold = static_cast<Hold>(word % 2);
    gauge.radial = static_cast<Radial>(word % 2);
    expect_same(gauge, SymmetryGroup::parse(group.to_json()).findings[0].gauge);
  }
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
  expect_refused(with("/version", 2), {"version is 2", "reads 1"});
  expect_refused(with("/version", "1"), {"version is \"1\"", "an integer"});
  expect_refused(unusual_group().to_json() + "x", {"not JSON"});
  expect_refused(unusual_group().to_json() + std::string(1, '\0') + "x", {"is zero"});
  expect_refused(R"({"format": 1e999})", {"out of range"});
}

TEST(SymmetryGroupJson, AWrongFieldIsRefusedByItsPath) {
  const std::string gauge = "/findings/1/gauge";
  const std::string leg = gauge + "/legs/0";
  expect_refused(with(leg + "/axis", -1), {"findings[1].gauge.legs[0].axis is -1", "must be >= 0"});
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
  expect_refused(with(gauge + "/coordinates", "flat"), {"folded, balanced, standard, polar"});
  expect_refused(with(gauge + "/hold", 1), {"ratio, unit"});
  expect_refused(with(gauge + "/vertical", ""), {"frozen, sgd, adam"});
  expect_refused(with(gauge + "/radial", "?"), {"linear, log"});
  expect_refused(with(gauge + "/second_moment", "all"), {"transported, body_frame"});
  expect_refused(with(gauge + "/procrustes", 0), {"procrustes is 0", "true or false"});
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

TEST(SymmetryGroupJson, MissingSettingsAreTheUsualOnesAndUnknownFieldsAreIgnored) {
  const auto plain = SymmetryGroup::parse(without("/findings/0/gauge", "tau"));
  EXPECT_EQ(plain.findings[0].gauge.tau, Gauge().tau);
  expect_same(unusual_group(), SymmetryGroup::parse(with("/findings/0/gauge/colour", "red")));
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
  expect_refused(runs({{0, INT64_MAX, 12}}), {"runs[0]"});
}

TEST(SymmetryGroupJson, TextThatIsNotUtf8IsNotWritten) {
  auto group = unusual_group();
  group.findings[1].gauge.kind = "\xff";
  expect_error([&] { group.to_json(); }, {"findings[1].gauge.kind", "UTF-8"});
}

}  // namespace
}  // namespace ddc::tests
