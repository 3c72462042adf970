// Options as they are declared: types, ranges, texts, names.

#include "ddc/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "support/errors.h"

namespace ddc::tests {

enum class Colour { red, dark_red, blue };

}  // namespace ddc::tests

template <>
inline constexpr std::array ddc::EnumNames<ddc::tests::Colour> = {"red", "dark_red", "blue"};

namespace ddc::tests {
namespace {

using ::testing::ElementsAre;
using Type = Option::Type;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Every {
  bool flag = true;
  int64_t count = 3;
  uint64_t seed = 7;
  double rate = 0.5;
  std::string text = "some";
  Colour colour = Colour::dark_red;
  std::optional<double> maybe_rate = std::nullopt;
  std::optional<int64_t> maybe_count = std::nullopt;
  std::optional<Colour> maybe_colour = std::nullopt;

  OptionList options() {
    return {{"flag", flag, "a flag"},
            {"count", count, "a count", at_least(1)},
            {"seed", seed, "a seed"},
            {"rate", rate, "a rate", fraction()},
            {"text", text, "a text"},
            {"colour", colour, "a colour"},
            {"maybe_rate", maybe_rate, "a rate or none", above(0)},
            {"maybe_count", maybe_count, "a count or none", at_least(1)},
            {"maybe_colour", maybe_colour, "a colour or none"}};
  }
};

OptionValue word(const std::string& text) { return text; }

TEST(Options, AreListedInOrderWithTypesAndHelp) {
  Every every;
  const auto list = every.options();
  std::vector<std::string> names;
  std::vector<Type> types;
  std::vector<bool> optional;
  for (const auto& option : list) {
    names.push_back(option.name());
    types.push_back(option.type());
    optional.push_back(option.is_optional());
    EXPECT_FALSE(option.help().empty());
  }
  EXPECT_THAT(names, ElementsAre("flag", "count", "seed", "rate", "text", "colour", "maybe_rate",
                                 "maybe_count", "maybe_colour"));
  EXPECT_THAT(types,
              ElementsAre(Type::boolean, Type::integer, Type::integer, Type::number, Type::text,
                          Type::choice, Type::number, Type::integer, Type::choice));
  EXPECT_THAT(optional, ElementsAre(false, false, false, false, false, false, true, true, true));
  EXPECT_THAT(list.find("colour")->choices(), ElementsAre("red", "dark_red", "blue"));
  EXPECT_THAT(list.find("maybe_colour")->choices(),
              ElementsAre("default", "red", "dark_red", "blue"));
  EXPECT_EQ(list.find("nothing"), nullptr);
}

TEST(Options, ReadAndWriteTheFieldsOfTheirStruct) {
  Every every;
  const auto list = every.options();
  EXPECT_EQ(list.values(), (OptionValues{{"flag", true},
                                         {"count", int64_t{3}},
                                         {"seed", int64_t{7}},
                                         {"rate", 0.5},
                                         {"text", word("some")},
                                         {"colour", word("dark_red")},
                                         {"maybe_rate", word("default")},
                                         {"maybe_count", word("default")},
                                         {"maybe_colour", word("default")}}));
  EXPECT_EQ(values_of(every), list.values());
  list.assign({{"flag", false},
               {"count", int64_t{9}},
               {"seed", int64_t{0}},
               {"rate", 0.25},
               {"text", word("other")},
               {"colour", word("blue")},
               {"maybe_rate", 2.0},
               {"maybe_count", int64_t{4}},
               {"maybe_colour", word("red")}});
  EXPECT_FALSE(every.flag);
  EXPECT_EQ(every.count, 9);
  EXPECT_EQ(every.seed, 0U);
  EXPECT_EQ(every.rate, 0.25);
  EXPECT_EQ(every.text, "other");
  EXPECT_EQ(every.colour, Colour::blue);
  EXPECT_EQ(every.maybe_rate, 2);
  EXPECT_EQ(every.maybe_count, 4);
  EXPECT_EQ(every.maybe_colour, Colour::red);
  // What was written is what is read, and another struct takes it.
  Every copy;
  copy.options().assign(values_of(every));
  EXPECT_EQ(values_of(copy), values_of(every));
  for (const auto* name : {"maybe_rate", "maybe_count", "maybe_colour"}) {
    list.find(name)->set(word("default"));
  }
  EXPECT_FALSE(every.maybe_rate || every.maybe_count || every.maybe_colour);
}

TEST(Options, TakeANumberForAnotherTypeOnlyIfItIsTheSame) {
  Every every;
  const auto list = every.options();
  list.assign({{"rate", int64_t{0}}, {"count", 4.0}, {"flag", int64_t{0}}});
  EXPECT_EQ(every.rate, 0);
  EXPECT_EQ(every.count, 4);
  EXPECT_FALSE(every.flag);
  EXPECT_TRUE(std::holds_alternative<double>(list.find("rate")->checked(int64_t{0})));
  EXPECT_TRUE(std::holds_alternative<int64_t>(list.find("count")->checked(4.0)));
  EXPECT_TRUE(std::holds_alternative<bool>(list.find("flag")->checked(int64_t{1})));
  list.assign({{"maybe_rate", int64_t{3}}});
  EXPECT_EQ(every.maybe_rate, 3);
}

TEST(Options, NameTheValueAndTheRuleTheyBreak) {
  Every every;
  const auto list = every.options();
  const auto before = list.values();
  const auto refused = [&](const std::string& name, const OptionValue& value,
                           const std::string& said) {
    expect_error([&] { list.assign({{name, value}}); }, {"option " + name + " must be " + said});
  };
  refused("flag", int64_t{2}, "true or false, got 2");
  refused("flag", 1.0, "true or false, got 1");
  refused("flag", word("true"), "true or false, got 'true'");
  refused("count", int64_t{0}, "a whole number >= 1, got 0");
  refused("count", 2.5, "a whole number >= 1, got 2.5");
  refused("count", kNaN, "a whole number >= 1, got nan");
  refused("count", 1e300, "a whole number >= 1, got 1e+300");
  refused("count", true, "a whole number >= 1, got true");
  refused("count", word("default"), "a whole number >= 1, got 'default'");
  refused("seed", int64_t{-1}, "a whole number >= 0, got -1");
  refused("rate", 1.0, "in [0, 1), got 1");
  refused("rate", -0.1, "in [0, 1), got -0.1");
  refused("rate", kNaN, "in [0, 1), got nan");
  refused("rate", word("half"), "a number, got 'half'");
  refused("rate", true, "a number, got true");
  refused("text", 3.0, "text, got 3");
  refused("colour", word("green"), "one of red, dark_red, blue, got 'green'");
  refused("colour", word("blu"), "one of red, dark_red, blue, got 'blu'; did you mean 'blue'?");
  refused("colour", int64_t{1}, "one of red, dark_red, blue, got 1");
  refused("colour", word("default"), "one of red, dark_red, blue, got 'default'");
  refused("maybe_rate", 0.0, "default, or finite and > 0, got 0");
  refused("maybe_rate", kInf, "default, or finite and > 0, got inf");
  refused("maybe_rate", word("none"), "a number, got 'none'");
  refused("maybe_count", int64_t{0}, "default, or a whole number >= 1, got 0");
  refused("maybe_colour", word("green"), "one of default, red, dark_red, blue, got 'green'");
  EXPECT_EQ(list.values(), before);
}

TEST(Options, ThatAreUnknownAreNamedWithTheirOwner) {
  Every every;
  expect_error(
      [&] {
        every.options().assign({{"coulor", 1.0}});
      },
      {"unknown option 'coulor'; did you mean 'colour'?"});
  expect_error(
      [&] {
        every.options().assign({{"counts", 1.0}}, "Every");
      },
      {"unknown option of Every 'counts'; did you mean 'count'?"});
  expect_error(
      [&] {
        every.options().assign({{"wavelength", 1.0}}, "Every");
      },
      {"unknown option of Every 'wavelength'; there are flag, count, seed, rate"});
}

struct Together {
  double low = 0;
  double high = 1;

