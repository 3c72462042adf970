#include "ddc/experiments/settings.h"

#include <gmock/gmock.h>

#include <set>
#include <string>

#include "ddc/experiments/catalogue.h"
#include "support/errors.h"

namespace ddc::experiments {
namespace {

using testing::HasSubstr;

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
  const auto error = [](const Json& initial, const std::string& text) {
    return message_of([&] { parse_setting({"depth", initial, ""}, text); });
  };
  EXPECT_THAT(error(2, "two"), HasSubstr("setting depth must be a whole number, got \"two\""));
  EXPECT_THAT(error(2, "2.5"), HasSubstr("setting depth must be a whole number, got 2.5"));
  EXPECT_THAT(error(2u, "-2"), HasSubstr("setting depth must be a whole number >= 0, got -2"));
  EXPECT_THAT(error(0.5, "true"), HasSubstr("setting depth must be a number, got true"));
  EXPECT_THAT(error(true, "1"), HasSubstr("setting depth must be true or false, got 1"));
  EXPECT_THAT(error(2, ""), HasSubstr("setting depth must be a whole number, got \"\""));
}

TEST(Complete, FillsInDefaultsAndRefusesWhatIsNotDeclared) {
  const std::vector<SettingHelp> declared = {{"depth", 2, ""}, {"width", 8, ""}};
  EXPECT_EQ(complete("testbed mlp", declared, {{"width", 3}}), Json({{"depth", 2}, {"width", 3}}));
  EXPECT_THAT(message_of([&] {
                complete("testbed mlp", declared, {{"dept", 3}});
              }),
              HasSubstr("unknown setting of testbed mlp 'dept'; did you mean 'depth'?"));
  EXPECT_THAT(message_of([&] {
                complete("testbed mlp", declared, {{"depth", "deep"}});
              }),
              HasSubstr("setting depth must be a whole number"));
}

TEST(Catalogue, SettingsOfTestbedsAndOptimizersHaveNamesApart) {
  // `ddc run --set NAME=VALUE` does not say whose setting it is.
  for (const auto& testbed : testbed_entries()) {
    std::set<std::string> names;
    for (const auto& setting : testbed.settings) names.insert(setting.name);
    EXPECT_EQ(names.size(), testbed.settings.size()) << testbed.name;
    for (const auto& optimizer : optimizer_entries()) {
      for (const auto& setting : optimizer.settings) {
        EXPECT_FALSE(names.contains(setting.name))
            << testbed.name << " and " << optimizer.name << ": " << setting.name;
      }
    }
  }
}

}  // namespace
}  // namespace ddc::experiments
