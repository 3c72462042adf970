// Polar coordinates: the joint scale goes where the paper says it goes.

#include "coordinates/maps/polar.h"

#include <gtest/gtest.h>

#include <cmath>

#include "coordinates/coordinate_system.h"
#include "ddc/gauge/rescale.h"
#include "ddc/testbeds/sparse_parity.h"
#include "support/tolerances.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

Treatment polar(Radial radial) { return {.coordinates = Coordinates::polar, .radial = radial}; }

Plan polar_plan(const Parameters& params, const std::vector<Gauge>& gauges) {
  std::vector<GroupedParameter> grouped;
  for (const auto& parameter : params) grouped.push_back({parameter, 0});
  return CoordinateSystem(grouped, gauges, polar(Radial::linear)).plan();
}

struct Pair {
  Parameters params;
  double degree;

  explicit Pair(double p) : degree(p) {
    auto random = generator(3);
    params.add("in", (at::randn({6, 5}, random, at::kDouble) * 0.2).requires_grad_());
    params.add("out", (at::randn({4, 6}, random, at::kDouble) * 0.2).requires_grad_());
  }

  Gauge gauge() const {
    return relu_rescale({.in = params["in"], .out = {params["out"]}, .degree = degree});
  }

  /// s = rho_in^p rho_out per channel.
  at::Tensor scales() const {
    return params["in"].tensor.norm(2, 1).pow(degree) * params["out"].tensor.norm(2, 0);
  }

  /// Trains on the loss -sum(s): a gradient without noise that pulls every scale outward.
  at::Tensor train(Radial radial, int64_t steps, double lr, double weight_decay) {
    DDCAdam optimizer(params, {gauge()}, {.lr = lr, .weight_decay = weight_decay}, polar(radial));
    for (int64_t step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      (-scales().sum()).backward();
      optimizer.step();
    }
    return scales().detach();
  }
};

TEST(Polar, LinearRadiusSettlesWhereDecayBalancesTheLoss) {
  for (const double degree : {1.0, 2.0}) {
    for (const double weight_decay : {0.5, 2.0}) {
      Pair pair(degree);
      const double expected = 1 / ((degree * degree + 1) * weight_decay);
      const auto scales = pair.train(Radial::linear, 3000, 5e-3, weight_decay);
      EXPECT_LE((scales / expected - 1).abs().max().item<double>(), 0.05)
          << "degree " << degree << ", weight decay " << weight_decay;
    }
  }
}

TEST(Polar, LogRadiusCollapsesUnderTheSameDecay) {
  Pair linear(1);
  Pair log(1);
  const double start = log.scales().min().item<double>();
  // sqrt(p^2 + 1) * wd > 1: the loss cannot hold against the decay (paper, "Radial update modes").
  const auto collapsed = log.train(Radial::log, 3000, 5e-3, 2.0);
  const auto kept = linear.train(Radial::linear, 3000, 5e-3, 2.0);
  EXPECT_LE(collapsed.max().item<double>(), 1e-6 * start);
  EXPECT_GE(kept.min().item<double>(), 0.2);
}

TEST(Polar, LogRadiusHoldsAgainstWeakDecay) {
  Pair pair(1);
  const auto start = pair.scales().detach().clone();
  const auto scales = pair.train(Radial::log, 500, 1e-3, 0.1);
  EXPECT_TRUE((scales > start).all().item<bool>());
}

TEST(Polar, ChainOfWholeTensorsHasOneJointScale) {
  Parameters params;
  auto random = generator(4);
  for (int l = 0; l < 4; ++l) {
    params.add("w" + std::to_string(l), at::randn({5, 5}, random, at::kDouble).requires_grad_());
  }
  const auto plan = polar_plan(
      params, chained_rescale({.weights = {params["w0"], params["w1"], params["w2"], params["w3"]},
                               .whole = true}));
  ASSERT_EQ(plan.nodes.size(), 4U);
  ASSERT_EQ(plan.radial_modes.size(), 1U);
  for (const double weight : plan.radial_modes[0].weights) EXPECT_NEAR(weight, 1, 1e-12);
}

TEST(Polar, JointScaleOfSquaredReluWeighsTheInputTwice) {
  const Pair pair(2);
  const auto plan = polar_plan(pair.params, {pair.gauge()});
  ASSERT_EQ(plan.radial_modes.size(), 1U);
  EXPECT_NEAR(plan.radial_modes[0].weights[0], 2, 1e-12);
  EXPECT_NEAR(plan.radial_modes[0].weights[1], 1, 1e-12);
  EXPECT_NEAR(plan.radial_modes[0].weight_norm_squared, 5, 1e-12);
}

/// Directions move by tangential steps only: without radial motion every norm stays what it was.
TEST(Polar, DirectionStepsKeepTheNorms) {
  Pair pair(1);
  DDCAdam optimizer(pair.params, {pair.gauge()}, {.lr = 1e-2, .weight_decay = 0},
                    polar(Radial::linear));
  const auto in = pair.params["in"].tensor.detach().norm(2, 1).clone();
  const auto out = pair.params["out"].tensor.detach().norm(2, 0).clone();
  auto random = generator(8);
  const auto target = at::randn({6, 5}, random, at::kDouble);
  for (int step = 0; step < 100; ++step) {
    optimizer.zero_grad();
    const auto& w = pair.params["in"].tensor;
    // Depends on the directions of the rows alone.
    ((w / w.norm(2, 1, true)) * target).sum().backward();
    pair.params["out"].tensor.mutable_grad() = at::zeros_like(pair.params["out"].tensor);
    optimizer.step();
  }
  EXPECT_TRUE(at::allclose(pair.params["in"].tensor.norm(2, 1), in, 1e-6, 0));
  EXPECT_TRUE(at::allclose(pair.params["out"].tensor.norm(2, 0), out, 1e-6, 0));
}

/// The paper's "Keeping or shedding a load-bearing block", at a small width.
TEST(Polar, SparseParityBlockIsKeptByLinearAndShedByLogRadius) {
  const auto testbed = testbeds::sparse_parity({.d_hidden = 64});
  struct Outcome {
    double loss;
    double accuracy;
    double median_gain;
  };
  const auto run = [&](Radial radial) {
    const auto params = testbed.init(42, at::kFloat);
    const auto gauges = testbed.gauges(params);
    DDCAdam optimizer(params, gauges, {.lr = 3e-3, .weight_decay = 2}, polar(radial));
    const auto start = optimizer.gauge_coordinate(gauges[0].name).clone();
    const auto batch = testbed.batch(0, at::kFloat);
    for (int step = 0; step < 1500; ++step) {
      backward(testbed, params, batch);
      optimizer.step();
    }
    const auto drift = (optimizer.gauge_coordinate(gauges[0].name) - start).abs();
    EXPECT_LE(drift.max().item<double>(), kTeacherStudentDrift);
    return Outcome{backward(testbed, params, batch),
                   testbeds::accuracy(testbed.outputs(params, batch.inputs), batch.targets),
                   params["norm.weight"].tensor.abs().median().item<double>()};
  };
  const auto linear = run(Radial::linear);
  EXPECT_EQ(linear.accuracy, 1);
  EXPECT_LE(linear.loss, 0.1);
  const auto log = run(Radial::log);
  EXPECT_NEAR(log.loss, std::log(2.0), 1e-3);  // what a network that says nothing has
  EXPECT_LE(log.median_gain, 1e-3);
}

}  // namespace
}  // namespace ddc::tests
