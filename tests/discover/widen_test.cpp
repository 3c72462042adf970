// The gauges of a network from those of a narrow twin: for networks of the zoo exactly those that it is known
// to have.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ddc/discover/discover.h"
#include "ddc/testbeds/zoo.h"
#include "support/discovered.h"

namespace ddc::tests {
namespace {

using testbeds::zoo_entry;
using testbeds::ZooEntry;

class Widen : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(All, Widen,
                         ::testing::Values("ln_relu", "rms_swiglu_rope", "ln_gelu", "tied"),
                         [](const auto& instance) { return instance.param; });

ZooEntry network(const std::string& name, int64_t width, int64_t heads, int64_t inner,
                 int64_t layers = 2) {
  return zoo_entry(
      name, {.d_model = width, .heads = heads, .d_ff = inner, .layers = layers, .vocabulary = 40});
}

TEST_P(Widen, GivesTheGaugesOfTheWideNetwork) {
  const auto narrow = network(GetParam(), 8, 2, 12);
  const auto small = narrow.testbed.init(narrow.seed, at::kDouble);
  const auto known = discover(small, evaluation_of(narrow.testbed, small));
  // As many heads, and more of them.
  for (const int64_t heads : {2, 3}) {
    const auto wide = network(GetParam(), 24, heads, 20);
    const auto params = wide.testbed.init(wide.seed, at::kDouble);
    const auto group = widen(known, params, evaluation_of(wide.testbed, params));
    EXPECT_EQ(differences(wide.testbed.gauges(params), group.gauges(), params), "") << group;
    EXPECT_LE(group.joint_residual, group.joint_tolerance);
  }
}

TEST(Widen, TakesLayersThatTheTwinDoesNotHaveForItsSecond) {
  const auto narrow = network("ln_relu", 8, 2, 12, 3);
  const auto small = narrow.testbed.init(narrow.seed, at::kDouble);
  const auto known = discover(small, evaluation_of(narrow.testbed, small));
  const auto wide = network("ln_relu", 16, 2, 20, 6);
  const auto params = wide.testbed.init(wide.seed, at::kDouble);
  const auto group = widen(known, params, evaluation_of(wide.testbed, params));
  EXPECT_EQ(differences(wide.testbed.gauges(params), group.gauges(), params), "") << group;
}

}  // namespace
}  // namespace ddc::tests
