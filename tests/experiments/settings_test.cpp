#include "ddc/experiments/settings.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/errors.h"

namespace ddc::experiments {
namespace {

using tests::expect_error;

TEST(Nearest, IsTheNameThatTakesTheFewestEdits) {
  EXPECT_EQ(nearest("adamv", {"muon", "ddc-adam", "adamw"}), "adamw");
  EXPECT_EQ(nearest("ddc_adam", {"adamw", "ddc-adam"}), "ddc-adam");
  EXPECT_EQ(nearest("adamw", {"adamw"}), "adamw");
}

TEST(Nearest, IsNoneIfAllAreOtherWords) {
  EXPECT_EQ(nearest("zzzzzzzz", {"adamw", "muon"}), "");
  EXPECT_EQ(nearest("adamw", {}), "");
}

TEST(Unknown, SuggestsTheNearestNameIfThereIsOne) {
  EXPECT_EQ(unknown("optimizer", "moun", {"adamw", "muon"}),
            "unknown optimizer 'moun'; did you mean 'muon'?");
  EXPECT_EQ(unknown("optimizer", "zzzzzzzz", {"adamw"}), "unknown optimizer 'zzzzzzzz'");
}

TEST(ParseSetting, ReadsTheTypeOfTheDefault) {
  EXPECT_EQ(parse_setting({"depth", 2, ""}, "-3"), Json(-3));
  EXPECT_EQ(parse_setting({"seed", 0u, ""}, "3"), Json(3u));
  EXPECT_EQ(parse_setting({"lr", 0.1, ""}, "1e-3"), Json(1e-3));
  EXPECT_EQ(parse_setting({"lr", 0.1, ""}, "1"), Json(1.0));
  EXPECT_EQ(parse_setting({"nesterov", true, ""}, "false"), Json(false));
  EXPECT_EQ(parse_setting({"gauges", "all", ""}, "3"), Json("3"));
}

TEST(ParseSetting, NamesTheSettingAndWhatItMustBe) {
  const auto expect = [](const Json& initial, const std::string& text, const std::string& said) {
    expect_error([&] { parse_setting({"depth", initial, ""}, text); }, {"setting depth " + said});
  };
  expect(2, "two", "must be a whole number, got \"two\"");
  expect(2, "2.5", "must be a whole number, got 2.5");
  expect(2u, "-2", "must be a whole number >= 0, got -2");
  expect(0.5, "true", "must be a number, got true");
  expect(true, "1", "must be true or false, got 1");
  expect(2, "", "must be a whole number, got \"\"");
}

TEST(Complete, FillsInDefaultsAndRefusesWhatIsNotDeclared) {
  const std::vector<SettingHelp> declared = {{"depth", 2, ""}, {"width", 8, ""}};
  EXPECT_EQ(complete("testbed mlp", declared, {{"width", 3}}), Json({{"depth", 2}, {"width", 3}}));
  expect_error(
      [&] {
        complete("testbed mlp", declared, {{"dept", 3}});
      },
      {"unknown setting of testbed mlp 'dept'; did you mean 'depth'?"});
  expect_error(
      [&] {
        complete("testbed mlp", declared, {{"depth", "deep"}});
      },
      {"setting depth must be a whole number"});
}

}  // namespace
}  // namespace ddc::experiments
