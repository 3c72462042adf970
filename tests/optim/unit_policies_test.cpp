// The unit of a scale gauge is a policy per kind and base: every choice commutes with the group, on
// Muon as on Adam, and each is a choice: the networks train differently.

#include <gtest/gtest.h>

#include <cmath>

#include "coordinates/coordinate_system.h"
#include "ddc/gauge/norm.h"
#include "ddc/gauge/rescale.h"
#include "ddc/optim/adam.h"
#include "ddc/testbeds/blocks.h"
#include "support/tolerances.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

using testbeds::GaugeSet;

struct Policy {
  std::string name;
  /// Empty: all.
  std::string kind;
  std::optional<Coordinates> coordinates = std::nullopt;

  /// For the gauges of a network, which need not have any of that kind.
  Treatments of(const std::vector<Gauge>& gauges) const {
    if (kind.empty()) return in_place({.coordinates = coordinates});
    Treatments treatments(in_place());
    for (const auto& gauge : gauges) {
      if (gauge.kind == kind) treatments.of(kind, {.coordinates = coordinates});
    }
    return treatments;
  }
};
void PrintTo(const Policy& policy, std::ostream* out) { *out << policy.name; }

std::vector<Policy> policies() {
  return {{"Default", ""},
          {"NormsBalanced", "norm scale", Coordinates::balanced},
          // The unit of a matrix-matrix gauge from one side.
          {"GluFromOneSide", "glu rescale", Coordinates::folded},
          {"ReluFromOneSide", "relu rescale", Coordinates::folded},
          {"HeadsFromOneSide", "VO scale", Coordinates::folded},
          {"AllFolded", "", Coordinates::folded},
          {"AllBalanced", "", Coordinates::balanced},
          {"AllStandard", "", Coordinates::standard},
          {"AllPolar", "", Coordinates::polar}};
}

class UnitPolicies : public ::testing::TestWithParam<Policy> {};

INSTANTIATE_TEST_SUITE_P(All, UnitPolicies, ::testing::ValuesIn(policies()),
                         [](const auto& instance) { return instance.param.name; });

void expect_exact_on_muon(const Policy& policy, int64_t steps) {
  for (const auto& bed :
       {testbeds::rms_norm_block({.gauges = GaugeSet::rotations}),
        testbeds::layer_norm_block({.relu_part = false, .gauges = GaugeSet::rotations})}) {
    const auto gauges = bed.gauges(bed.init(1, at::kDouble));
    const auto make = testbeds::ddc_muon({.lr = 1e-2}, {.lr = 1e-2}, policy.of(gauges));
    EXPECT_LE(paired_error(bed, gauges, make, {.steps = steps}), kWholeModelTolerance) << bed.name;
  }
}

TEST_P(UnitPolicies, AreExactOnMuonWithTheRotationsOfHeads) {
  expect_exact_on_muon(GetParam(), 10);
}
TEST_P(UnitPolicies, AreExactOnMuonWithTheRotationsOfHeadsLong) {
  expect_exact_on_muon(GetParam(), 40);
}

/// Where gains are one, shifts zero and weights of the size that goes with their fan-in.
TEST(UnitPolicy, StandardUnitsAreOneAtAUsualInitialisation) {
  const int64_t outputs = 6;
  const int64_t inputs = 4;
  Parameters params;
  params.add("gain", at::ones({inputs}, at::kDouble));
  params.add("shift", at::zeros({inputs}, at::kDouble));
  params.add("in", at::full({outputs, inputs}, 1 / std::sqrt(inputs), at::kDouble));
  params.add("in_bias", at::zeros({outputs}, at::kDouble));
  params.add("out", at::full({3, outputs}, -1 / std::sqrt(outputs), at::kDouble));
  for (const auto& [name, tensor] : params) tensor.requires_grad_();
  const auto norm =
      norm_scale({.gain = params["gain"], .shift = params["shift"], .readers = {params["in"]}});
  const auto rescale = relu_rescale(
      {.in = params["in"], .in_bias = params["in_bias"], .out = {params["out"]}, .degree = 2});
  for (const auto& gauge : {norm, rescale}) {
    const DDCAdam optimizer(params, {gauge}, {}, in_place({.coordinates = Coordinates::standard}));
    EXPECT_LE(optimizer.coordinate_system().gauge_states()[0].log_unit.abs().max().item<double>(),
              1e-14)
        << gauge.name;
    const DDCAdam other(params, {gauge}, {}, in_place({.coordinates = Coordinates::balanced}));
    EXPECT_GT(other.coordinate_system().gauge_states()[0].log_unit.abs().max().item<double>(), 0.05)
        << gauge.name;
  }
}

TEST(UnitPolicy, ChangeTheTrajectoryOfTheFunction) {
  const auto bed = testbeds::rms_norm_block({.gauges = GaugeSet::rotations});
  const auto final_loss = [&](const Policy& policy) {
    const auto params = bed.init(1, at::kDouble);
    const auto gauges = bed.gauges(params);
    return testbeds::drift(bed, params, gauges,
                           testbeds::ddc_muon({.lr = 1e-2}, {}, policy.of(gauges)),
                           {.seed = 1, .steps = 20, .type = at::kDouble})
        .final_loss;
  };
  const auto all = policies();
  const double usual = final_loss(all[0]);
  for (const auto* name :
       {"NormsBalanced", "GluFromOneSide", "HeadsFromOneSide", "AllStandard", "AllPolar"}) {
    for (const auto& policy : all) {
      if (policy.name != name) continue;
      EXPECT_GT(std::abs(final_loss(policy) - usual), 1e-6) << name;
    }
  }
}

}  // namespace
}  // namespace ddc::tests
