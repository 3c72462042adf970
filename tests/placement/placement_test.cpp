// The canonical place: two copies of one function have the same weights there, whatever they had before,
// and stay so under any optimizer.

#include "ddc/placement.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "ddc/optim/adam.h"
#include "ddc/testbeds/blocks.h"
#include "ddc/testbeds/runs.h"
#include "ddc/testbeds/zoo.h"
#include "support/apart.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

using testbeds::backward;
using testbeds::zoo;
using testbeds::zoo_entry;
using testbeds::ZooEntry;

constexpr double kSame = 1e-11;
constexpr double kSameFunction = 1e-12;

std::vector<std::string> names() {
  std::vector<std::string> result;
  for (const auto& entry : zoo()) result.push_back(entry.name);
  return result;
}

/// Two copies related by a random element, and their gauges.
struct Pair {
  Pair(const ZooEntry& entry, at::ScalarType type, double size = 0.5)
      : bed(entry.testbed), first(bed.init(entry.seed, type)), second(first.clone()) {
    gauges = bed.gauges(first);
    act_(gauges, random_element(gauges, first, size, testbeds::generator(entry.seed + 100)),
         second);
  }
  double loss(const Parameters& params, uint64_t seed) const {
    const at::NoGradGuard no_grad;
    return bed.loss(params, bed.batch(seed, params.begin()->tensor.scalar_type())).item<double>();
  }

  testbeds::Testbed bed;
  Parameters first;
  Parameters second;
  std::vector<Gauge> gauges;
};

class PlacementZoo : public ::testing::TestWithParam<std::string> {
 protected:
  ZooEntry entry = zoo_entry(GetParam());
};

INSTANTIATE_TEST_SUITE_P(All, PlacementZoo, ::testing::ValuesIn(names()),
                         [](const auto& instance) { return instance.param; });

TEST_P(PlacementZoo, TwoCopiesOfOneFunctionBecomeEqual) {
  Pair pair(entry, at::kDouble);
  const auto before = pair.first.clone();
  const double loss = pair.loss(before, 7);
  Placement first(pair.first, pair.gauges);
  Placement second(pair.second, pair.gauges);
  EXPECT_NEAR(pair.loss(pair.first, 7), loss, kSameFunction * std::abs(loss));
  EXPECT_LE(apart(pair.second, pair.first), kSame);
  EXPECT_LE(first.distance_to_section(), 1e-11);
  // Once more changes nothing.
  const auto placed = pair.first.clone();
  Placement again(placed, pair.gauges);
  EXPECT_LE(apart(placed, pair.first), kSame);
  first.to_original_();
  EXPECT_LE(apart(pair.first, before), kSame);
  first.to_canonical_();
  EXPECT_LE(apart(pair.first, placed), kSame);
}

template <class Make>
void train(Pair& pair, const Make& make, int steps, double tolerance) {
  Placement first(pair.first, pair.gauges);
  Placement second(pair.second, pair.gauges);
  auto one = make(pair.first.tensors());
  auto two = make(pair.second.tensors());
  for (int step = 0; step < steps; ++step) {
    const auto batch = pair.bed.batch(1000 + step, pair.first.begin()->tensor.scalar_type());
    backward(pair.bed, pair.first, batch);
    backward(pair.bed, pair.second, batch);
    one.step();
    two.step();
    const double before = pair.loss(pair.first, 7);
    first.restore_();
    second.restore_();
    // Moves along orbits do not change the function.
    EXPECT_NEAR(pair.loss(pair.first, 7), before, 1e-11 * std::abs(before)) << step;
  }
  EXPECT_LE(apart(pair.second, pair.first), tolerance);
  // A step makes so many sweeps of chains, and no more: what is left is the next step's.
  EXPECT_LE(first.distance_to_section(), 1e-4);
}

TEST_P(PlacementZoo, HeldAdamWCommutesWithAllGaugesTogether) {
  Pair pair(entry, at::kDouble);
  train(
      pair,
      [](std::vector<at::Tensor> params) {
        return torch::optim::AdamW(std::move(params), torch::optim::AdamWOptions(1e-2));
      },
      30, 1e-9);
}

TEST_P(PlacementZoo, HeldSgdCommutesWithAllGaugesTogether) {
  Pair pair(entry, at::kDouble);
  train(
      pair,
      [](std::vector<at::Tensor> params) {
        return torch::optim::SGD(std::move(params), torch::optim::SGDOptions(1e-2).momentum(0.9));
      },
      30, 1e-9);
}

TEST_P(PlacementZoo, PlacedOptimizersCommuteWithAllGaugesTogether) {
  const auto gauges = entry.testbed.gauges(entry.testbed.init(entry.seed, at::kDouble));
  const auto error = [&](const testbeds::OptimizerMaker& make) {
    return testbeds::paired_error(entry.testbed, gauges, make, {.seed = entry.seed, .steps = 8});
  };
  EXPECT_LE(error(testbeds::ddc_adam({.lr = 1e-2, .weight_decay = 0.1}, placed())), 1e-9);
  EXPECT_LE(error(testbeds::ddc_muon({.lr = 1e-2}, {.lr = 1e-2}, placed())), 1e-9);
}

