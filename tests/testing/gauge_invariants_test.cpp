// The installed checker: it passes what is right, and fails what is wrong by the right name.

#include "ddc/testing/gauge_invariants.h"

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <sstream>

#include "ddc/gauge/norm.h"
#include "ddc/optim/adam.h"
#include "ddc/optim/muon.h"
#include "ddc/testbeds/blocks.h"
#include "ddc/testbeds/mlp.h"
#include "ddc/testbeds/teacher_student.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

testing::Loss loss_of(const Testbed& testbed, at::ScalarType type = at::kDouble) {
  return [testbed, type](const Parameters& params, int64_t batch) {
    return testbed.loss(params, testbed.batch(static_cast<uint64_t>(batch), type));
  };
}

struct Case {
  std::string name;
  Testbed testbed;
};

class GaugeInvariants : public ::testing::TestWithParam<Case> {};

TEST_P(GaugeInvariants, HoldForEveryReadyMadeGauge) {
  const auto& testbed = GetParam().testbed;
  const auto params = testbed.init(7, at::kDouble);
  const auto all = testbed.gauges(params);
  for (const auto& gauge : all) {
    testing::InvariantOptions options;
    options.steps = 10;
    for (const auto& other : all) {
      // Left unbound, Adam turns the rounding of its zero gradient into steps.
      const bool is_other = other.name != gauge.name;
      if (is_other && other.kind == "null shift") options.others.push_back(other);
    }
    const auto report = testing::check_gauge_invariants(gauge, params, loss_of(testbed), options);
    EXPECT_TRUE(report.ok()) << gauge.name << ": " << report;
  }
}

TEST_P(GaugeInvariants, HoldForAllGaugesTogetherInPolarCoordinates) {
  const auto& testbed = GetParam().testbed;
  const auto params = testbed.init(7, at::kDouble);
  auto gauges = testbed.gauges(params);
  const auto first = std::find_if(gauges.begin(), gauges.end(),
                                  [](const Gauge& g) { return g.action == Action::scale; });
  const auto gauge = *first;
  gauges.erase(first);
  testing::InvariantOptions options;
  options.steps = 10;
  options.others = gauges;
  options.optimizer = [](const Parameters& table, std::vector<Gauge> bound) {
    return std::make_unique<DDCAdam>(table, std::move(bound), AdamOptions{.lr = 1e-3},
                                     Treatment{.coordinates = Coordinates::polar});
  };
  const auto report = testing::check_gauge_invariants(gauge, params, loss_of(testbed), options);
  EXPECT_TRUE(report.ok()) << report;
}

INSTANTIATE_TEST_SUITE_P(Networks, GaugeInvariants,
                         ::testing::Values(Case{"LayerNormBlock", testbeds::layer_norm_block()},
                                           Case{"RmsNormBlock", testbeds::rms_norm_block()},
                                           Case{"ReluChain", testbeds::relu_chain()}),
                         [](const auto& instance) { return instance.param.name; });

/// Every gauge but the plain ReLU's, whose gradient jumps; in small, as there are many.
Testbed small_layer_norm_block() {
  return testbeds::layer_norm_block({.vocabulary = 7,
                                     .d_model = 8,
                                     .heads = 2,
                                     .d_ff = 6,
                                     .sequence = 4,
                                     .relu_part = false,
                                     .gauges = testbeds::GaugeSet::with_residual_rotation});
}
Testbed small_rms_norm_block(testbeds::GaugeSet gauges) {
  return testbeds::rms_norm_block({.vocabulary = 7,
                                   .d_model = 8,
                                   .heads = 2,
                                   .kv_heads = 1,
                                   .d_ff = 6,
                                   .sequence = 4,
                                   .gauges = gauges});
}

class FullGaugeInvariants : public ::testing::TestWithParam<Case> {};

