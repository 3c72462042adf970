// The gauges of a norm's shift and of what LayerNorm does not read: legs, and what is wrong.

#include "ddc/gauge/norm.h"

#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/legs.h"

namespace ddc::tests {
namespace {

const NamedTensor gain = named("gain", {4});
const NamedTensor shift = named("shift", {4});
const NamedTensor up = named("up", {6, 4});
const NamedTensor up_bias = named("up_bias", {6});
const NamedTensor gate = named("gate", {5, 4});
const NamedTensor gate_bias = named("gate_bias", {5});
const NamedTensor undefined = undefined_tensor();

Parameters all() {
  return Parameters(std::vector<NamedTensor>{gain, shift, up, up_bias, gate, gate_bias});
}

TEST(NormKernelShifts, ActOnTheRowsOfEachReaderSeenThroughTheGain) {
  const auto gauges = norm_kernel_shifts(
      {.gain = gain, .readers = {{up, up_bias}, {gate}}, .gain_is_offset = true});
  ASSERT_EQ(gauges.size(), 2u);
  const Reading through{.gain = "gain", .gain_offset = 1};
  const Channels whole(4, 0);
  EXPECT_EQ(gauges[0].legs, (Legs{seen_through(leg("up", 1, 1, whole), through)}));
  EXPECT_EQ(gauges[1].legs, (Legs{seen_through(leg("gate", 1, 1, whole), through)}));
  EXPECT_EQ(gauges[0].action, Action::shift);
  EXPECT_EQ(gauges[0].kind, "norm kernel shift");
  EXPECT_EQ(gauges[0].name, "up:kernel");
  // A number for every row.
  EXPECT_EQ(dimension(gauges[0], all()), 6);
  EXPECT_EQ(group_name(gauges[1], all()), "R^5");
}

TEST(NormKernelShifts, LetTheBiasTakeUpWhatTheRowReadsOfAShift) {
  const auto gauges = norm_kernel_shifts(
      {.gain = gain, .shift = shift, .readers = {{up, up_bias}, {gate, gate_bias}}});
  ASSERT_EQ(gauges.size(), 2u);
  EXPECT_EQ(gauges[1].legs,
            (Legs{seen_through(leg("gate", 1, 1, Channels(4, 0)),
                               {.gain = "gain", .shift = "shift", .bias = "gate_bias"})}));
  EXPECT_NO_THROW(validate(gauges[1], all()));
}

TEST(NormKernelShifts, LeaveOutReadersOfAShiftThatHaveNoBias) {
  const auto gauges =
      norm_kernel_shifts({.gain = gain, .shift = shift, .readers = {{up}, {gate, gate_bias}}});
  ASSERT_EQ(gauges.size(), 1u);
  EXPECT_EQ(gauges[0].name, "gate:kernel");
}

TEST(NormKernelShifts, ActOnColumnsInTheTransposedLayout) {
  const auto gauges = norm_kernel_shifts(
      {.gain = gain, .readers = {{named("up", {4, 6})}}, .layout = Layout::in_out});
  EXPECT_EQ(gauges[0].legs,
            (Legs{seen_through(leg("up", 0, 1, Channels(4, 0)), {.gain = "gain"})}));
}

TEST(NormKernelShifts, NameWhatIsWrong) {
  expect_error([] { norm_kernel_shifts({.gain = gain, .readers = {{undefined}}}); },
               {"nothing", "undefined"});
  expect_error([] { norm_kernel_shifts({.gain = gain, .readers = {{up_bias}}}); },
               {"up_bias", "[6]", "axis 1"});
}

TEST(NormShiftExchange, GivesWhatTheShiftGainsBackToEveryReadersBias) {
  const auto gauge = norm_shift_exchange(
      {.gain = gain, .shift = shift, .readers = {{up, up_bias}, {gate, gate_bias}}});
  EXPECT_EQ(gauge.action, Action::exchange);
  EXPECT_EQ(gauge.channels, 4);
  EXPECT_EQ(gauge.kind, "norm shift exchange");
  EXPECT_EQ(gauge.name, "shift:exchange");
  EXPECT_EQ(gauge.legs,
            (Legs{leg("shift", 0, 1), seen_through(leg("up", 1, 1), {.bias = "up_bias"}),
                  seen_through(leg("gate", 1, 1), {.bias = "gate_bias"})}));
  EXPECT_EQ(dimension(gauge, all()), 4);
  EXPECT_EQ(group_name(gauge, all()), "R^4");
  EXPECT_NO_THROW(validate(gauge, all()));
}

TEST(NormShiftExchange, ReadsRowsInTheTransposedLayout) {
  const auto gauge = norm_shift_exchange({.gain = gain,
                                          .shift = shift,
                                          .readers = {{named("up", {4, 6}), up_bias}},
                                          .layout = Layout::in_out});
  EXPECT_EQ(gauge.legs[1], seen_through(leg("up", 0, 1), {.bias = "up_bias"}));
}

TEST(NormShiftExchange, NamesWhatIsWrong) {
  expect_error(
      [] {
        norm_shift_exchange({.gain = gain, .readers = {{up, up_bias}}});
      },
      {"norm_shift_exchange", "'gain'", "no shift"});
  expect_error([] { norm_shift_exchange({.gain = gain, .shift = shift, .readers = {}}); },
               {"'gain'", "no reader"});
  expect_error(
      [] {
        norm_shift_exchange({.gain = gain, .shift = shift, .readers = {{up, up_bias}, {gate}}});
      },
      {"'gate'", "no bias", "'shift'"});
  expect_error(
      [] {
        norm_shift_exchange({.gain = gain, .shift = undefined, .readers = {{up, up_bias}}});
      },
      {"nothing", "undefined"});
}

}  // namespace
}  // namespace ddc::tests