  OptionList options() { return {{"low", low, "", at_least(0)}, {"high", high, ""}}; }
  void check() const { TORCH_CHECK_VALUE(low < high, "option low must be below high"); }
};

TEST(Options, AreCheckedEachAloneAndTogether) {
  EXPECT_NO_THROW(check_options(Every{}));
  expect_error([] { check_options(Every{.count = 0}); }, {"option count", "got 0"});
  expect_error([] { check_options(Every{.maybe_rate = -1}); }, {"option maybe_rate", "got -1"});
  expect_error([] { check_options(Every{.rate = kNaN}); }, {"option rate", "got nan"});
  EXPECT_NO_THROW(check_options(Together{}));
  expect_error([] { check_options(Together{.low = -1}); }, {"option low must be finite and >= 0"});
  expect_error([] { check_options(Together{.high = kInf}); },
               {"option high must be finite, got inf"});
  expect_error([] { check_options(Together{.low = 2}); }, {"option low must be below high"});
}

TEST(Options, AreParsedFromTextByTheirType) {
  Every every;
  const auto list = every.options();
  const auto parsed = [&](const char* name, const std::string& text) {
    return list.find(name)->parsed(text);
  };
  EXPECT_EQ(parsed("flag", "true"), OptionValue(true));
  EXPECT_EQ(parsed("flag", "0"), OptionValue(false));
  EXPECT_EQ(parsed("count", "12"), OptionValue(int64_t{12}));
  EXPECT_EQ(parsed("count", "1e3"), OptionValue(int64_t{1000}));
  EXPECT_EQ(parsed("rate", "0"), OptionValue(0.0));
  EXPECT_EQ(parsed("rate", "2.5e-1"), OptionValue(0.25));
  EXPECT_EQ(parsed("text", "3"), word("3"));
  EXPECT_EQ(parsed("text", ""), word(""));
  EXPECT_EQ(parsed("colour", "blue"), word("blue"));
  EXPECT_EQ(parsed("maybe_rate", "default"), word("default"));
  EXPECT_EQ(parsed("maybe_rate", "3"), OptionValue(3.0));
  EXPECT_EQ(parsed("maybe_colour", "default"), word("default"));
  expect_error([&] { parsed("flag", "yes"); }, {"option flag must be true or false, got 'yes'"});
  expect_error([&] { parsed("count", "1.5"); }, {"a whole number >= 1, got 1.5"});
  expect_error([&] { parsed("count", "12 "); }, {"a whole number >= 1, got '12 '"});
  expect_error([&] { parsed("count", ""); }, {"a whole number >= 1, got ''"});
  expect_error([&] { parsed("rate", "0.5x"); }, {"option rate must be a number, got '0.5x'"});
  expect_error([&] { parsed("rate", "nan"); }, {"in [0, 1), got nan"});
  expect_error([&] { parsed("colour", "dark red"); }, {"did you mean 'dark_red'?"});
}

TEST(Ranges, SayWhatTheyHold) {
  struct Case {
    Range range;
    std::string text;
    std::vector<double> in;
    std::vector<double> out;
  };
  for (const auto& [range, text, in, out] :
       std::vector<Case>{{{}, "finite", {-1e300, 0, 1e300}, {}},
                         {at_least(0), "finite and >= 0", {0, 1e300}, {-1e-300}},
                         {above(0), "finite and > 0", {5e-324, 1}, {0, -1}},
                         {fraction(), "in [0, 1)", {0, 0.999}, {1, -1e-9}},
                         {between(0, 1), "in [0, 1]", {0, 1}, {1.1, -0.1}},
                         {{.low = 0, .high = 1, .low_open = true}, "in (0, 1]", {1, 1e-9}, {0}}}) {
    EXPECT_EQ(range.text(), text);
    for (const double value : in) EXPECT_TRUE(range.contains(value)) << text << " " << value;
    for (const double value : out) EXPECT_FALSE(range.contains(value)) << text << " " << value;
    for (const double value : {kNaN, kInf, -kInf}) EXPECT_FALSE(range.contains(value)) << text;
  }
}

TEST(OptionValues, HaveTexts) {
  EXPECT_EQ(to_string(OptionValue(true)), "true");
  EXPECT_EQ(to_string(OptionValue(int64_t{-3})), "-3");
  EXPECT_EQ(to_string(OptionValue(0.001)), "0.001");
  EXPECT_EQ(to_string(OptionValue(1.0 / 3)), "0.3333333333333333");
  EXPECT_EQ(to_string(word("exact")), "exact");
}

TEST(Nearest, IsTheNameThatTakesTheFewestEdits) {
  EXPECT_EQ(nearest("adamv", {"muon", "ddc-adam", "adamw"}), "adamw");
  EXPECT_EQ(nearest("ddc_adam", {"adamw", "ddc-adam"}), "ddc-adam");
  EXPECT_EQ(nearest("adamw", {"adamw"}), "adamw");
}

TEST(Nearest, IsNoneIfAllAreOtherWords) {
  EXPECT_EQ(nearest("zzzzzzzz", {"adamw", "muon"}), "");
  EXPECT_EQ(nearest("adamw", {}), "");
}

TEST(Unknown, SuggestsTheNearestNameOrSaysWhichThereAre) {
  EXPECT_EQ(unknown("optimizer", "moun", {"adamw", "muon"}),
            "unknown optimizer 'moun'; did you mean 'muon'?");
  EXPECT_EQ(unknown("optimizer", "zzzzzzzz", {"adamw", "muon"}),
            "unknown optimizer 'zzzzzzzz'; there are adamw, muon");
}

}  // namespace
}  // namespace ddc::tests
