// Every map of the coordinates by itself, and all of them together: round trip, adjoint, invariance.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <functional>

#include "coordinates/coordinate_system.h"
#include "ddc/testbeds/blocks.h"
#include "ddc/testbeds/mlp.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

using testbeds::GaugeSet;

constexpr double kRoundTrip = 1e-13;
constexpr double kAdjoint = 1e-12;
/// Eigenvectors are as accurate as rounding divided by the gaps of the Gram matrices.
constexpr double kInvariance = 1e-10;

constexpr std::array kNames{"absorb_bias",      "centre",       "scale",
                            "effective_weight", "change_basis", "polar"};

struct Case {
  std::string name;
  Testbed bed;
  Treatment treatment = {};
  /// Binds these gauges only.
  std::function<bool(const Gauge&)> binds = [](const Gauge&) { return true; };
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::vector<Case> cases() {
  const auto layer_norm = [](GaugeSet set) {
    return testbeds::layer_norm_block({.relu_part = false, .gauges = set});
  };
  const auto acts = [](Action action) {
    return [action](const Gauge& gauge) { return gauge.action == action; };
  };
  const auto through_gains = [](const Gauge& gauge) {
    return gauge.action == Action::shift && !gauge.legs.front().through.empty();
  };
  const Treatment polar{.coordinates = Coordinates::polar};
  const auto offset = testbeds::rms_norm_block(
      {.gain_is_offset = true, .gauges = GaugeSet::with_residual_rotation});
  return {{"Exchanges", layer_norm(GaugeSet::full), {}, acts(Action::exchange)},
          {"Shifts", layer_norm(GaugeSet::full), {}, acts(Action::shift)},
          {"KernelShifts", layer_norm(GaugeSet::full), {}, through_gains},
          {"Scales", layer_norm(GaugeSet::full), {}, acts(Action::scale)},
          {"Rotations", layer_norm(GaugeSet::rotations), {}, acts(Action::rotation)},
          {"ResidualRotation", offset, {}, acts(Action::rotation)},
          {"LinearGroups", layer_norm(GaugeSet::full), {}, acts(Action::linear)},
          {"PolarScales", layer_norm(GaugeSet::full), polar, acts(Action::scale)},
          {"PolarChain", testbeds::relu_chain(), polar},
          {"WholeTensorPolarChain", testbeds::relu_chain({.per_channel = false}), polar},
          {"SquaredReluChain", testbeds::relu_chain({.degree = 2})},
          {"LayerNormBlock", layer_norm(GaugeSet::full)},
          {"LayerNormBlockInPolarCoordinates", layer_norm(GaugeSet::full), polar},
          {"LayerNormBlockWithResidualRotation", layer_norm(GaugeSet::with_residual_rotation)},
          {"RmsNormBlockWithOffsetGains", offset},
          {"VitBlock", testbeds::vit_block({.gauges = GaugeSet::with_residual_rotation})}};
}

/// Weights of a network with generic biases and gains, and gauges bound to them.
struct Bound {
  Parameters params;
  std::vector<Gauge> gauges;
  CoordinateSystem system;
  std::vector<bool> all;

  Bound(const Case& c, Parameters weights) : params(std::move(weights)) {
    for (const auto& gauge : c.bed.gauges(params)) {
      if (c.binds(gauge)) gauges.push_back(gauge);
    }
    std::vector<GroupedParameter> grouped;
    for (const auto& parameter : params) grouped.push_back({parameter, 0});
    system = CoordinateSystem(grouped, gauges, c.treatment);
    all.assign(params.size(), true);
  }

  /// Calls visit(maps) for every component that gauges act on, with notes taken.
  void for_each_component(const std::function<void(CoordinateMaps&)>& visit) const {
    for (const auto& component : system.plan().components) {
      if (component.gauges.empty()) continue;
      CoordinateMaps maps(ComponentView(system.plan(), component, system.gauge_states(), all));
      maps.read_();
      visit(maps);
    }
  }
};

Parameters weights_of(const Case& c) {
  const at::NoGradGuard no_grad;
  auto params = c.bed.init(1, at::kDouble);
  uint64_t seed = 100;
  for (const auto& [name, tensor] : params) {
    at::Tensor(tensor).add_(at::randn(tensor.sizes(), generator(seed++), at::kDouble), 0.1);
  }
  return params;
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm().clamp_min(1)).item<double>();
}

