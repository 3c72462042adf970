// The ready-made scales and shifts: each has the legs that its header documents, and says what is wrong
// with what it was given. (Those of attention, norms and residual streams have files of their own.)

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "ddc/gauge/channel_map.h"
#include "ddc/gauge/gauge.h"
#include "ddc/gauge/norm.h"
#include "ddc/gauge/rescale.h"
#include "ddc/gauge/shift.h"
#include "support/errors.h"
#include "support/legs.h"

namespace ddc {

namespace {

using channel_maps::Pairing;
using tests::Channels;
using tests::expect_error;
using tests::leg;
using tests::Legs;
using tests::named;

const NamedTensor up = named("up", {6, 4});
const NamedTensor up_bias = named("up_bias", {6});
const NamedTensor down = named("down", {4, 6});
const NamedTensor undefined = tests::undefined_tensor();

TEST(ReluRescale, ActsOnTheRowsOfInAndTheColumnsOfOut) {
  const auto gauge = relu_rescale({.in = up, .in_bias = up_bias, .out = {down}});
  EXPECT_EQ(gauge.action, Action::scale);
  EXPECT_EQ(gauge.channels, 6);
  EXPECT_EQ(gauge.legs, (Legs{leg("up", 0, 1), leg("up_bias", 0, 1), leg("down", 1, -1)}));
  EXPECT_EQ(gauge.name, "up:rescale");
}

TEST(ReluRescale, DividesEveryReaderByThePowerOfTheActivation) {
  const auto gauge = relu_rescale({.in = up, .out = {down, named("other", {9, 6})}, .degree = 2});
  EXPECT_EQ(gauge.legs, (Legs{leg("up", 0, 1), leg("down", 1, -2), leg("other", 1, -2)}));
}

TEST(ReluRescale, WholeTensorIsOneChannel) {
  const auto gauge = relu_rescale({.in = up, .in_bias = up_bias, .out = {down}, .whole = true});
  EXPECT_EQ(gauge.channels, 1);
  const Channels zeros(6, 0);
  EXPECT_EQ(gauge.legs,
            (Legs{leg("up", 0, 1, zeros), leg("up_bias", 0, 1, zeros), leg("down", 1, -1, zeros)}));
}

TEST(ReluRescale, TransposedLayoutSwapsTheAxes) {
  const auto gauge = relu_rescale(
      {.in = named("up", {4, 6}), .out = {named("down", {6, 4})}, .layout = Layout::in_out});
  EXPECT_EQ(gauge.channels, 6);
  EXPECT_EQ(gauge.legs, (Legs{leg("up", 1, 1), leg("down", 0, -1)}));
}

TEST(ReluRescale, TakesItsNameFromTheCaller) {
  EXPECT_EQ(relu_rescale({.in = up, .out = {down}, .name = "mine"}).name, "mine");
}

TEST(ReluRescale, NamesWhatIsWrong) {
  expect_error([] { relu_rescale({.in = up, .out = {}}); }, {"up", "no reader"});
  expect_error([] { relu_rescale({.in = up, .out = {down}, .degree = 0}); }, {"degree", "0"});
  expect_error([] { relu_rescale({.in = up, .out = {down}, .degree = -1}); }, {"degree", "-1"});
  expect_error([] { relu_rescale({.in = undefined, .out = {down}}); }, {"nothing", "undefined"});
  expect_error([] { relu_rescale({.in = up, .in_bias = undefined, .out = {down}}); },
               {"nothing", "undefined"});
  expect_error([] { relu_rescale({.in = up, .out = {undefined}}); }, {"nothing", "undefined"});
  expect_error([] { relu_rescale({.in = up, .out = {named("flat", {6})}, .whole = true}); },
               {"flat", "[6]", "axis 1"});
}

TEST(ChainedRescale, MakesAGaugeForEachAdjacentPair) {
  const auto gauges =
      chained_rescale({.weights = {named("a", {5, 3}), named("b", {7, 5}), named("c", {2, 7})},
                       .biases = {named("a_bias", {5}), std::nullopt, named("c_bias", {2})}});
  ASSERT_EQ(gauges.size(), 2u);
  EXPECT_EQ(gauges[0].legs, (Legs{leg("a", 0, 1), leg("a_bias", 0, 1), leg("b", 1, -1)}));
  EXPECT_EQ(gauges[1].legs, (Legs{leg("b", 0, 1), leg("c", 1, -1)}));
}

TEST(ChainedRescale, NamesWhatIsWrong) {
  expect_error([] { chained_rescale({.weights = {up}}); }, {"two weights", "1"});
  expect_error(
      [] {
        chained_rescale({.weights = {up, down}, .biases = {up_bias}});
      },
      {"1 biases", "2 weights"});
}

TEST(GluRescale, ActsOnUpAndDownButNotOnTheGate) {
  const auto gauge = glu_rescale({.up = up, .up_bias = up_bias, .down = {down}});
  EXPECT_EQ(gauge.kind, "glu rescale");
  EXPECT_EQ(gauge.legs, (Legs{leg("up", 0, 1), leg("up_bias", 0, 1), leg("down", 1, -1)}));
}

TEST(GluRescale, NamesWhatIsWrong) {
  expect_error([] { glu_rescale({.up = up, .down = {}}); }, {"up", "no reader"});
  expect_error([] { glu_rescale({.up = undefined, .down = {down}}); }, {"nothing", "undefined"});
}

TEST(DiagonalLinear, ActsOppositelyOnBothFactors) {
  const auto gauge = diagonal_linear({.u = named("u", {8}), .v = named("v", {8})});
  EXPECT_EQ(gauge.channels, 8);
  EXPECT_EQ(gauge.legs, (Legs{leg("u", 0, 1), leg("v", 0, -1)}));
}

TEST(DiagonalLinear, NamesWhatIsWrong) {
  expect_error([] { diagonal_linear({.u = undefined, .v = named("v", {8})}); },
               {"nothing", "undefined"});
  expect_error([] { diagonal_linear({.u = named("u", {8}), .v = undefined}); },
               {"nothing", "undefined"});
}

TEST(NormScale, ActsOnGainShiftAndEveryReader) {
  const auto gauge = norm_scale({.gain = named("gain", {4}),
                                 .shift = named("shift", {4}),
                                 .readers = {up, named("gate", {6, 4})}});
  EXPECT_EQ(gauge.channels, 4);
  EXPECT_EQ(gauge.legs,
            (Legs{leg("gain", 0, 1), leg("shift", 0, 1), leg("up", 1, -1), leg("gate", 1, -1)}));
}

TEST(NormScale, OffsetGainIsMarkedOnTheGainAlone) {
  const auto gauge =
      norm_scale({.gain = named("gain", {4}), .readers = {up}, .gain_is_offset = true});
  EXPECT_EQ(gauge.legs, (Legs{leg("gain", 0, 1, {}, 1), leg("up", 1, -1)}));
}

TEST(NormScale, NamesWhatIsWrong) {
  expect_error([] { norm_scale({.gain = named("gain", {4}), .readers = {}}); },
               {"gain", "no reader"});
  expect_error([] { norm_scale({.gain = undefined, .readers = {up}}); }, {"nothing", "undefined"});
  expect_error(
      [] {
        norm_scale({.gain = named("gain", {4}), .readers = {up, undefined}});
      },
      {"nothing", "undefined"});
}

TEST(ChannelMaps, HeadsOfAGroupShareAChannel) {
  EXPECT_EQ(channel_maps::heads(4, 2, 2), (Channels{0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(channel_maps::heads(2, 3, 2), (Channels{0, 0, 0, 1, 1, 1}));
}

TEST(ChannelMaps, PairingsPutBothCoordinatesOfAPlaneInOneChannel) {
  EXPECT_EQ(channel_maps::heads(2, 4, 2, Pairing::half_split), (Channels{0, 1, 0, 1, 2, 3, 2, 3}));
  EXPECT_EQ(channel_maps::heads(2, 4, 2, Pairing::interleaved), (Channels{0, 0, 1, 1, 2, 2, 3, 3}));
  EXPECT_EQ(channel_maps::heads(2, 4, 1, Pairing::half_split), (Channels{0, 1, 0, 1, 0, 1, 0, 1}));
}

TEST(ChannelMaps, NameWhatIsWrong) {
  expect_error([] { channel_maps::heads(4, 3, 4, Pairing::half_split); }, {"even", "3"});
  expect_error([] { channel_maps::heads(4, 2, 3); }, {"4 heads", "3 groups"});
  expect_error([] { channel_maps::heads(0, 2, 1); }, {"0", "2"});
}

TEST(CrossEntropyShift, AddsOneRowToAllRows) {
  const auto gauge = cross_entropy_shift(named("unembedding", {3, 5}));
  EXPECT_EQ(gauge.action, Action::shift);
  EXPECT_EQ(gauge.channels, 1);
  EXPECT_EQ(gauge.legs, (Legs{leg("unembedding", 0, 1, {0, 0, 0})}));
}

TEST(CrossEntropyShift, AddsOneColumnInTheTransposedLayoutAndANumberToABias) {
  EXPECT_EQ(cross_entropy_shift(named("unembedding", {5, 3}), Layout::in_out).legs,
            (Legs{leg("unembedding", 1, 1, {0, 0, 0})}));
  EXPECT_EQ(cross_entropy_shift(named("bias", {3}), Layout::in_out).legs,
            (Legs{leg("bias", 0, 1, {0, 0, 0})}));
}

TEST(NullShift, MovesEveryEntryOnItsOwn) {
  const auto bias = named("key_bias", {4});
  const auto gauge = null_shift(bias);
  EXPECT_EQ(gauge.action, Action::shift);
  EXPECT_EQ(gauge.legs, (Legs{leg("key_bias", 0, 1)}));
  EXPECT_EQ(dimension(gauge, Parameters(std::vector<NamedTensor>{bias})), 4);
}

TEST(Shifts, NameWhatIsWrong) {
  expect_error([] { cross_entropy_shift(undefined); }, {"nothing", "undefined"});
  expect_error([] { null_shift(undefined); }, {"nothing", "undefined"});
}

class ValidateGauge : public testing::Test {
 protected:
  Parameters params{
      std::vector<NamedTensor>{up, up_bias, down, {"index", at::ones({6}, at::kLong)}}};
  Gauge gauge = relu_rescale({.in = up, .in_bias = up_bias, .out = {down}, .name = "mlp"});

  void expect_invalid(const std::vector<std::string>& parts) {
    expect_error([this] { validate(gauge, params); }, parts);
  }
};

TEST_F(ValidateGauge, AcceptsWhatTheMakersMake) { EXPECT_NO_THROW(validate(gauge, params)); }

TEST_F(ValidateGauge, NamesAnUnknownTensor) {
  gauge.legs[2].tensor = "dwon";
  expect_invalid({"mlp", "leg 2", "dwon"});
}

TEST_F(ValidateGauge, NamesAnExponentOfZero) {
  gauge.legs[1].exponent = 0;
  expect_invalid({"mlp", "up_bias", "exponent", "got 0"});
}

TEST_F(ValidateGauge, NamesAnExponentBeyondReason) {
  for (const double exponent : {1e18, -65.0, 1e-3}) {
    gauge.legs[1].exponent = exponent;
    expect_invalid({"mlp", "up_bias", "exponent must be of a size between 1/64 and 64"});
  }
}

TEST_F(ValidateGauge, NamesAChannelOutOfRange) {
  gauge.legs[0].channel_of = {0, 1, 2, 3, 4, 6};
  expect_invalid({"mlp", "'up'", "index 5", "channel 6", "[-1, 6)"});
}

TEST_F(ValidateGauge, NamesAChannelMapOfTheWrongLength) {
  gauge.legs[0].channel_of = {0, 1, 2, 3, 4};
  expect_invalid({"mlp", "'up'", "5 entries", "6"});
}

TEST_F(ValidateGauge, NamesAnAxisOfTheWrongLength) {
  gauge.legs[2].axis = 0;
  expect_invalid({"mlp", "'down'", "axis 0", "4", "6 channels"});
}

TEST_F(ValidateGauge, NamesAnAxisThatIsNotThere) {
  gauge.legs[1].axis = 1;
  expect_invalid({"mlp", "up_bias", "axis 1", "[6]"});
}

TEST_F(ValidateGauge, NamesATensorOfIntegers) {
  gauge.legs[1].tensor = "index";
  expect_invalid({"mlp", "index", "floating-point"});
}

TEST_F(ValidateGauge, NamesAChannelWithoutLegs) {
  gauge.channels = 7;
  for (auto& one : gauge.legs) one.channel_of = {0, 1, 2, 3, 4, 5};
  expect_invalid({"mlp", "channel 6"});
}

TEST_F(ValidateGauge, NamesTwoLegsOnTheSameAxis) {
  gauge.legs[1].tensor = "up";
  expect_invalid({"mlp", "legs 0 and 1", "axis 0", "'up'"});
}

TEST_F(ValidateGauge, NamesShiftLegsOfDifferentShapes) {
  gauge.action = Action::shift;
  expect_invalid({"mlp", "'up'", "'up_bias'", "same shift vector"});
}

TEST_F(ValidateGauge, NamesAnOffsetOnAShift) {
  gauge = cross_entropy_shift(up);
  gauge.legs[0].offset = 1;
  expect_invalid({"up:shift", "offset", "1"});
}

TEST_F(ValidateGauge, RefusesAGaugeWithoutNameLegsOrChannels) {
  Gauge empty;
  expect_error([&] { validate(empty, params); }, {"no name"});
  empty.name = "empty";
  expect_error([&] { validate(empty, params); }, {"empty", "channels"});
  empty.channels = 1;
  expect_error([&] { validate(empty, params); }, {"empty", "no legs"});
}

TEST(ParameterTable, NameWhatIsWrong) {
  const Parameters params(std::vector<NamedTensor>{up, down});
  expect_error([&] { params["left"]; }, {"left", "up, down"});
  expect_error([] { Parameters(std::vector<NamedTensor>{up, up}); }, {"up", "twice"});
  expect_error([] { Parameters(std::vector<NamedTensor>{undefined}); }, {"nothing", "undefined"});
}

}  // namespace
}  // namespace ddc
