// Networks drawn at random with all their gauges: spaces of hidden units joined by matrices, of which each
// has the symmetry of its activation. Gauges share tensors in ways that nobody thought of.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <random>

#include "ddc/gauge/shift.h"
#include "ddc/optim/adam.h"
#include "ddc/optim/sgd.h"
#include "ddc/testbeds/runs.h"

namespace ddc::tests {
namespace {

using testbeds::Batch;
using testbeds::Testbed;

enum class Activation { none, relu, norm, tanh };

struct Space {
  int64_t size;
  Activation activation;
  bool bias;
};

/// A matrix that reads one space and writes to a later one.
struct Edge {
  size_t from;
  size_t to;
  std::string name;
};

struct Drawn {
  std::vector<Space> spaces;
  std::vector<Edge> edges;
  /// Its shifts of the logits are gauges too. Else the loss is a squared error.
  bool cross_entropy = false;
};

std::string bias_of(size_t space) { return "bias" + std::to_string(space); }

Drawn draw(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  Drawn drawn;
  const int64_t hidden = 2 + below(3);
  for (int64_t s = 0; s < hidden + 2; ++s) {
    const bool inner = s > 0 && s <= hidden;
    const auto activation = inner ? static_cast<Activation>(below(4)) : Activation::tanh;
    drawn.spaces.push_back({inner ? 3 + below(3) : 6, activation,
                            inner && activation != Activation::norm && below(2) == 0});
  }
  for (size_t to = 1; to < drawn.spaces.size(); ++to) {
    for (size_t from = 0; from < to; ++from) {
      if (from + 1 != to && below(3) > 0) continue;
      drawn.edges.push_back({from, to, "w" + std::to_string(from) + std::to_string(to)});
    }
  }
  drawn.cross_entropy = below(2) == 0;
  if (drawn.cross_entropy) drawn.spaces.back().activation = Activation::none;
  return drawn;
}

Testbed testbed_of(const Drawn& drawn) {
  Testbed bed;
  bed.init = [=](uint64_t seed, at::ScalarType type) {
    const auto generator = testbeds::generator(seed);
    Parameters params;
    const auto add = [&](const std::string& name, at::IntArrayRef shape, double scale) {
      params.add(name,
                 (at::randn(shape, generator, at::kDouble) * scale).to(type).requires_grad_());
    };
    for (const auto& [from, to, name] : drawn.edges) {
      const auto fan_in = static_cast<double>(drawn.spaces[from].size);
      add(name, {drawn.spaces[to].size, drawn.spaces[from].size}, 1 / std::sqrt(fan_in));
    }
    for (size_t s = 0; s < drawn.spaces.size(); ++s) {
      if (drawn.spaces[s].bias) add(bias_of(s), {drawn.spaces[s].size}, 0.3);
    }
    return params;
  };
  bed.batch = [=](uint64_t seed, at::ScalarType type) {
    const auto generator = testbeds::generator(seed);
    return Batch{at::randn({16, drawn.spaces.front().size}, generator, at::kDouble).to(type), {}};
  };
  bed.loss = [=](const Parameters& params, const Batch& batch) {
    std::vector<at::Tensor> values = {batch.inputs};
    for (size_t s = 1; s < drawn.spaces.size(); ++s) {
      auto value = at::zeros({batch.inputs.size(0), drawn.spaces[s].size}, batch.inputs.options());
      for (const auto& [from, to, name] : drawn.edges) {
        if (to == s) value = value + values[from].matmul(params[name].tensor.t());
      }
      if (drawn.spaces[s].bias) value = value + params[bias_of(s)].tensor;
      switch (drawn.spaces[s].activation) {
        case Activation::none:
          break;
        case Activation::relu:
          value = at::relu(value);
          break;
        case Activation::norm:
          value = value / (value.square().mean(1, /*keepdim=*/true) + 0.1).sqrt();
          break;
        case Activation::tanh:
          value = at::tanh(value);
          break;
      }
      values.push_back(value);
    }
    const auto& outputs = values.back();
    if (drawn.cross_entropy) return at::cross_entropy_loss(outputs, batch.inputs.argmax(1));
    return (outputs - at::sin(batch.inputs)).square().mean();
  };
  bed.gauges = [=](const Parameters& params) {
    std::vector<Gauge> gauges;
    for (const auto& [from, to, name] : drawn.edges) {
      const bool shifts = drawn.cross_entropy && to + 1 == drawn.spaces.size();
      if (shifts) gauges.push_back(cross_entropy_shift(params[name]));
    }
    for (size_t s = 1; s + 1 < drawn.spaces.size(); ++s) {
      const auto& [size, activation, bias] = drawn.spaces[s];
      if (activation == Activation::tanh) continue;
      Gauge gauge;
      gauge.name = "space" + std::to_string(s);
      gauge.action = activation == Activation::relu   ? Action::scale
                     : activation == Activation::norm ? Action::rotation
                                                      : Action::linear;
      gauge.kind = to_string(gauge.action);
      gauge.channels = size;
      if (gauge.mixes()) gauge.block = size;
      for (const auto& [from, to, name] : drawn.edges) {
        if (to == s) gauge.legs.push_back({.tensor = name, .axis = 0, .exponent = 1});
      }
      if (bias) gauge.legs.push_back({.tensor = bias_of(s), .axis = 0, .exponent = 1});
      const double back = gauge.action == Action::rotation ? 1 : -1;
      for (const auto& [from, to, name] : drawn.edges) {
        if (from == s) gauge.legs.push_back({.tensor = name, .axis = 1, .exponent = back});
      }
      gauges.push_back(std::move(gauge));
    }
    return gauges;
  };
  return bed;
}

class RandomNetworks : public ::testing::TestWithParam<uint64_t> {};

INSTANTIATE_TEST_SUITE_P(Seeds, RandomNetworks, ::testing::Range<uint64_t>(0, 25));
class RandomNetworksLong : public RandomNetworks {};
INSTANTIATE_TEST_SUITE_P(Seeds, RandomNetworksLong, ::testing::Range<uint64_t>(25, 100));

/// Each of them or not.
std::vector<Gauge> some_of(const std::vector<Gauge>& gauges, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Gauge> result;
  std::ranges::copy_if(gauges, std::back_inserter(result),
                       [&](const Gauge&) { return random() % 2 == 0; });
  return result;
}

void expect_equivariance(const Testbed& bed, const std::vector<Gauge>& gauges,
                         const std::function<testbeds::OptimizerMaker(Treatment)>& made_for) {
  const auto params = bed.init(1, at::kDouble);
  std::string kinds;
  for (const auto& gauge : gauges) kinds += gauge.kind + " ";
  for (const auto place : {Place::in_place, Place::canonical}) {
    const auto make = made_for(Treatment{.placement = place});
    try {
      make(params.clone(), gauges);
    } catch (const c10::Error& refused) {
      // Exact, or refused with the reason; most are exact, which another test counts.
      EXPECT_THAT(refused.what(),
                  ::testing::AnyOf(::testing::HasSubstr("neither side has full rank"),
                                   ::testing::HasSubstr("no common place")));
      continue;
    }
    const double error = testbeds::paired_error(bed, gauges, make, {.steps = 10});
    EXPECT_LE(error, 1e-7) << to_string(place) << ": " << kinds;
  }
}

void expect_equivariance(uint64_t drawn) {
  const auto bed = testbed_of(draw(drawn));
  const auto gauges = bed.gauges(bed.init(1, at::kDouble));
  expect_equivariance(bed, gauges, [](const Treatment& treatment) {
    return testbeds::ddc_adam({.lr = 1e-2}, treatment);
  });
  expect_equivariance(bed, some_of(gauges, drawn), [](const Treatment& treatment) {
    return testbeds::lifted<SgdRule>({.lr = 1e-2, .momentum = 0.9}, treatment);
  });
  // A step of AdamW does not depend on shifts either.
  const auto is_shift = [](const Gauge& gauge) { return gauge.action == Action::shift; };
  if (std::ranges::all_of(gauges, is_shift)) return;
  EXPECT_GT(testbeds::paired_error(bed, gauges, testbeds::adamw(1e-2, 0), {.steps = 10}), 1e-3);
}

TEST_P(RandomNetworks, StepCommutesWithAllGaugesTogether) { expect_equivariance(GetParam()); }
TEST_P(RandomNetworksLong, StepCommutesWithAllGaugesTogetherLong) {
  expect_equivariance(GetParam());
}

TEST(RandomNetworksTest, NearlyAllAreBound) {
  int refused = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const auto bed = testbed_of(draw(seed));
    const auto params = bed.init(1, at::kDouble);
    try {
      DDCAdam(params, bed.gauges(params), {});
    } catch (const c10::Error&) {
      ++refused;
    }
  }
  EXPECT_LE(refused, 2);
}

}  // namespace
}  // namespace ddc::tests