TEST_P(FullGaugeInvariants, HoldForEveryGauge) {
  const auto& testbed = GetParam().testbed;
  const auto params = testbed.init(7, at::kDouble);
  const auto all = testbed.gauges(params);
  for (const auto& gauge : all) {
    testing::InvariantOptions options;
    options.steps = 4;
    for (const auto& other : all) {
      // Unseen biases, as above. And a shift of a weight and an exchange through it do not commute:
      // what they make together is a shift of the bias.
      const bool shifts_bias =
          other.action == Action::shift && params[other.legs.front().tensor].tensor.dim() == 1;
      const bool needed = shifts_bias || other.action == Action::exchange;
      if (needed && other.name != gauge.name) options.others.push_back(other);
    }
    const auto report = testing::check_gauge_invariants(gauge, params, loss_of(testbed), options);
    EXPECT_TRUE(report.ok()) << gauge.name << ": " << report;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Networks, FullGaugeInvariants,
    ::testing::Values(Case{"LayerNormBlock", small_layer_norm_block()},
                      Case{"RmsNormBlock",
                           small_rms_norm_block(testbeds::GaugeSet::with_residual_rotation)}),
    [](const auto& instance) { return instance.param.name; });

TEST(GaugeInvariants, HoldInFloat) {
  const auto testbed = testbeds::norm_teacher_student();
  const auto params = testbed.init(7, at::kFloat);
  for (const auto& gauge : testbed.gauges(params)) {
    const auto report =
        testing::check_gauge_invariants(gauge, params, loss_of(testbed, at::kFloat));
    EXPECT_TRUE(report.ok()) << report;
  }
}

// One side zero is among the regimes: the polar factor must leave a unit without gradient where it is.
TEST(GaugeInvariants, HoldForMuon) {
  const auto testbed = testbeds::relu_chain();
  const auto params = testbed.init(7, at::kDouble);
  testing::InvariantOptions options;
  options.optimizer = [](const Parameters& table, std::vector<Gauge> bound) {
    return std::make_unique<DDCMuon>(table, std::move(bound), MuonOptions{.lr = 1e-2});
  };
  for (const auto& gauge : testbed.gauges(params)) {
    const auto report = testing::check_gauge_invariants(gauge, params, loss_of(testbed), options);
    EXPECT_TRUE(report.ok()) << report;
  }
}

bool fails(const testing::InvariantReport& report, const std::string& identity) {
  for (const auto& check : report.failures()) {
    if (check.identity.rfind(identity, 0) == 0) return true;
  }
  return false;
}

TEST(GaugeInvariants, WrongExponentFailsInvarianceButNotTheGroupLaw) {
  const auto testbed = testbeds::relu_chain();
  const auto params = testbed.init(7, at::kDouble);
  auto gauge = testbed.gauges(params).front();
  gauge.legs.back().exponent = -2;
  const auto report = testing::check_gauge_invariants(gauge, params, loss_of(testbed));
  EXPECT_TRUE(fails(report, "invariance"));
  EXPECT_TRUE(fails(report, "covariance: Noether charge"));
  EXPECT_FALSE(fails(report, "group law"));
}

TEST(GaugeInvariants, ForgottenBiasFailsInvariance) {
  const auto testbed = testbeds::relu_chain();
  const auto params = testbed.init(7, at::kDouble);
  auto gauge = testbed.gauges(params).front();
  std::erase_if(gauge.legs, [](const Leg& leg) { return leg.tensor.ends_with("bias"); });
  EXPECT_TRUE(
      fails(testing::check_gauge_invariants(gauge, params, loss_of(testbed)), "invariance"));
}

/// The gauge is a group that acts, but not one of the network's.
void expect_refused(const Gauge& gauge, const Testbed& testbed, const Parameters& params) {
  testing::InvariantOptions options;
  options.steps = 1;
  const auto report = testing::check_gauge_invariants(gauge, params, loss_of(testbed), options);
  EXPECT_TRUE(fails(report, "invariance")) << report;
  EXPECT_TRUE(fails(report, "covariance: Noether charge")) << report;
  EXPECT_FALSE(fails(report, "group law")) << report;
}

Gauge gauge_of_kind(const Testbed& testbed, const Parameters& params, const std::string& kind) {
  for (const auto& gauge : testbed.gauges(params)) {
    if (gauge.kind == kind) return gauge;
  }
  ADD_FAILURE() << "no " << kind;
  return {};
}

TEST(GaugeInvariants, RotationOfTwoPlanesByOneMatrixIsRefused) {
  const auto testbed = small_rms_norm_block(testbeds::GaugeSet::full);
  const auto params = testbed.init(7, at::kDouble);
  auto gauge = gauge_of_kind(testbed, params, "QK torus");
  gauge.block = 4;
  expect_refused(gauge, testbed, params);
}

TEST(GaugeInvariants, ResidualRotationAloneIsHorizontalAsItIsSeenThroughNorms) {
  const auto testbed = small_layer_norm_block();
  const auto params = testbed.init(7, at::kDouble);
  testing::InvariantOptions options;
  options.steps = 4;
  const auto gauge = gauge_of_kind(testbed, params, "residual rotation");
  const auto report = testing::check_gauge_invariants(gauge, params, loss_of(testbed), options);
  EXPECT_TRUE(report.ok()) << report;
}

TEST(GaugeInvariants, ResidualRotationThatMovesTheOnesIsRefused) {
  const auto testbed = small_layer_norm_block();
  const auto params = testbed.init(7, at::kDouble);
  auto gauge = gauge_of_kind(testbed, params, "residual rotation");
  gauge.fixes_ones = false;
  expect_refused(gauge, testbed, params);
}

TEST(GaugeInvariants, LinearGaugeWithoutTheInverseIsRefused) {
  const auto testbed = small_layer_norm_block();
  const auto params = testbed.init(7, at::kDouble);
  auto gauge = gauge_of_kind(testbed, params, "VO linear");
  for (auto& leg : gauge.legs) leg.exponent = 1;
  expect_refused(gauge, testbed, params);
}

TEST(GaugeInvariants, ExchangeThatForgetsAReaderIsRefused) {
  const auto testbed = small_layer_norm_block();
  const auto params = testbed.init(7, at::kDouble);
  auto gauge = gauge_of_kind(testbed, params, "norm shift exchange");
  ASSERT_GE(gauge.legs.size(), 3u);
  gauge.legs.pop_back();
  expect_refused(gauge, testbed, params);
}

TEST(GaugeInvariants, KernelShiftOfAnRmsNormIsRefused) {
  const auto testbed = small_rms_norm_block(testbeds::GaugeSet::full);
  const auto params = testbed.init(7, at::kDouble);
  const auto norm = gauge_of_kind(testbed, params, "norm scale");
  const auto shifts = norm_kernel_shifts(
      {.gain = params[norm.legs.front().tensor], .readers = {{params[norm.legs.back().tensor]}}});
  ASSERT_EQ(shifts.size(), 1u);
  expect_refused(shifts.front(), testbed, params);
}

/// A base that binds the gauges but makes a step of plain Adam on the weights themselves.
class Unlifted : public DDCAdam {
 public:
  Unlifted(const Parameters& params, std::vector<Gauge> gauges)
      : DDCAdam(params, std::move(gauges), {}, Treatment{.placement = Place::in_place}),
        plain_(params.tensors()) {}
  at::Tensor step(LossClosure closure = nullptr) override { return plain_.step(closure); }

 private:
  torch::optim::AdamW plain_;
};

TEST(GaugeInvariants, PlainAdamWFailsTheIdentitiesOfTheOptimizerOnly) {
  const auto testbed = testbeds::norm_teacher_student();
  const auto params = testbed.init(7, at::kDouble);
  testing::InvariantOptions options;
  options.optimizer = [](const Parameters& p, std::vector<Gauge> gauges) {
    return std::make_unique<Unlifted>(p, std::move(gauges));
  };
  const auto report = testing::check_gauge_invariants(testbed.gauges(params).front(), params,
                                                      loss_of(testbed), options);
  EXPECT_TRUE(fails(report, "equivariance"));
  EXPECT_TRUE(fails(report, "horizontality"));
  EXPECT_FALSE(fails(report, "invariance"));
  EXPECT_FALSE(fails(report, "covariance"));
}

TEST(GaugeInvariants, FailuresShowExpectedActualAndDifference) {
  testing::Check check;
  check.identity = "invariance";
  check.regime = "huge element, given weights";
  check.expected = 1;
  check.actual = 1.5;
  check.difference = 0.5;
  check.tolerance = 1e-9;
  std::ostringstream text;
  text << testing::InvariantReport{{check}};
  for (const char* part : {"FAILED: invariance (huge element, given weights)", "expected   1",
                           "actual     1.5", "difference 0.5 (tolerance 1e-09)"}) {
    EXPECT_NE(text.str().find(part), std::string::npos) << part << " in\n" << text.str();
  }
}

}  // namespace
}  // namespace ddc::tests
