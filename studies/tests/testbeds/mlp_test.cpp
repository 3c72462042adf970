#include "ddc/testbeds/mlp.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/testbeds.h"

namespace ddc::testbeds {
namespace {

using tests::expect_error;

TEST(ReluChain, HasAGaugeBetweenEachTwoLayers) {
  for (const int64_t depth : {2, 4, 7}) {
    const auto bed = relu_chain({.depth = depth});
    const auto params = bed.init(0, at::kDouble);
    EXPECT_EQ(static_cast<int64_t>(params.size()), 2 * depth);
    EXPECT_EQ(static_cast<int64_t>(bed.gauges(params).size()), depth - 1);
    EXPECT_EQ(dimension_of_kind(bed.gauges(params), params, "relu rescale"), (depth - 1) * 16);
  }
}

TEST(ReluChain, WholeTensorGaugesHaveOneChannelEach) {
  const auto bed = relu_chain({.per_channel = false});
  const auto params = bed.init(0, at::kDouble);
  EXPECT_EQ(dimension_of_kind(bed.gauges(params), params, "relu rescale"), 3);
}

TEST(ReluChain, GaugeOfTheOtherDegreeIsBroken) {
  const auto relu = relu_chain({.depth = 3, .degree = 1});
  const auto squared = relu_chain({.depth = 3, .degree = 2});
  const auto params = relu.init(1, at::kDouble);
  const auto batch = relu.batch(2, at::kDouble);
  EXPECT_GT(loss_change(relu, squared.gauges(params), params, batch), 1e-4);
  EXPECT_GT(loss_change(squared, relu.gauges(params), params, batch), 1e-4);
}

TEST(ReluChain, AnotherTeacherSeedIsAnotherTeacher) {
  const auto one = relu_chain({.teacher_seed = 1}).batch(3, at::kDouble);
  const auto two = relu_chain({.teacher_seed = 2}).batch(3, at::kDouble);
  EXPECT_TRUE(at::equal(one.inputs, two.inputs));
  EXPECT_FALSE(at::equal(one.targets, two.targets));
}

TEST(ReluChain, BadOptionsAreNamed) {
  expect_error([] { relu_chain({.depth = 1}); }, {"depth", "1"});
  expect_error([] { relu_chain({.degree = 3}); }, {"degree", "3"});
}

}  // namespace
}  // namespace ddc::testbeds
