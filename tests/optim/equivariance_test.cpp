// The step commutes with the group: two copies of a network, related by a random group element, stay
// related when each is trained on gradients of its own.

#include <gtest/gtest.h>

#include "ddc/testbeds/blocks.h"
#include "ddc/testbeds/diagonal_network.h"
#include "ddc/testbeds/mlp.h"
#include "ddc/testbeds/teacher_student.h"
#include "support/tolerances.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

struct Network {
  std::string name;
  Testbed testbed;
};

std::vector<Network> networks() {
  using namespace testbeds;
  return {{"LayerNormBlock", layer_norm_block()},
          {"RmsNormBlock", rms_norm_block()},
          {"OffsetGainBlock", rms_norm_block({.gain_is_offset = true})},
          {"ReluChain", relu_chain()},
          {"SquaredReluChain", relu_chain({.degree = 2})},
          {"WholeTensorChain", relu_chain({.per_channel = false})},
          {"DiagonalNetwork", diagonal_network({.dimension = 16, .samples = 32})}};
}

/// A way of treating all gauges of a network.
struct Mode {
  std::string name;
  Treatment treatment;
};

std::vector<Mode> modes() {
  std::vector<Mode> result;
  const auto add = [&](const std::string& name, std::optional<Coordinates> coordinates, Hold hold,
                       Radial radial) {
    for (const auto vertical : {Vertical::frozen, Vertical::sgd, Vertical::adam}) {
      std::string full = name;
      full.append("_").append(to_string(vertical));
      result.push_back({full, in_place({.coordinates = coordinates,
                                        .hold = hold,
                                        .vertical = vertical,
                                        .radial = radial})});
    }
  };
  add("Default", std::nullopt, Hold::ratio, Radial::linear);
  add("HoldUnit", std::nullopt, Hold::unit, Radial::linear);
  add("Folded", Coordinates::folded, Hold::ratio, Radial::linear);
  add("Balanced", Coordinates::balanced, Hold::ratio, Radial::linear);
  add("Standard", Coordinates::standard, Hold::ratio, Radial::linear);
  add("PolarLinear", Coordinates::polar, Hold::ratio, Radial::linear);
  add("PolarLog", Coordinates::polar, Hold::ratio, Radial::log);
  result.push_back({"Canonical", placed()});
  result.push_back({"CanonicalStandard", placed({.coordinates = Coordinates::standard})});
  return result;
}

class Equivariance : public ::testing::TestWithParam<std::tuple<Network, Mode>> {
 protected:
  static void expect_over(int64_t steps) {
    const auto& [network, mode] = GetParam();
    const auto gauges = network.testbed.gauges(network.testbed.init(1, at::kDouble));
    const auto make = ddc_adam(usual_options(), mode.treatment);
    for (const auto type : {at::kDouble, at::kFloat}) {
      const PairedRun run{.steps = steps, .type = type};
      EXPECT_LE(paired_error(network.testbed, gauges, make, run), equivariance_tolerance(type))
          << type;
    }
  }
};

TEST_P(Equivariance, HoldsForAllGaugesTogetherInDoubleAndFloat) { expect_over(10); }
TEST_P(Equivariance, HoldsForAllGaugesTogetherInDoubleAndFloatLong) {
  expect_over(PairedRun{}.steps);
}

INSTANTIATE_TEST_SUITE_P(Networks, Equivariance,
                         ::testing::Combine(::testing::ValuesIn(networks()),
                                            ::testing::ValuesIn(modes())),
                         [](const auto& instance) {
                           return std::get<0>(instance.param).name +
                                  std::get<1>(instance.param).name;
                         });

class SingleGauge : public ::testing::TestWithParam<Network> {};

void expect_equivariance_of_each(const Testbed& testbed, const std::vector<Mode>& modes,
                                 int64_t steps) {
  const auto all = testbed.gauges(testbed.init(1, at::kDouble));
  // The loss is blind to a key bias. Left unbound, Adam makes steps of 1e-10 lr out of the rounding
  // of its gradient, which would hide the error that is measured here.
  std::vector<Gauge> null;
  std::copy_if(all.begin(), all.end(), std::back_inserter(null),
               [](const Gauge& gauge) { return gauge.kind == "null shift"; });
  for (const auto& gauge : all) {
    auto bound = null;
    if (gauge.kind != "null shift") bound.push_back(gauge);
    for (const auto& mode : modes) {
      const double error =
          paired_error(testbed, bound, ddc_adam(usual_options(), mode.treatment), {.steps = steps});
      EXPECT_LE(error, equivariance_tolerance(at::kDouble)) << gauge.name << " " << mode.name;
    }
  }
}

/// Together they are tested in every mode; alone, what Adam does on the gauge coordinate is most, and the
/// canonical place.
TEST_P(SingleGauge, AloneIsEquivariant) {
  auto some = modes();
  std::erase_if(some, [](const Mode& mode) {
    return mode.treatment.vertical != Vertical::adam && mode.name != "Canonical";
  });
  expect_equivariance_of_each(GetParam().testbed, some, 10);
}

TEST_P(SingleGauge, AloneIsEquivariantInEveryModeLong) {
  expect_equivariance_of_each(GetParam().testbed, modes(), PairedRun{}.steps);
}

TEST_P(SingleGauge, PlainAdamWIsNotEquivariant) {
  const auto& testbed = GetParam().testbed;
  const auto gauges = testbed.gauges(testbed.init(1, at::kDouble));
  EXPECT_GE(paired_error(testbed, gauges, adamw()), kPlainOptimizerError);
}

INSTANTIATE_TEST_SUITE_P(Networks, SingleGauge, ::testing::ValuesIn(networks()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace ddc::tests
