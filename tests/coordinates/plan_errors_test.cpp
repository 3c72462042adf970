// Gauges that do not fit their tensors, or one another, are refused before anything is changed, by name.
// (Legs of scales and shifts: makers_test.cpp.)

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "coordinates/plan.h"
#include "ddc/gauge/attention.h"
#include "ddc/gauge/linear_pair.h"
#include "ddc/gauge/norm.h"
#include "ddc/gauge/residual.h"
#include "support/errors.h"
#include "support/legs.h"

namespace ddc::tests {
namespace {

/// A norm with a reader, and a layer of attention with two heads of size two.
class PlanErrors : public ::testing::Test {
 protected:
  Parameters params{std::vector<NamedTensor>{
      named("gain", {4}), named("shift", {4}), named("q", {4, 4}), named("q_bias", {4}),
      named("k", {4, 4}), named("k_bias", {4}), named("v", {4, 4}), named("v_bias", {4}),
      named("o", {4, 4}), named("o_bias", {4}), named("long", {5})}};
  const QueryKey qk{.query = params["q"], .key = params["k"], .heads = 2};
  const ValueOutput vo{.value = params["v"],
                       .value_bias = params["v_bias"],
                       .output = params["o"],
                       .output_bias = params["o_bias"],
                       .heads = 2};
  const NormReaders norm{.gain = params["gain"],
                         .shift = params["shift"],
                         .readers = {{params["q"], params["q_bias"]}}};