/// Some of the maps, one after the other: the fold that is tested.
using Maps = std::vector<CoordinateMap*>;

void to_coordinates_(const Maps& maps, const Component& component, Tensors& x) {
  for (const size_t t : component.tensors) {
    for (const auto* map : maps) map->to_coordinates_(t, x[t]);
  }
}

void to_weights_(const Maps& maps, const Component& component, Tensors& x) {
  for (auto map = maps.rbegin(); map != maps.rend(); ++map) {
    (*map)->to_weights_(component.tensors, x);
  }
}

/// Every map alone, and all together.
std::vector<std::pair<std::string, Maps>> folds(const CoordinateMaps& maps) {
  std::vector<std::pair<std::string, Maps>> result;
  for (size_t m = 0; m < maps.all.size(); ++m) result.push_back({kNames[m], {maps.all[m]}});
  result.emplace_back("all", Maps(maps.all.begin(), maps.all.end()));
  return result;
}

/// Tensors of a component as the first map of a fold finds them.
Tensors outside(const CoordinateMaps& maps, const Maps& fold) {
  Tensors x(maps.view);
  for (const size_t t : maps.view.component.tensors) x[t] = maps.coordinates(t, fold.front());
  return x;
}

Tensors copy_of(const CoordinateMaps& maps, const Tensors& x) {
  Tensors copy(maps.view);
  for (const size_t t : maps.view.component.tensors) copy[t] = x[t].clone();
  return copy;
}

class CoordinateMapsOf : public ::testing::TestWithParam<Case> {};

TEST_P(CoordinateMapsOf, RoundTripIsTheIdentity) {
  const at::NoGradGuard no_grad;
  const Bound bound(GetParam(), weights_of(GetParam()));
  ASSERT_FALSE(bound.gauges.empty());
  bound.for_each_component([&](CoordinateMaps& maps) {
    const auto& component = maps.view.component;
    for (const auto& [name, fold] : folds(maps)) {
      const auto weights = outside(maps, fold);
      auto x = copy_of(maps, weights);
      to_coordinates_(fold, component, x);
      to_weights_(fold, component, x);
      for (const size_t t : component.tensors) {
        EXPECT_LE(difference(x[t], weights[t]), kRoundTrip)
            << name << " " << bound.system.plan().tensors[t].name;
      }
    }
  });
}

TEST_P(CoordinateMapsOf, PullBackIsTheAdjointOfTheLift) {
  const at::NoGradGuard no_grad;
  const Bound bound(GetParam(), weights_of(GetParam()));
  uint64_t seed = 1000;
  bound.for_each_component([&](CoordinateMaps& maps) {
    const auto& component = maps.view.component;
    const auto random = [&](bool of_steps) {
      Tensors result(maps.view);
      for (const size_t t : component.tensors) {
        result[t] = at::randn(bound.system.plan().tensors[t].tensor.sizes(), generator(seed++),
                              at::kDouble);
        // Gains that weights are seen through are constants of a step.
        if (of_steps && maps.view.passive[t]) result[t].zero_();
      }
      return result;
    };
    for (const auto& [name, fold] : folds(maps)) {
      maps.read_();  // lifting another point left notes of that
      auto point = outside(maps, fold);
      to_coordinates_(fold, component, point);
      const auto step = random(/*of_steps=*/true);
      const auto gradient = random(/*of_steps=*/false);
      auto pulled = copy_of(maps, gradient);
      for (const auto* map : fold) map->pull_back_(pulled);
      // Weights are at most quadratic in coordinates, of which a central difference is exact.
      const auto lifted = [&](double sign) {
        auto x = copy_of(maps, point);
        for (const size_t t : component.tensors) x[t].add_(step[t], sign);
        to_weights_(fold, component, x);
        return x;
      };
      const auto forward = lifted(+1);
      const auto backward = lifted(-1);
      double of_coordinates = 0;
      double of_weights = 0;
      double size = 0;
      for (const size_t t : component.tensors) {
        const auto change = (forward[t] - backward[t]) / 2;
        of_coordinates += (pulled[t] * step[t]).sum().item<double>();
        of_weights += (gradient[t] * change).sum().item<double>();
        size += (gradient[t].norm() * change.norm()).item<double>();
      }
      EXPECT_GT(size, 0) << name;
      EXPECT_LE(std::abs(of_coordinates - of_weights), kAdjoint * size) << name;
    }
  });
}

