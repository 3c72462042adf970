// Where a side of a gauge is zero: no NaN, no freeze, equivariant still, and held once it is left.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddc/optim/adam.h"
#include "ddc/testbeds/blocks.h"
#include "ddc/testbeds/mlp.h"
#include "ddc/testbeds/teacher_student.h"
#include "support/small_networks.h"
#include "support/tolerances.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

struct Stratum {
  std::string name;
  Testbed bed;
  /// How many channels are degenerate at the start, and how many of them stay so.
  int64_t degenerate;
  int64_t dead;
  /// A tensor that is zero in part, and has to leave zero.
  std::string zero;
};
void PrintTo(const Stratum& stratum, std::ostream* out) { *out << stratum.name; }

std::vector<Stratum> strata() {
  const auto pair = testbeds::relu_teacher_student({.per_channel = true});
  const auto whole = testbeds::relu_teacher_student({.per_channel = false});
  const auto biased = testbeds::relu_chain({.depth = 2});
  const auto squared = testbeds::relu_chain({.depth = 2, .degree = 2});
  const auto norm = testbeds::norm_teacher_student();
  const auto zero = [](const Parameters& params, const std::string& name) {
    params[name].tensor.zero_();
  };
  return {
      {"ZeroOutput",
       starting_from(pair, [=](const Parameters& params) { zero(params, "layers.1.weight"); }), 16,
       0, "layers.1.weight"},
      {"ZeroOutputOfAWholeTensorGauge",
       starting_from(whole, [=](const Parameters& params) { zero(params, "layers.1.weight"); }), 1,
       0, "layers.1.weight"},
      {"ZeroOutputWithBiases",
       starting_from(biased, [=](const Parameters& params) { zero(params, "layers.1.weight"); }),
       16, 0, "layers.1.weight"},
      {"ZeroOutputOfSquaredRelu",
       starting_from(squared, [=](const Parameters& params) { zero(params, "layers.1.weight"); }),
       16, 0, "layers.1.weight"},
      {"OneZeroColumn",
       starting_from(
           pair,
           [](const Parameters& params) { params["layers.1.weight"].tensor.select(1, 3).zero_(); }),
       1, 0, "layers.1.weight"},
      {"DeadChannel",
       starting_from(pair,
                     [](const Parameters& params) {
                       params["layers.0.weight"].tensor[3].zero_();
                       params["layers.1.weight"].tensor.select(1, 3).zero_();
                     }),
       1, 1, ""},
      {"ZeroGain",
       starting_from(norm,
                     [](const Parameters& params) { params["norm.weight"].tensor[3].zero_(); }),
       1, 0, "norm.weight"},
      {"ZeroReaderColumn",
       starting_from(
           norm,
           [](const Parameters& params) { params["readout.weight"].tensor.select(1, 3).zero_(); }),
       1, 0, "readout.weight"},
  };
}

/// All coordinates in place, and the canonical place.
std::vector<Treatment> treatments() {
  std::vector<Treatment> result{placed()};
  for (const auto coordinates : kAllCoordinates) {
    result.push_back(in_place({.coordinates = coordinates}));
  }
  return result;
}

class DegenerateStratum : public ::testing::TestWithParam<std::tuple<Stratum, Treatment>> {};

TEST_P(DegenerateStratum, IsLeftByTrainingAndHeldFromThenOn) {
  const auto& [stratum, treatment] = GetParam();
  const auto& bed = stratum.bed;
  const auto params = bed.init(1, at::kDouble);
  const auto gauges = bed.gauges(params);
  ASSERT_EQ(gauges.size(), 1);
  DDCAdam optimizer(params, gauges, AdamOptions{.lr = 3e-3}, treatment);
  EXPECT_EQ(optimizer.report().degenerate_channels(), stratum.degenerate);

  const auto batch = bed.batch(1, at::kDouble);
  const double first_loss = loss_of(bed, params, batch);
  auto held = optimizer.gauge_coordinate(gauges[0].name);
  EXPECT_EQ(held.isnan().sum().item<int64_t>(), stratum.degenerate);
  double drift = 0;
  for (int step = 0; step < 100; ++step) {
    backward(bed, params, batch);
    optimizer.step();
    ASSERT_TRUE(all_finite(params)) << "after step " << step;
    const auto r = optimizer.gauge_coordinate(gauges[0].name);
    drift = std::max(drift, at::where(held.isnan(), 0.0, (r - held).abs()).max().item<double>());
    held = at::where(held.isnan(), r, held);
  }
  EXPECT_EQ(optimizer.report().degenerate_channels(), stratum.dead);
  EXPECT_EQ(held.isnan().sum().item<int64_t>(), stratum.dead);
  EXPECT_LE(drift, 1e-12);
  EXPECT_LT(loss_of(bed, params, batch), first_loss);
  if (!stratum.zero.empty()) {
    EXPECT_TRUE(params[stratum.zero].tensor.ne(0).all().item<bool>());
  }
  for (const auto& [name, tensor] : optimizer.state_dict().tensors) {
    EXPECT_TRUE(tensor.isfinite().all().item<bool>()) << name;
  }
}

