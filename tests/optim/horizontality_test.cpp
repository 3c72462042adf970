// The gauge coordinate does not move, and holding it costs nothing: the paper's teacher-student
// tasks, its diagonal network, and the transformer blocks with all gauges bound.

#include <gtest/gtest.h>

#include <algorithm>

#include "ddc/testbeds/blocks.h"
#include "ddc/testbeds/diagonal_network.h"
#include "ddc/testbeds/mlp.h"
#include "ddc/testbeds/teacher_student.h"
#include "support/tolerances.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

using testbeds::Drift;
using testbeds::drift;

constexpr uint64_t kPaperSeeds[] = {42, 142, 242};

/// One run per seed with each optimizer; DDCAdam's at both places.
struct Comparison {
  std::vector<Drift> adamw;
  std::vector<Drift> ddc;

  double worst_adamw_loss() const {
    double worst = 0;
    for (const auto& run : adamw) worst = std::max(worst, run.final_loss);
    return worst;
  }
};

Comparison compare(const Testbed& testbed, double lr, double weight_decay) {
  Comparison result;
  for (const uint64_t seed : kPaperSeeds) {
    const auto train = [&](const OptimizerMaker& make) {
      const auto params = testbed.init(seed, at::kFloat);
      return drift(testbed, params, testbed.gauges(params), make, {.seed = seed});
    };
    for (const auto& treatment : {in_place(), placed()}) {
      result.ddc.push_back(train(ddc_adam({.lr = lr, .weight_decay = weight_decay}, treatment)));
    }
    result.adamw.push_back(train(testbeds::adamw(lr, weight_decay)));
  }
  return result;
}

TEST(Horizontality, ReluTeacherStudentHoldsTheRatioThatAdamWMoves) {
  const auto runs = compare(testbeds::relu_teacher_student(), 5e-3, 0.01);
  for (size_t i = 0; i < runs.ddc.size(); ++i) {
    EXPECT_LE(runs.ddc[i].largest(), kTeacherStudentDrift) << i;
    EXPECT_LE(runs.ddc[i].final_loss, runs.worst_adamw_loss()) << i;
  }
  for (const auto& run : runs.adamw) EXPECT_GE(run.largest(), 1e-2);
}

TEST(Horizontality, NormTeacherStudentHoldsEveryChannelThatAdamWMoves) {
  const auto runs = compare(testbeds::norm_teacher_student(), 1e-2, 0.01);
  for (size_t i = 0; i < runs.ddc.size(); ++i) {
    EXPECT_LE(runs.ddc[i].largest(), kTeacherStudentDrift) << i;
    EXPECT_LE(runs.ddc[i].final_loss, runs.worst_adamw_loss()) << i;
  }
  for (const auto& run : runs.adamw) EXPECT_GE(run.largest(), 0.1);
}

TEST(Horizontality, DiagonalNetworkHoldsAllCoordinates) {
  const auto runs = compare(testbeds::diagonal_network(), 5e-3, 0);
  // Every other run is in place. At the canonical place u = v, and where the task needs neither both go to
  // zero, where there is no ratio.
  for (size_t i = 0; i < runs.ddc.size(); i += 2) {
    EXPECT_LE(runs.ddc[i].root_mean_square(), kDiagonalDrift) << i;
  }
  for (const auto& run : runs.adamw) EXPECT_GE(run.root_mean_square(), 1);
}

struct Block {
  std::string name;
  Testbed testbed;
};

class BlockHorizontality : public ::testing::TestWithParam<std::tuple<Block, Treatment>> {};

testbeds::Drift drift_over(int64_t steps, const Block& block, const Treatment& treatment) {
  const auto params = block.testbed.init(42, at::kFloat);
  return drift(block.testbed, params, block.testbed.gauges(params),
               ddc_adam(usual_options(), treatment), {.steps = steps});
}

TEST_P(BlockHorizontality, NoChannelMoves) {
  const auto& [block, treatment] = GetParam();
  EXPECT_LE(drift_over(80, block, treatment).largest(), kBlockDrift);
}

TEST_P(BlockHorizontality, NoChannelMovesOverAThousandStepsLong) {
  const auto& [block, treatment] = GetParam();
  const auto run = drift_over(1000, block, treatment);
  EXPECT_LE(run.largest(), kBlockDrift);
  EXPECT_LT(run.final_loss, std::log(11.0));  // it learns: chance is log of the vocabulary
}

INSTANTIATE_TEST_SUITE_P(
    Blocks, BlockHorizontality,
    ::testing::Combine(::testing::Values(Block{"LayerNorm", testbeds::layer_norm_block()},
                                         Block{"RmsNorm", testbeds::rms_norm_block()}),
                       ::testing::Values(in_place(), in_place({.coordinates = Coordinates::folded}),
                                         in_place({.coordinates = Coordinates::balanced}),
                                         in_place({.coordinates = Coordinates::standard}),
                                         in_place({.coordinates = Coordinates::polar}), placed(),
                                         placed({.coordinates = Coordinates::standard}))),
    [](const auto& instance) {
      const auto& treatment = std::get<1>(instance.param);
      std::string name = std::get<0>(instance.param).name;
      if (treatment.placement == Place::canonical) name += "_canonical";
      return name.append("_").append(treatment.coordinates ? to_string(*treatment.coordinates)
                                                           : "default");
    });

