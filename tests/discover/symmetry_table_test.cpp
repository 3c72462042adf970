#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "support/symmetry_groups.h"

namespace ddc::tests {
namespace {

using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> printed(const SymmetryGroup& group) {
  std::ostringstream out;
  out << group;
  std::istringstream in(out.str());
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(SymmetryTable, HasALinePerGaugeAndAllColumnsBeginAtOnePlace) {
  for (const auto& testbed : blocks_with_all_gauges()) {
    const auto params = testbed.init(1, at::kDouble);
    const auto group = group_of(testbed.gauges(params), params);
    const auto lines = printed(group);
    ASSERT_EQ(lines.size(), group.findings.size() + 2);
    const auto& header = lines[0];
    const auto column = [&](const std::string& line, const char* title, const char* next) {
      return line.substr(header.find(title), header.find(next) - header.find(title));
    };
    const auto trimmed = [](const std::string& text) {
      return text.substr(0, text.find_last_not_of(' ') + 1);
    };
    for (size_t i = 0; i < group.findings.size(); ++i) {
      const auto& finding = group.findings[i];
      const auto& line = lines[i + 1];
      SCOPED_TRACE(line);
      EXPECT_EQ(trimmed(column(line, "gauge", "kind")), finding.gauge.name);
      EXPECT_EQ(trimmed(column(line, "kind", "group")), finding.gauge.kind);
      EXPECT_THAT(column(line, "tensors", "verdict"),
                  HasSubstr("[" + std::to_string(finding.gauge.legs[0].axis) + "]"));
      EXPECT_EQ(line.substr(header.find("residual"), 8), " 3.3e-16");
      EXPECT_EQ(line.substr(header.find("verdict")), "verified");
      EXPECT_LE(line.size(), 200U);
    }
    EXPECT_THAT(lines.back(),
                HasSubstr("all together: " + std::to_string(group.findings.size()) +
                          " gauges of dimension " + std::to_string(group.dimension())));
    EXPECT_THAT(lines.back(), HasSubstr("residual 6.7e-16 (passes up to 1.0e-11)"));
  }
}

Gauge gauge_of(Action action, std::vector<Leg> legs) {
  Gauge gauge;
  gauge.name = to_string(action);
  gauge.action = action;
  gauge.legs = std::move(legs);
  return gauge;
}

TEST(SymmetryTable, SaysWhatHappensToEachTensor) {
  SymmetryGroup group;
  const auto line_of = [&](const Gauge& gauge) {
    group.findings = {{.gauge = gauge, .group = "G", .dimension = 3}};
    return printed(group)[1];
  };
  EXPECT_THAT(line_of(gauge_of(Action::scale, {{.tensor = "fc1.weight", .axis = 0},
                                               {.tensor = "fc2.weight", .axis = 1, .exponent = -2},
                                               {.tensor = "x", .axis = 0, .exponent = 0.5}})),
              HasSubstr(" fc1.weight[0]^+1 fc2.weight[1]^-2 x[0]^+0.5 "));
  EXPECT_THAT(line_of(gauge_of(Action::scale, {{.tensor = "layers.0.fc1", .axis = 0},
                                               {.tensor = "layers.0.fc2", .axis = 1}})),
              HasSubstr(" layers.0.{fc1[0]^+1 fc2[1]^+1} "));
  EXPECT_THAT(line_of(gauge_of(Action::scale, {{.tensor = "a.fc", .axis = 0}})),
              HasSubstr(" a.fc[0]^+1 "));
  EXPECT_THAT(line_of(gauge_of(Action::shift, {{.tensor = "a", .axis = 0},
                                               {.tensor = "b", .axis = 0, .exponent = -1},
                                               {.tensor = "c", .axis = 0, .exponent = -2}})),
              HasSubstr(" a[0]+s b[0]-s c[0]-2s "));
  EXPECT_THAT(line_of(gauge_of(Action::rotation, {{.tensor = "q", .axis = 0}, {.tensor = "k"}})),
              HasSubstr(" q[0] k[0] "));
  EXPECT_THAT(line_of(gauge_of(Action::linear, {{.tensor = "v", .axis = 0},
                                                {.tensor = "o", .axis = 1, .exponent = -1}})),
              HasSubstr(" v[0]^+1 o[1]^-T "));
  EXPECT_THAT(
      line_of(gauge_of(Action::exchange,
                       {{.tensor = "norm.bias"},
                        {.tensor = "fc.weight", .axis = 1, .through = {.bias = "fc.bias"}}})),
      HasSubstr(" norm.bias[0]+s fc.bias<-fc.weight[1] "));
}

TEST(SymmetryTable, LeavesOutTensorsThatDoNotFit) {
  std::vector<Leg> legs;
  for (int k = 0; k < 40; ++k) legs.push_back({.tensor = "weight" + std::to_string(k), .axis = 0});
  SymmetryGroup group;
  group.findings = {{.gauge = gauge_of(Action::rotation, legs), .group = "G", .dimension = 3}};
  const auto line = printed(group)[1];
  EXPECT_LE(line.size(), 200U);
  EXPECT_THAT(line, HasSubstr("weight0[0] weight1[0] weight2[0]"));
  EXPECT_THAT(line, ContainsRegex(" 2[0-9]x\\[0\\] "));
  EXPECT_THAT(line, Not(HasSubstr("weight39")));

  // Where not even one fits, what happens to them is left.
  for (auto& leg : legs) leg.tensor = std::string("blocks.").append(200, 'x') + leg.tensor;
  for (size_t k = 0; k < 10; ++k) legs[k].axis = 1;
  group.findings = {{.gauge = gauge_of(Action::rotation, legs), .group = "G", .dimension = 3}};
  EXPECT_THAT(printed(group)[1], HasSubstr(" blocks.{10x[1] 30x[0]} "));
}

TEST(SymmetryTable, ShowsRefusalsCompletenessAndNotes) {
  auto group = unusual_group();
  const auto lines = printed(group);
  const std::string text = ::testing::PrintToString(lines);
  EXPECT_THAT(lines[0], HasSubstr("AdamW"));
  EXPECT_THAT(lines[0], HasSubstr("DDC"));
  EXPECT_THAT(lines[1], HasSubstr("1.0e-03"));
  EXPECT_THAT(lines[1], EndsWith("verified"));
  EXPECT_THAT(lines[1], HasSubstr(" nan "));
  // A letter of two bytes in the name moves nothing.
  EXPECT_EQ(lines[1].find("odd"), lines[0].find("kind") + 1);
  EXPECT_THAT(lines[2], EndsWith("verified, not moved by AdamW"));
  EXPECT_EQ(lines[5], "refused  kind          residual  reason");
  EXPECT_EQ(lines[6], "mlp      relu rescale   7.0e-01  GELU is not homogeneous");
  EXPECT_EQ(lines[8],
            "explains 6 of 8 directions that no batch sees (+3 dead); exact, 120 parameters, gap "
            "1.0e+09");
  EXPECT_EQ(lines[9], "unexplained in   dim");
  EXPECT_EQ(lines[10], "out             1.50");
  EXPECT_EQ(lines[13], "note: 'a' and 'b' are one tensor");

  group.completeness->method = "estimate";
  group.completeness->kernel = 11.25;
  group.completeness->dead = 0;
  EXPECT_EQ(printed(group)[8],
            "explains 6 of at most 11.2 directions that no batch sees; estimate, 120 parameters");
}

TEST(SymmetryTable, SaysThatNothingWasFound) {
  SymmetryGroup group;
  group.parameters.entries = {{"weight", {3}}};
  group.notes = {"all parameters are frozen"};
  EXPECT_EQ(printed(group), (std::vector<std::string>{"no gauge was found on 1 tensor", "",
                                                      "note: all parameters are frozen"}));
}

}  // namespace
}  // namespace ddc::tests
