// The unit of a scale gauge is a policy per kind and base: every choice commutes with the group, on
// Muon as on Adam, and each is a choice: the networks train differently.

#include <gtest/gtest.h>

#include "ddc/testbeds/blocks.h"
#include "support/tolerances.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

using testbeds::GaugeSet;

struct Policy {
  std::string name;
  std::function<std::vector<Gauge>(std::vector<Gauge>)> apply;
};
void PrintTo(const Policy& policy, std::ostream* out) { *out << policy.name; }

std::vector<Policy> policies() {
  const auto one_kind = [](const char* kind, Coordinates coordinates) {
    return [=](std::vector<Gauge> gauges) { return with(std::move(gauges), kind, coordinates); };
  };
  const auto all = [](Coordinates coordinates) {
    return [=](std::vector<Gauge> gauges) { return with(std::move(gauges), coordinates); };
  };
  return {{"Default", [](std::vector<Gauge> gauges) { return gauges; }},
          {"NormsBalanced", one_kind("norm scale", Coordinates::balanced)},
          // The unit of a matrix-matrix gauge from one side.
          {"GluFromOneSide", one_kind("glu rescale", Coordinates::folded)},
          {"ReluFromOneSide", one_kind("relu rescale", Coordinates::folded)},
          {"HeadsFromOneSide", one_kind("VO scale", Coordinates::folded)},
          {"AllFolded", all(Coordinates::folded)},
          {"AllBalanced", all(Coordinates::balanced)},
          {"AllPolar", all(Coordinates::polar)}};
}

class UnitPolicies : public ::testing::TestWithParam<Policy> {};

INSTANTIATE_TEST_SUITE_P(All, UnitPolicies, ::testing::ValuesIn(policies()),
                         [](const auto& instance) { return instance.param.name; });

TEST_P(UnitPolicies, AreExactOnMuonWithTheRotationsOfHeads) {
  for (const auto& bed :
       {testbeds::rms_norm_block({.gauges = GaugeSet::rotations}),
        testbeds::layer_norm_block({.relu_part = false, .gauges = GaugeSet::rotations})}) {
    const auto gauges = GetParam().apply(bed.gauges(bed.init(1, at::kDouble)));
    const auto make = testbeds::ddc_muon(DDCMuonOptions(1e-2).adam_lr(1e-2));
    EXPECT_LE(paired_error(bed, gauges, make, {.steps = 40}), kWholeModelTolerance) << bed.name;
  }
}

TEST(UnitPolicy, ChangeTheTrajectoryOfTheFunction) {
  const auto bed = testbeds::rms_norm_block({.gauges = GaugeSet::rotations});
  const auto final_loss = [&](const Policy& policy) {
    const auto params = bed.init(1, at::kDouble);
    return testbeds::drift(bed, params, policy.apply(bed.gauges(params)),
                           testbeds::ddc_muon(DDCMuonOptions(1e-2)),
                           {.seed = 1, .steps = 20, .type = at::kDouble})
        .final_loss;
  };
  const auto all = policies();
  const double usual = final_loss(all[0]);
  for (const auto* name : {"NormsBalanced", "GluFromOneSide", "HeadsFromOneSide", "AllPolar"}) {
    for (const auto& policy : all) {
      if (policy.name != name) continue;
      EXPECT_GT(std::abs(final_loss(policy) - usual), 1e-6) << name;
    }
  }
}

}  // namespace
}  // namespace ddc::tests