/// The coordinate that the optimizer reports, computed again from the weights by hand.
TEST(Horizontality, ReportedCoordinateIsTheOneMeasuredByHand) {
  const auto testbed = testbeds::norm_teacher_student();
  const auto params = testbed.init(1, at::kDouble);
  const auto gauges = testbed.gauges(params);
  DDCAdam optimizer(params, gauges, {}, in_place());
  const auto by_hand = [&] {
    const auto gain = params["norm.weight"].tensor.detach();
    const auto readout = params["readout.weight"].tensor.detach();
    return gain.abs().log() - readout.square().sum(0).sqrt().log();
  };
  const auto start = by_hand().clone();
  EXPECT_TRUE(at::allclose(optimizer.gauge_coordinate(gauges[0].name), start, 0, 1e-14));
  for (int64_t step = 0; step < 100; ++step) {
    backward(testbed, params, testbed.batch(step, at::kDouble));
    optimizer.step();
  }
  EXPECT_TRUE(at::allclose(optimizer.gauge_coordinate(gauges[0].name), by_hand(), 0, 1e-14));
  EXPECT_TRUE(at::allclose(by_hand(), start, 0, 1e-13));
}

TEST(Horizontality, HoldUnitKeepsTheGainItself) {
  const auto testbed = testbeds::norm_teacher_student();
  const auto params = testbed.init(1, at::kDouble);
  const auto gauges = testbed.gauges(params);
  DDCAdam optimizer(params, gauges, AdamOptions{.lr = 1e-2},
                    Treatments(in_place()).of(gauges[0].name, in_place({.hold = Hold::unit})));
  const auto start = params["norm.weight"].tensor.detach().clone();
  for (int64_t step = 0; step < 100; ++step) {
    backward(testbed, params, testbed.batch(step, at::kDouble));
    optimizer.step();
  }
  EXPECT_TRUE(at::allclose(params["norm.weight"].tensor, start, 1e-14, 0));
}

TEST(Horizontality, BothHoldsTrainTheSameFunction) {
  const auto testbed = testbeds::layer_norm_block();
  const auto gauges = testbed.gauges(testbed.init(1, at::kDouble));
  const auto ratio = testbed.init(1, at::kDouble);
  const auto unit = testbed.init(1, at::kDouble);
  DDCAdam with_ratio(ratio, gauges, {}, in_place());
  DDCAdam with_unit(unit, gauges, {}, in_place({.hold = Hold::unit}));
  for (int64_t step = 0; step < 50; ++step) {
    const auto batch = testbed.batch(step, at::kDouble);
    EXPECT_NEAR(backward(testbed, ratio, batch), backward(testbed, unit, batch), 1e-12);
    with_ratio.step();
    with_unit.step();
  }
}

/// A recurrent weight has both sides of the gauge on its two axes, W -> D W D^-1.
TEST(Horizontality, RecurrentWeightIsBalancedAndHeld) {
  auto random = generator(5);
  const auto draw = [&](at::IntArrayRef shape) {
    return (at::randn(shape, random, at::kDouble) * 0.5).requires_grad_();
  };
  const Parameters params(std::vector<NamedTensor>{
      {"input", draw({6, 4})}, {"recurrent", draw({6, 6})}, {"output", draw({3, 6})}});
  Gauge gauge;
  gauge.name = "hidden";
  gauge.channels = 6;
  gauge.legs = {{.tensor = "input", .axis = 0, .exponent = 1},
                {.tensor = "recurrent", .axis = 0, .exponent = 1},
                {.tensor = "recurrent", .axis = 1, .exponent = -1},
                {.tensor = "output", .axis = 1, .exponent = -1}};
  const auto loss = [](const Parameters& p, const at::Tensor& x) {
    auto h = at::relu(at::linear(x, p["input"].tensor));
    for (int t = 0; t < 3; ++t) {
      h = at::relu(at::linear(x, p["input"].tensor) + at::linear(h, p["recurrent"].tensor));
    }
    return (at::linear(h, p["output"].tensor) - x.narrow(1, 0, 3)).square().mean();
  };
  const auto element = random_element(gauge, params, 0.5, random);
  for (const auto& treatment : {in_place(), placed()}) {
    const auto copy = params.clone();
    const auto image = params.clone();
    act_(gauge, element, image);
    DDCAdam optimizer(copy, {gauge}, {}, treatment);
    DDCAdam image_optimizer(image, {gauge}, {}, treatment);
    const auto start = optimizer.gauge_coordinate("hidden").clone();
    for (int step = 0; step < 50; ++step) {
      const auto x = at::randn({16, 4}, random, at::kDouble);
      optimizer.zero_grad();
      image_optimizer.zero_grad();
      loss(copy, x).backward();
      loss(image, x).backward();
      optimizer.step();
      image_optimizer.step();
    }
    EXPECT_TRUE(at::allclose(optimizer.gauge_coordinate("hidden"), start, 0, 1e-12))
        << to_string(treatment);
    optimizer.to_original_();
    image_optimizer.to_original_();
    act_(gauge, element, copy);
    EXPECT_LE(relative_error(image, copy), equivariance_tolerance(at::kDouble))
        << to_string(treatment);
  }
}

}  // namespace
}  // namespace ddc::tests
