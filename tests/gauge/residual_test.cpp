// The gauges of a residual stream: legs, and what is wrong with what they were given.

#include "ddc/gauge/residual.h"

#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/legs.h"

namespace ddc::tests {
namespace {

const NamedTensor embedding = named("embedding", {7, 4});
const NamedTensor output = named("output", {4, 6});
const NamedTensor output_bias = named("output_bias", {4});
const NamedTensor gain = named("gain", {4});
const NamedTensor shift = named("shift", {4});
const NamedTensor up = named("up", {6, 4});
const NamedTensor up_bias = named("up_bias", {6});
const NamedTensor undefined = undefined_tensor();

Parameters all() {
  return Parameters(
      std::vector<NamedTensor>{embedding, output, output_bias, gain, shift, up, up_bias});
}

TEST(ResidualMeanShift, AddsTheSameToEveryChannelOfTheStream) {
  const auto gauge = residual_mean_shift({embedding, 1});
  EXPECT_EQ(gauge.action, Action::shift);
  EXPECT_EQ(gauge.channels, 1);
  EXPECT_EQ(gauge.legs, (Legs{leg("embedding", 1, 1, Channels(4, 0))}));
  EXPECT_EQ(gauge.name, "embedding:mean");
  EXPECT_EQ(gauge.kind, "residual mean shift");
  EXPECT_EQ(dimension(gauge, all()), 7);  // one per token
  EXPECT_EQ(dimension(residual_mean_shift({output, 0}), all()), 6);
  EXPECT_EQ(group_name(residual_mean_shift({output_bias}), all()), "R");
}

TEST(ResidualMeanShift, NamesWhatIsWrong) {
  expect_error([] { residual_mean_shift({undefined, 0}); }, {"nothing", "undefined"});
  expect_error([] { residual_mean_shift({output_bias, 1}); }, {"output_bias", "[4]", "axis 1"});
}

ResidualRotation stream() {
  return {.writers = {{embedding, 1}, {output, 0}, {output_bias, 0}},
          .norms = {{.gain = gain, .shift = shift, .readers = {{up, up_bias}}}}};
}

TEST(ResidualRotation, TurnsWritersAndWhatReadsThroughNorms) {
  const auto gauge = residual_rotation(stream());
  EXPECT_EQ(gauge.action, Action::rotation);
  EXPECT_EQ(gauge.channels, 4);
  EXPECT_EQ(gauge.block, 4);
  EXPECT_EQ(gauge.name, "residual:rotation");
  EXPECT_EQ(gauge.kind, "residual rotation");
  EXPECT_EQ(
      gauge.legs,
      (Legs{leg("embedding", 1, 1), leg("output", 0, 1), leg("output_bias", 0, 1),
            seen_through(leg("up", 1, 1), {.gain = "gain", .shift = "shift", .bias = "up_bias"})}));
  EXPECT_NO_THROW(validate(gauge, all()));
}

TEST(ResidualRotation, LeavesTheOnesAloneUnderLayerNormOnly) {
  auto spec = stream();
  EXPECT_TRUE(residual_rotation(spec).fixes_ones);
  EXPECT_EQ(group_name(residual_rotation(spec), all()), "O(3)");
  EXPECT_EQ(dimension(residual_rotation(spec), all()), 3);
  spec.layer_norm = false;
  spec.name = "mine";
  EXPECT_FALSE(residual_rotation(spec).fixes_ones);
  EXPECT_EQ(group_name(residual_rotation(spec), all()), "O(4)");
  EXPECT_EQ(dimension(residual_rotation(spec), all()), 6);
  EXPECT_EQ(residual_rotation(spec).name, "mine");
}

TEST(ResidualRotation, ReadsOffsetGainsAndTransposedReaders) {
  auto spec = stream();
  spec.norms = {{.gain = gain,
                 .readers = {{named("up", {4, 6})}, {named("gate", {4, 5})}},
                 .gain_is_offset = true,
                 .layout = Layout::in_out}};
  const Reading through{.gain = "gain", .gain_offset = 1};
  const auto gauge = residual_rotation(spec);
  ASSERT_EQ(gauge.legs.size(), 5u);
  EXPECT_EQ(gauge.legs[3], seen_through(leg("up", 0, 1), through));
  EXPECT_EQ(gauge.legs[4], seen_through(leg("gate", 0, 1), through));
}

TEST(ResidualRotation, NamesWhatIsWrong) {
  auto spec = stream();
  spec.writers.clear();
  expect_error([&] { residual_rotation(spec); }, {"residual_rotation", "0 and 1"});
  spec = stream();
  spec.norms.clear();
  expect_error([&] { residual_rotation(spec); }, {"residual_rotation", "3 and 0"});
  spec = stream();
  spec.norms[0].readers[0].bias.reset();
  expect_error([&] { residual_rotation(spec); }, {"'up'", "'shift'", "no bias"});
  spec = stream();
  spec.writers[1].tensor = undefined;
  expect_error([&] { residual_rotation(spec); }, {"nothing", "undefined"});
  spec = stream();
  spec.writers[0].axis = 2;
  expect_error([&] { residual_rotation(spec); }, {"embedding", "[7, 4]", "axis 2"});
  spec = stream();
  spec.writers[1].axis = 1;  // of length 6
  expect_error([&] { validate(residual_rotation(spec), all()); },
               {"residual:rotation", "'output'", "axis 1", "6 indices", "4 channels"});
}

}  // namespace
}  // namespace ddc::tests
