// A product of two matrices: legs, what is wrong with what was given, and that the product is kept.

#include "ddc/gauge/linear_pair.h"

#include <gtest/gtest.h>

#include "ddc/gauge/action.h"
#include "support/errors.h"
#include "support/legs.h"
#include "support/matrices.h"

namespace ddc::tests {
namespace {

const NamedTensor first = named("a", {3, 5});
const NamedTensor second = named("b", {6, 3});

TEST(LinearPair, ActsOnTheRowsOfTheFirstAndTheColumnsOfTheSecond) {
  const auto gauge = linear_pair({.first = first, .second = second});
  const Parameters params(std::vector<NamedTensor>{first, second});
  EXPECT_EQ(gauge.action, Action::linear);
  EXPECT_EQ(gauge.block, 3);
  EXPECT_EQ(gauge.channels, 3);
  EXPECT_EQ(gauge.legs, (Legs{leg("a", 0, 1), leg("b", 1, -1)}));
  EXPECT_EQ(gauge.name, "a:linear");
  EXPECT_EQ(gauge.kind, "linear pair");
  EXPECT_EQ(dimension(gauge, params), 9);
  EXPECT_EQ(group_name(gauge, params), "GL(3)");
  EXPECT_EQ(linear_pair({.first = first, .second = second, .name = "lora"}).name, "lora");
}

TEST(LinearPair, TransposedLayoutSwapsTheAxes) {
  const auto gauge = linear_pair(
      {.first = named("a", {5, 3}), .second = named("b", {3, 6}), .layout = Layout::in_out});
  EXPECT_EQ(gauge.legs, (Legs{leg("a", 1, 1), leg("b", 0, -1)}));
}

TEST(LinearPair, KeepsTheProductAndOnlyWithTheInverseOnOneSide) {
  Parameters params(std::vector<NamedTensor>{{"a", normal({3, 5}, 1)}, {"b", normal({6, 3}, 2)}});
  auto gauge = linear_pair({.first = params["a"], .second = params["b"]});
  const auto product = params["b"].tensor.mm(params["a"].tensor);
  const auto change = [&](const Gauge& g) {
    const auto copy = params.clone();
    act_(g, random_element(g, copy, 1, at::make_generator<at::CPUGeneratorImpl>(3)), copy);
    return ((copy["b"].tensor.mm(copy["a"].tensor) - product).norm() / product.norm())
        .item<double>();
  };
  EXPECT_LE(change(gauge), 1e-13);
  gauge.legs[1].exponent = 1;
  EXPECT_GE(change(gauge), 0.1);
}

TEST(LinearPair, NamesWhatIsWrong) {
  expect_error(
      [] {
        linear_pair({.first = first, .second = named("b", {6, 4})});
      },
      {"linear_pair", "'a'", "3", "'b'", "4"});
  expect_error([] { linear_pair({.first = undefined_tensor(), .second = second}); },
               {"nothing", "undefined"});
  expect_error([] { linear_pair({.first = first, .second = undefined_tensor()}); },
               {"nothing", "undefined"});
  expect_error([] { linear_pair({.first = first, .second = named("flat", {3})}); },
               {"flat", "[3]", "axis 1"});
}

}  // namespace
}  // namespace ddc::tests