TEST_P(DegenerateStratum, IsEquivariant) {
  const auto& [stratum, treatment] = GetParam();
  const auto gauges = stratum.bed.gauges(stratum.bed.init(1, at::kDouble));
  const auto make = ddc_adam(usual_options(), treatment);
  for (const uint64_t seed : {1, 2, 3}) {
    EXPECT_LE(paired_error(stratum.bed, gauges, make, {.seed = seed}),
              equivariance_tolerance(at::kDouble));
  }
}

INSTANTIATE_TEST_SUITE_P(Strata, DegenerateStratum,
                         ::testing::Combine(::testing::ValuesIn(strata()),
                                            ::testing::ValuesIn(treatments())),
                         [](const auto& instance) {
                           const auto& treatment = std::get<1>(instance.param);
                           std::string mode = treatment.coordinates
                                                  ? to_string(*treatment.coordinates)
                                                  : to_string(*treatment.placement);
                           mode[0] = static_cast<char>(std::toupper(mode[0]));
                           return std::get<0>(instance.param).name + mode;
                         });

TEST(DegenerateChannel, ComesBackToWhereItWasHeldBefore) {
  const auto bed = testbeds::relu_teacher_student({.per_channel = true});
  const auto batch = bed.batch(1, at::kDouble);
  for (const auto& treatment : treatments()) {
    SCOPED_TRACE(to_string(treatment));
    const auto params = bed.init(1, at::kDouble);
    const auto gauges = bed.gauges(params);
    DDCAdam optimizer(params, gauges, AdamOptions{.lr = 3e-3}, treatment);
    const auto held = optimizer.gauge_coordinate(gauges[0].name);
    const auto train = [&](int steps) {
      for (int step = 0; step < steps; ++step) {
        backward(bed, params, batch);
        optimizer.step();
        ASSERT_TRUE(all_finite(params));
      }
    };
    train(10);
    params["layers.1.weight"].tensor.detach().select(1, 3).zero_();
    EXPECT_TRUE(optimizer.gauge_coordinate(gauges[0].name)[3].isnan().item<bool>());
    const double first_loss = loss_of(bed, params, batch);
    train(100);
    EXPECT_LT(loss_of(bed, params, batch), first_loss);
    EXPECT_EQ(optimizer.report().degenerate_channels(), 0);
    const auto drift = optimizer.gauge_coordinate(gauges[0].name) - held;
    EXPECT_LE(drift.abs().max().item<double>(), 1e-12);
  }
}

// Zero-initialised output projections, as in GPT-like models, among all the other gauges.
Testbed block_with_zero_outputs(const testbeds::LayerNormBlockOptions& options = {}) {
  return starting_from(testbeds::layer_norm_block(options), [](const Parameters& params) {
    for (const auto* name : {"layers.0.attention.output.weight", "layers.0.mlp.down.weight",
                             "layers.0.squared_mlp.down.weight"}) {
      params[name].tensor.zero_();
    }
  });
}

TEST(DegenerateBlock, WithZeroOutputProjectionsTrainsAndBinds) {
  const auto bed = block_with_zero_outputs();
  const auto params = bed.init(1, at::kDouble);
  DDCAdam optimizer(params, bed.gauges(params), AdamOptions{.lr = 3e-3});
  EXPECT_EQ(optimizer.report().degenerate_channels(), 4 + 24 + 24);  // heads and hidden units
  const auto batch = bed.batch(1, at::kDouble);
  const double first_loss = loss_of(bed, params, batch);
  for (int step = 0; step < 30; ++step) {
    backward(bed, params, batch);
    optimizer.step();
    ASSERT_TRUE(all_finite(params)) << "after step " << step;
  }
  EXPECT_LT(loss_of(bed, params, batch), first_loss);
  EXPECT_LT(optimizer.report().degenerate_channels(), 4 + 24 + 24);
}

TEST(DegenerateBlock, WithZeroOutputProjectionsIsEquivariant) {
  const auto bed = block_with_zero_outputs({.residual_shifts = false});
  for (const auto& treatment : treatments()) {
    const auto gauges = bed.gauges(bed.init(1, at::kDouble));
    const auto make = ddc_adam(usual_options(), treatment);
    EXPECT_LE(paired_error(bed, gauges, make, {.steps = 20}), equivariance_tolerance(at::kDouble))
        << to_string(treatment);
  }
}

// Under the shifts of the residual stream's mean a zero becomes a constant, which is zero again
// only up to rounding when the mean is subtracted. It must not be taken for a side to balance
// against. (The gradients behind a zero are zero in the one copy and rounding in the other, and
// Adam divides what it gets by eps.)
TEST(DegenerateBlock, WithZeroOutputProjectionsIsEquivariantUnderShiftsOfTheMean) {
  const auto bed = block_with_zero_outputs();
  const auto params = bed.init(1, at::kDouble);
  const auto gauges = bed.gauges(params);
  auto options = usual_options();
  options.eps = 1e-4;
  for (const auto& treatment : {in_place(), placed()}) {
    EXPECT_LE(paired_error(bed, gauges, ddc_adam(options, treatment)),
              equivariance_tolerance(at::kDouble))
        << to_string(treatment);
  }

  act_(gauges, random_element(gauges, params, 0.5, generator(1)), params);
  EXPECT_EQ(DDCAdam(params, gauges).report().degenerate_channels(), 4 + 24 + 24);
}

}  // namespace
}  // namespace ddc::tests