TEST_P(PlacementZoo, PlacedDDCAdamIsHeldAdamW) {
  Pair pair(entry, at::kDouble);
  // A hook turns rotary planes back every ten steps, a pass in every step: unless somebody says otherwise.
  Treatments treatments = placed();
  for (const auto& gauge : pair.gauges) {
    if (gauge.kind == "QK torus") treatments.set("every", int64_t{1}, gauge.kind);
  }
  Placement placement(pair.first, pair.gauges, treatments);
  torch::optim::AdamW adamw(pair.first.tensors(),
                            torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
  DDCAdam ddc_adam(pair.second, pair.gauges, {.lr = 1e-2, .weight_decay = 0.1}, treatments);
  for (int step = 0; step < 12; ++step) {
    const auto batch = pair.bed.batch(1000 + step, at::kDouble);
    const double one = backward(pair.bed, pair.first, batch);
    const double two = backward(pair.bed, pair.second, batch);
    EXPECT_NEAR(one, two, 1e-13 * std::abs(one)) << step;
    adamw.step();
    placement.restore_();
    ddc_adam.step();
  }
}

TEST(PlacementTest, CheckpointsGoOnFromEitherPlace) {
  const auto entry = zoo_entry("ln_squared_relu");
  for (const auto& treatment : {placed(), Treatment{.placement = Place::canonical, .every = 3}}) {
    for (const bool original : {false, true}) {
      Pair pair(entry, at::kDouble);
      const auto& params = pair.first;
      const auto train_on = [&](DDCAdam& optimizer, const Parameters& weights, int from, int to) {
        for (int step = from; step < to; ++step) {
          backward(pair.bed, weights, pair.bed.batch(1000 + step, at::kDouble));
          optimizer.step();
        }
      };
      DDCAdam optimizer(params, pair.gauges, {.lr = 1e-2}, treatment);
      train_on(optimizer, params, 0, 5);
      if (original) optimizer.to_original_();
      const auto weights = params.clone();
      const auto state = optimizer.state_dict();
      optimizer.to_canonical_();
      train_on(optimizer, params, 5, 10);
      // Weights are loaded before the optimizer is made, after it, and after its state.
      for (const char* order : {"before", "between", "after"}) {
        const std::string when = order;
        const auto copy = when == "before" ? weights.clone() : pair.bed.init(77, at::kDouble);
        const auto load_weights = [&] {
          const at::NoGradGuard no_grad;
          for (const auto& [name, tensor] : copy) at::Tensor(tensor).copy_(weights[name].tensor);
        };
        DDCAdam resumed(copy, pair.gauges, {.lr = 1e-2}, treatment);
        if (when == "between") load_weights();
        resumed.load_state_dict(state);
        if (when == "after") load_weights();
        if (original && when == "after") {
          // The weights were moved already, and gradients would be of those that came later.
          backward(pair.bed, copy, pair.bed.batch(1, at::kDouble));
          EXPECT_THROW(resumed.step(), c10::Error);
          continue;
        }
        train_on(resumed, copy, 5, 10);
        const bool moved = original || when == "before";
        EXPECT_LE(apart(copy, params), moved ? 1e-8 : 1e-14) << when << " " << original;
      }
      if (original) {
        const auto elsewhere = pair.bed.init(78, at::kDouble);
        DDCAdam lost(elsewhere, pair.gauges, {.lr = 1e-2}, treatment);
        lost.load_state_dict(state);
        backward(pair.bed, elsewhere, pair.bed.batch(1, at::kDouble));
        EXPECT_THROW(lost.step(), c10::Error);
      }
    }
  }
}

TEST(PlacementTest, HoldsALinearPairThatStartsWithAZeroSide) {
  const auto entry = zoo_entry("linear_pair");
  Pair pair(entry, at::kDouble);
  const auto zero = [&](const Parameters& params) {
    const at::NoGradGuard no_grad;
    at::Tensor(params[pair.gauges.front().legs.front().tensor].tensor).zero_();
  };
  zero(pair.first);
  zero(pair.second);
  Placement first(pair.first, pair.gauges, Treatment{.every = 1});
  Placement second(pair.second, pair.gauges, Treatment{.every = 1});
  EXPECT_LE(apart(pair.second, pair.first), kSame);
  torch::optim::AdamW one(pair.first.tensors(), torch::optim::AdamWOptions(1e-2));
  torch::optim::AdamW two(pair.second.tensors(), torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < 60; ++step) {
    const auto batch = pair.bed.batch(1000 + step, at::kDouble);
    EXPECT_NEAR(backward(pair.bed, pair.first, batch), backward(pair.bed, pair.second, batch),
                1e-9);
    one.step();
    two.step();
    first.restore_();
    second.restore_();
    // Turning back what a step turned leaves a section that is not the balanced one by a little.
    EXPECT_LE(first.distance_to_section(), 1e-4) << step;
  }
}

TEST(PlacementTest, RefusesWhatIsMoreThanAPlaceAndChangesNothing) {
  const auto entry = zoo_entry("ln_squared_relu");
  Pair pair(entry, at::kDouble);
  const auto before = pair.first.clone();
  const auto refused = [&](const Treatment& treatment) {
    EXPECT_THROW(DDCAdam(pair.first, pair.gauges, {}, treatment), c10::Error);
    EXPECT_EQ(apart(pair.first, before), 0);
  };
  refused({.placement = Place::canonical, .coordinates = Coordinates::polar});
  refused({.placement = Place::canonical, .hold = Hold::ratio});
  refused({.placement = Place::canonical, .vertical = Vertical::adam});
  refused({.placement = Place::canonical, .second_moment = SecondMoment::body_frame});
  refused({.placement = Place::canonical, .procrustes = true});
  refused({.placement = Place::canonical, .rebalance_above = 0.1});
  refused({.placement = Place::in_place, .every = 2});
  pair.first.begin()->tensor.requires_grad_(false);
  refused(placed());
  const auto half = pair.bed.init(1, at::kBFloat16);
  EXPECT_THROW(Placement(half, pair.bed.gauges(half)), c10::Error);
}

}  // namespace
}  // namespace ddc::tests