// Signs of eigenvectors are free, and with them the signs of coordinates in frames.
TEST_P(CoordinateMapsOf, CoordinatesAreTheSameOnTheWholeOrbit) {
  const at::NoGradGuard no_grad;
  const Bound bound(GetParam(), weights_of(GetParam()));
  const auto moved = bound.params.clone();
  act_(bound.gauges, random_element(bound.gauges, moved, 0.5, generator(7)), moved);
  const Bound other(GetParam(), moved);
  const auto coordinates = [](const Bound& of) {
    std::vector<std::pair<at::Tensor, bool>> result;
    of.for_each_component([&](CoordinateMaps& maps) {
      for (const size_t t : maps.view.component.tensors) {
        const auto& tensor = of.system.plan().tensors[t];
        result.emplace_back(maps.coordinates(t), !tensor.blocks.empty());
      }
    });
    return result;
  };
  const auto here = coordinates(bound);
  const auto there = coordinates(other);
  ASSERT_EQ(here.size(), there.size());
  for (size_t i = 0; i < here.size(); ++i) {
    const auto& [x, turned] = here[i];
    const auto& y = there[i].first;
    EXPECT_LE(turned ? difference(y.abs(), x.abs()) : difference(y, x), kInvariance) << i;
  }
  // The element moved the weights, or nothing was shown.
  EXPECT_GT(relative_error(moved, bound.params), 0.1);
}

INSTANTIATE_TEST_SUITE_P(Networks, CoordinateMapsOf, ::testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param.name; });

// The identities above say nothing of a map that does nothing.
TEST(CoordinateMaps, EachOfThemMovesTensorsOfSomeCase) {
  const at::NoGradGuard no_grad;
  std::array<int, kNames.size()> moved{};
  for (const auto& c : cases()) {
    const Bound bound(c, weights_of(c));
    bound.for_each_component([&](CoordinateMaps& maps) {
      for (size_t m = 0; m < kNames.size(); ++m) {
        for (const size_t t : maps.view.component.tensors) {
          const auto before = maps.coordinates(t, maps.all[m]);
          auto x = before.clone();
          maps.all[m]->to_coordinates_(t, x);
          moved[m] += difference(x, before) > 1e-3;
        }
      }
    });
  }
  for (size_t m = 0; m < kNames.size(); ++m) EXPECT_GT(moved[m], 0) << kNames[m];
}

// A step allocates what its component needs, however many other tensors there are.
TEST(CoordinateMaps, WorkspacesHaveTheSizeOfTheComponent) {
  const Case chain{"chain", testbeds::relu_chain()};
  auto params = weights_of(chain);
  const Bound alone(chain, params.clone());
  for (int i = 0; i < 50; ++i) {
    params.add("other" + std::to_string(i), at::ones({2}, at::kDouble).requires_grad_());
  }
  const Bound among_others(chain, params);
  size_t size = 0;
  alone.for_each_component([&](CoordinateMaps& maps) { size += Tensors(maps.view).size(); });
  among_others.for_each_component([&](CoordinateMaps& maps) { size -= Tensors(maps.view).size(); });
  EXPECT_EQ(size, 0U);
}

}  // namespace
}  // namespace ddc::tests