  Gauge scale() const { return norm_scale({.gain = params["gain"], .readers = {params["q"]}}); }
  Gauge kernel() const { return norm_kernel_shifts(norm).front(); }
  Gauge residual() const {
    return residual_rotation({.writers = {{params["o"], 0}}, .norms = {norm}});
  }
  void expect_invalid(const Gauge& gauge, const std::vector<std::string>& parts) const {
    expect_error([&] { validate(gauge, params); }, parts);
  }
  Plan compiled(const std::vector<Gauge>& gauges, const Treatments& treatments = {}) const {
    std::vector<GroupedParameter> grouped;
    for (const auto& parameter : params) grouped.push_back({parameter, 0});
    return compile(grouped, gauges, treatments);
  }
  void expect_refused(const std::vector<Gauge>& gauges, const std::vector<std::string>& parts,
                      const Treatments& treatments = {}) const {
    expect_error([&] { compiled(gauges, treatments); }, parts);
  }
};

TEST_F(PlanErrors, NoneForWhatFits) {
  EXPECT_NO_THROW(compiled({scale(), kernel(), qk_linear(qk), vo_linear(vo),
                            norm_shift_exchange(norm), value_bias_exchange(vo)}));
  EXPECT_NO_THROW(compiled({scale(), residual(), qk_rotation(qk), qk_scale(qk)}));
}

TEST_F(PlanErrors, BlockThatDoesNotDivide) {
  auto gauge = qk_linear(qk);
  gauge.block = 3;
  expect_invalid(gauge, {"q:qk_linear", "block", "4 channels", "got 3"});
  gauge.block = 0;
  expect_invalid(gauge, {"q:qk_linear", "block", "got 0"});
}

TEST_F(PlanErrors, BlockWhereNothingIsMixedOrOfOneCoordinate) {
  auto gauge = qk_scale(qk);
  gauge.block = 2;
  expect_invalid(gauge, {"q:qk_scale", "block must be 1", "scale", "got 2"});
  gauge = qk_rotation(qk);
  gauge.block = 1;
  expect_invalid(gauge, {"q:qk_rotation", "block must be > 1", "got 1"});
}

TEST_F(PlanErrors, UnequalCopies) {
  auto gauge = qk_rotation(qk);
  gauge.legs[0].channel_of = {0, 1, 2, 2};
  expect_invalid(gauge, {"q:qk_rotation", "leg 0 ('q')", "channel 2 has 2", "channel 0 has 1"});
  gauge.legs[0].channel_of = {-1, 1, 2, 3};
  expect_invalid(gauge, {"leg 0 ('q')", "channel 0 has 0", "at least one"});
}

TEST_F(PlanErrors, ExponentsThatMatricesDoNotHave) {
  auto gauge = qk_rotation(qk);
  gauge.legs[1].exponent = -1;
  expect_invalid(gauge, {"leg 1 ('k')", "exponent must be 1", "rotation", "got -1"});
  gauge = qk_linear(qk);
  gauge.legs[1].exponent = -2;
  expect_invalid(gauge, {"leg 1 ('k')", "1 or -1", "linear", "got -2"});
}

TEST_F(PlanErrors, OptionsOutOfRange) {
  auto gauge = qk_linear(qk);
  gauge.fixes_ones = true;
  expect_invalid(gauge, {"fixes_ones", "rotations"});
  const auto refused = [&](const Treatment& treatment, const std::vector<std::string>& parts) {
    expect_refused({qk_linear(qk)}, parts, treatment);
    expect_refused({qk_linear(qk)}, parts, Treatments().of("q:qk_linear", treatment));
  };
  refused({.tau = 1}, {"tau", "got 1"});
  refused({.frame_drift = 0}, {"frame_drift", "got 0"});
  refused({.frame_interval = 0}, {"frame_interval", "got 0"});
  refused({.rebalance_above = -1}, {"rebalance_above", "got -1"});
  refused({.max_log_step = 0}, {"max_log_step", "got 0"});
}

TEST_F(PlanErrors, UnknownOrUnfittingTensorsInAReading) {
  for (const auto& [role, member] :
       {std::pair{"gain", &Reading::gain}, {"shift", &Reading::shift}, {"bias", &Reading::bias}}) {
    auto gauge = kernel();
    gauge.legs[0].through.*member = "nobody";
    expect_invalid(gauge, {"q:kernel", "leg 0 ('q')", "'nobody'", role});
    gauge.legs[0].through.*member = "long";
    expect_invalid(gauge, {"q:kernel", "'long'", role, "length 4", "[5]"});
  }
}

TEST_F(PlanErrors, ReadingsThatMeanNothing) {
  auto gauge = kernel();
  gauge.legs[0].through.bias.clear();
  expect_invalid(gauge, {"q:kernel", "'shift'", "no bias"});
  gauge = kernel();
  gauge.legs[0].through.gain.clear();
  expect_invalid(gauge, {"q:kernel", "no gain"});
  gauge = qk_scale(qk);
  gauge.legs[0].through.gain = "gain";
  expect_invalid(gauge, {"q:qk_scale", "scale gauge takes no reading"});
}

TEST_F(PlanErrors, ExchangeWithoutABias) {
  auto gauge = norm_shift_exchange(norm);
  gauge.legs[1].through = {};
  expect_invalid(gauge, {"shift:exchange", "leg 1 ('q')", "no bias"});
  gauge.legs[1].through = {.gain = "gain", .bias = "q_bias"};
  expect_invalid(gauge, {"shift:exchange", "leg 1 ('q')", "bias only"});
}

TEST_F(PlanErrors, TwoMixingGaugesOnOneAxis) {
  auto other = qk_rotation(qk);
  expect_refused({qk_linear(qk), other},
                 {"'q:qk_linear'", "'q:qk_rotation'", "both mix axis 0", "'q'"});
}

TEST_F(PlanErrors, LinearGaugeWithTheScaleItContains) {
  expect_refused({qk_linear(qk), qk_scale(qk)},
                 {"'q:qk_linear'", "'q:qk_scale'", "axis 0 of 'q'", "contains the other"});
  expect_refused({vo_scale(vo), vo_linear(vo)}, {"'v:vo_linear'", "'v:vo_scale'", "contains"});
}

TEST_F(PlanErrors, ScaleThatTellsApartWhatARotationMixes) {
  auto per_coordinate = qk_scale(qk);
  per_coordinate.channels = 4;
  for (auto& leg : per_coordinate.legs) leg.channel_of = {0, 1, 2, 3};
  expect_refused({qk_rotation(qk), per_coordinate},
                 {"'q:qk_rotation'", "'q:qk_scale'", "tells apart"});
}

TEST_F(PlanErrors, GainWithAZero) {
  at::Tensor(params["gain"].tensor)[2].zero_();
  expect_refused({kernel()}, {"'q:kernel'", "'gain'", "zero"});
  expect_refused({residual()}, {"'residual:rotation'", "'gain'", "zero"});
  EXPECT_NO_THROW(compiled({scale()}));
}

TEST_F(PlanErrors, OffsetsThatDisagree) {
  auto gauge = scale();
  gauge.legs[0].offset = 1;
  expect_refused({gauge, kernel()}, {"'gain:scale'", "'q:kernel'", "'gain'", "different offsets"});
}

TEST_F(PlanErrors, BalancedNormUnderWhatActsThroughItsGain) {
  const auto balanced = Treatments().of("gain:scale", {.coordinates = Coordinates::balanced});
  expect_refused({scale(), kernel()}, {"'q:kernel'", "'gain'", "'gain:scale'", "folded"}, balanced);
  expect_refused({scale(), residual()}, {"'residual:rotation'", "'gain:scale'", "folded"},
                 balanced);
  // Said for all it is meant where it applies.
  const auto plan = compiled({scale(), kernel()}, Treatment{.coordinates = Coordinates::balanced});
  EXPECT_EQ(plan.gauges[0].treatment.coordinates, Coordinates::folded);
  EXPECT_EQ(plan.gauges[0].treatment.hold, Hold::unit);
}

TEST_F(PlanErrors, HeldRatioOfAGainThatIsActedThrough) {
  const auto ratio = Treatments().of("gain:scale", {.hold = Hold::ratio});
  EXPECT_NO_THROW(compiled({scale()}, ratio));
  expect_refused({scale(), kernel()}, {"'q:kernel'", "'gain'", "'gain:scale'", "hold = unit"},
                 ratio);
  EXPECT_NO_THROW(compiled({scale(), kernel()}, Treatment{.hold = Hold::ratio}));
}

TEST_F(PlanErrors, WeightSeenThroughTwoGains) {
  auto other = residual();
  other.legs.back().through.gain = "k_bias";
  expect_refused({kernel(), other}, {"'residual:rotation'", "'q'", "'k_bias'", "something else"});
}

TEST_F(PlanErrors, HeadsOfDifferentSizes) {
  auto other = qk_scale(qk);
  for (auto& leg : other.legs) leg.head_size = 3;
  expect_refused({other}, {"'q:qk_scale'", "size 3", "axis 0 of 'q'", "size 4"});
}

TEST_F(PlanErrors, NoneForHeadsThatGaugesCutDifferently) {
  const auto cut_of = [](const Plan& plan) { return plan.tensors[2].cut; };
  auto whole = qk_scale(qk);
  for (auto& leg : whole.legs) leg.head_size = 4;
  // Heads are a hint: the first that are smaller than the axis.
  for (const auto& gauges :
       {std::vector{qk_rotation(qk), whole}, std::vector{whole, qk_rotation(qk)}}) {
    const auto plan = compiled(gauges);
    EXPECT_EQ(plan.gauges.size(), 2);
    ASSERT_EQ(plan.tensors[2].name, "q");
    ASSERT_TRUE(cut_of(plan));
    EXPECT_EQ(cut_of(plan)->size, 2);
  }
}

/// A vector that all rows of a table have in common goes to the bias behind it.
class PlanErrorsOfTables : public PlanErrors {
 protected:
  Gauge exchange() const {
    Gauge gauge = norm_shift_exchange({.gain = params["gain"],
                                       .shift = params["shift"],
                                       .readers = {{params["k"], params["k_bias"]}}});
    gauge.legs.front().tensor = "v";
    gauge.legs.front().axis = 1;
    return gauge;
  }
  static Gauge of_rows(Action action) {
    return {
        .name = "rows", .kind = "rows", .action = action, .channels = 4, .legs = {{.tensor = "v"}}};
  }
};

TEST_F(PlanErrorsOfTables, RowsThatAreShiftedTogetherAndScaledEach) {
  EXPECT_NO_THROW(compiled({exchange()}));
  expect_refused({exchange(), of_rows(Action::scale)},
                 {"'rows'", "scales rows of 'v'", "shifts together"});
}

TEST_F(PlanErrorsOfTables, RowsThatTwoGaugesShift) {
  auto shift = of_rows(Action::shift);
  shift.channels = 1;
  shift.legs.front().channel_of = {0, 0, 0, 0};
  EXPECT_NO_THROW(compiled({shift}));
  expect_refused({exchange(), shift}, {"'rows'", "both shift all rows of 'v'"});
}

TEST_F(PlanErrors, VectorsThatAreExchangedInACircle) {
  auto back = norm_shift_exchange({.gain = params["gain"],
                                   .shift = params["q_bias"],
                                   .readers = {{params["k"], params["shift"]}}});
  expect_refused({norm_shift_exchange(norm), back}, {"exchanged with itself"});
}

}  // namespace
}  // namespace ddc::tests
