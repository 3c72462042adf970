#include "ddc/experiments/settings.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/errors.h"

namespace ddc::experiments {
namespace {

using tests::expect_error;

struct Options {
  int64_t depth = 2;
  uint64_t seed = 0;
  double lr = 0.1;
  bool nesterov = true;
  std::string gauges = "all";

  OptionList options() {
    return {{"depth", depth, "layers"},
            {"seed", seed, "of the weights"},
            {"lr", lr, "learning rate"},
            {"nesterov", nesterov, "look ahead"},
            {"gauges", gauges, "which are bound"}};
  }
};

Json parsed(const std::string& name, const std::string& text) {
  for (const auto& setting : declared_settings<Options>()) {
    if (setting.name() == name) return parse_setting(setting, text);
  }
  return "no such setting";
}

TEST(ParseSetting, ReadsTheTypeOfTheDefault) {
  EXPECT_EQ(parsed("depth", "-3"), Json(-3));
  EXPECT_EQ(parsed("seed", "3"), Json(3));
  EXPECT_EQ(parsed("lr", "1e-3"), Json(1e-3));
  EXPECT_EQ(parsed("lr", "1"), Json(1.0));
  EXPECT_TRUE(parsed("lr", "1").is_number_float());
  EXPECT_EQ(parsed("nesterov", "false"), Json(false));
  EXPECT_EQ(parsed("gauges", "3"), Json("3"));
}

TEST(ParseSetting, NamesTheSettingAndWhatItMustBe) {
  const auto expect = [](const std::string& name, const std::string& text,
                         const std::string& said) {
    expect_error([&] { parsed(name, text); }, {"option " + name + " " + said});
  };
  expect("depth", "two", "must be a whole number, got 'two'");
  expect("depth", "2.5", "must be a whole number, got 2.5");
  expect("seed", "-2", "must be a whole number >= 0, got -2");
  expect("lr", "true", "must be a number, got 'true'");
  expect("nesterov", "2", "must be true or false, got '2'");
  expect("depth", "", "must be a whole number, got ''");
}

TEST(Complete, FillsInDefaultsAndRefusesWhatIsNotDeclared) {
  auto declared = declared_settings<Options>();
  declared.resize(2, declared.front());
  EXPECT_EQ(complete("testbed mlp", declared, {{"seed", 3}}), Json({{"depth", 2}, {"seed", 3}}));
  expect_error(
      [&] {
        complete("testbed mlp", declared, {{"dept", 3}});
      },
      {"unknown setting of testbed mlp 'dept'; did you mean 'depth'?"});
  expect_error(
      [&] {
        complete("testbed mlp", declared, {{"depth", "deep"}});
      },
      {"option depth must be a whole number, got 'deep'"});
  for (const auto& wrong : {Json(nullptr), Json::array({1}), Json::object()}) {
    expect_error(
        [&] {
          complete("testbed mlp", declared, {{"depth", wrong}});
        },
        {"option depth must be a whole number, got '" + wrong.dump() + "'"});
  }
}

TEST(OptionsFrom, AssignsWhatTheOptionsKnow) {
  const auto options =
      options_from<Options>({{"depth", 5}, {"lr", 1}, {"gauges", "none"}, {"colour", "red"}});
  EXPECT_EQ(options.depth, 5);
  EXPECT_EQ(options.lr, 1);
  EXPECT_EQ(options.gauges, "none");
  EXPECT_TRUE(options.nesterov);
}

}  // namespace
}  // namespace ddc::experiments
