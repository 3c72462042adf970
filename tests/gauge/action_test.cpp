// Group elements: for a gauge of every action, what action.h says about them, on the networks that have
// all of them at once.

#include "ddc/gauge/action.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "ddc/testbeds/blocks.h"
#include "support/errors.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

Testbed layer_norm() {
  return testbeds::layer_norm_block({.vocabulary = 7,
                                     .d_model = 8,
                                     .heads = 2,
                                     .d_ff = 6,
                                     .sequence = 4,
                                     .relu_part = false,
                                     .gauges = testbeds::GaugeSet::with_residual_rotation});
}

Testbed rms_norm() {
  return testbeds::rms_norm_block({.vocabulary = 7,
                                   .d_model = 8,
                                   .heads = 2,
                                   .kv_heads = 1,
                                   .d_ff = 6,
                                   .sequence = 4,
                                   .gain_is_offset = true,
                                   .gauges = testbeds::GaugeSet::with_residual_rotation});
}

/// A network with one gauge of each kind that it has.
struct Actions : ::testing::TestWithParam<bool> {
  const bool has_exchanges = GetParam();
  const Testbed bed = has_exchanges ? layer_norm() : rms_norm();
  const Parameters params = bed.init(3, at::kDouble);
  const testbeds::Batch batch = bed.batch(5, at::kDouble);

  std::vector<Gauge> gauges() const {
    std::vector<Gauge> result;
    std::set<std::string> kinds;
    for (const auto& gauge : bed.gauges(params)) {
      if (kinds.insert(gauge.kind).second) result.push_back(gauge);
    }
    return result;
  }
  Parameters gradients_at(const Parameters& there) const {
    backward(bed, there, batch);
    Parameters result;
    for (const auto& [name, tensor] : there) result.add(name, tensor.grad().clone());
    return result;
  }
  GroupElement drawn(const Gauge& gauge, double size, uint64_t seed) const {
    return random_element(gauge, params, size, generator(seed));
  }
};

Parameters moved(const Gauge& gauge, const GroupElement& element, const Parameters& params) {
  const auto copy = params.clone();
  act_(gauge, element, copy);
  return copy;
}

at::Tensor flat(const Parameters& params) {
  std::vector<at::Tensor> parts;
  for (const auto& entry : params) parts.push_back(entry.tensor.detach().flatten());
  return at::cat(parts);
}

double largest(const at::Tensor& tensor) { return tensor.abs().max().item<double>(); }

TEST_P(Actions, BetweenThemAreOfEveryKind) {
  std::map<Action, int> count;
  for (const auto& gauge : gauges()) ++count[gauge.action];
  for (const auto action : {Action::scale, Action::shift, Action::rotation, Action::linear}) {
    EXPECT_GT(count[action], 0) << to_string(action);
  }
  EXPECT_EQ(count[Action::exchange] > 0, has_exchanges);
}

TEST_P(Actions, ObeyTheGroupLaw) {
  for (const auto& gauge : gauges()) {
    SCOPED_TRACE(gauge.name);
    const auto g = drawn(gauge, 0.5, 1);
    const auto h = drawn(gauge, 0.5, 2);
    const auto e = identity_element(gauge, params);
    const auto theta = flat(params);
    EXPECT_LE(largest(flat(moved(gauge, e, params)) - theta), 1e-15);
    const auto there = moved(gauge, g, params);
    EXPECT_GE(largest(flat(there) - theta), 1e-3) << "the element does nothing";
    EXPECT_LE(largest(flat(moved(gauge, inverse(gauge, g), there)) - theta), 1e-12);
    const auto at_once = flat(moved(gauge, compose(gauge, g, h), params));
    EXPECT_LE(largest(flat(moved(gauge, g, moved(gauge, h, params))) - at_once), 1e-12);
    if (gauge.mixes()) {
      EXPECT_GE(largest(flat(moved(gauge, h, moved(gauge, g, params))) - at_once),
                gauge.block == 2 && gauge.action == Action::rotation ? 0 : 1e-3)
          << "the order of the product makes no difference";
    }
    EXPECT_LE(largest(compose(gauge, g, inverse(gauge, g)) - e), 1e-12);
  }
}

TEST_P(Actions, RandomElementsAreInTheGroup) {
  for (const auto& gauge : gauges()) {
    SCOPED_TRACE(gauge.name);
    const auto g = drawn(gauge, 0.5, 1);
    EXPECT_EQ(g.sizes(), identity_element(gauge, params).sizes());
    EXPECT_TRUE(g.equal(drawn(gauge, 0.5, 1))) << "the same seed, another element";
    if (gauge.action != Action::rotation) continue;
    const auto eye = at::eye(gauge.block, at::kDouble);
    EXPECT_LE(largest(g.matmul(g.transpose(-1, -2)) - eye), 1e-13);
    EXPECT_EQ(largest(g.sum(-1) - 1) < 1e-13, gauge.fixes_ones);
  }
}

/// The element that exp takes a tangent to.
GroupElement exponential(const Gauge& gauge, const at::Tensor& tangent) {
  return gauge.mixes() ? at::linalg_matrix_exp(tangent) : tangent;
}

/// What spans the algebra; more than a basis where the ones are left alone.
std::vector<at::Tensor> generators(const Gauge& gauge, const Parameters& params) {
  const auto zero = identity_element(gauge, params).zero_();
  const int64_t n = gauge.block;
  std::vector<at::Tensor> result;
  if (gauge.action == Action::rotation) {
    // Rotations of the plane of coordinates i and j, in which the ones are taken out.
    const auto projector =
        at::eye(n, at::kDouble) - at::ones({n, n}, at::kDouble) / (gauge.fixes_ones ? n : INFINITY);
    for (int64_t b = 0; b < gauge.blocks(); ++b) {
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = i + 1; j < n; ++j) {
          auto plane = at::zeros({n, n}, at::kDouble);
          plane[i][j] = 1;
          plane[j][i] = -1;
          auto tangent = zero.clone();
          tangent[b].copy_(projector.mm(plane).mm(projector));
          result.push_back(tangent);
        }
      }
    }
    return result;
  }
  for (int64_t i = 0; i < zero.numel(); ++i) {
    auto tangent = zero.clone();
    tangent.view(-1)[i] = 1;
    result.push_back(tangent);
  }
  return result;
}

/// Central differences of the action along the generators, one per row.
at::Tensor differences(const Gauge& gauge, const Parameters& params) {
  constexpr double step = 1e-4;
  std::vector<at::Tensor> rows;
  for (const auto& tangent : generators(gauge, params)) {
    const auto ahead = moved(gauge, exponential(gauge, tangent * step), params);
    const auto behind = moved(gauge, exponential(gauge, tangent * -step), params);
    rows.push_back((flat(ahead) - flat(behind)) / (2 * step));
  }
  return at::stack(rows);
}

TEST_P(Actions, TangentsSpanTheDerivativesOfTheAction) {
  for (const auto& gauge : gauges()) {
    SCOPED_TRACE(gauge.name);
    const auto expected = differences(gauge, params);
    const auto tangents = orbit_tangents(gauge, params);
    ASSERT_EQ(tangents.size(0), dimension(gauge, params));
    EXPECT_EQ(at::linalg_matrix_rank(tangents, 1e-9).item<int64_t>(), dimension(gauge, params));
    EXPECT_EQ(at::linalg_matrix_rank(expected, 1e-6).item<int64_t>(), dimension(gauge, params));
    const double size = largest(tangents);
    // Where the ones are left alone the bases of the algebra differ, and what they span does not.
    if (!gauge.fixes_ones) {
      EXPECT_LE(largest(tangents - expected), 1e-7 * size);
    }
    const auto weights = std::get<0>(at::linalg_lstsq(tangents.t(), expected.t()));
    EXPECT_LE(largest(tangents.t().mm(weights) - expected.t()), 1e-7 * size);
  }
}

TEST_P(Actions, HaveChargesThatVanish) {
  const auto gradients = gradients_at(params);
  for (const auto& gauge : gauges()) {
    const auto charge = noether_charge(gauge, params, gradients);
    // A tensor to which the loss is blind has nothing but rounding for a gradient.
    const double scale = std::max(largest(charge.scale), 1e-3 * largest(flat(gradients)));
    EXPECT_LE(largest(charge.value), 1e-12 * scale) << gauge.name;
  }
}

/// They know nothing of the gauge.
Parameters random_gradients(const Parameters& params) {
  const auto gradients = params.clone();
  const at::NoGradGuard no_grad;
  auto random = generator(9);
  for (const auto& [name, tensor] : gradients) at::Tensor(tensor).normal_(0, 1, random);
  return gradients;
}

TEST_P(Actions, HaveChargesThatAreDerivativesAlongTheOrbit) {
  const auto gradients = random_gradients(params);
  for (const auto& gauge : gauges()) {
    SCOPED_TRACE(gauge.name);
    const auto charge = noether_charge(gauge, params, gradients);
    std::vector<at::Tensor> along;
    for (const auto& tangent : generators(gauge, params)) {
      const auto product = (charge.value * tangent).sum();
      // The charge of a rotation is antisymmetric and has every derivative twice.
      along.push_back(gauge.action == Action::rotation ? product / 2 : product);
    }
    const auto numeric = differences(gauge, params).mv(flat(gradients));
    EXPECT_GE(largest(numeric), 1e-2);
    EXPECT_LE(largest(at::stack(along) - numeric), 1e-6 * largest(numeric));
    if (!gauge.fixes_ones) {
      const auto exact = orbit_tangents(gauge, params).mv(flat(gradients));
      EXPECT_LE(largest(at::stack(along) - exact), 1e-13 * largest(charge.scale));
    }
  }
}

TEST_P(Actions, HaveATangentForEveryElementWhoseTransposeIsTheCharge) {
  const auto gradients = random_gradients(params);
  for (const auto& gauge : gauges()) {
    SCOPED_TRACE(gauge.name);
    // Any sum of generators will do.
    auto element = identity_element(gauge, params).zero_();
    const auto spanning = generators(gauge, params);
    const auto rows = gauge.fixes_ones ? differences(gauge, params) : orbit_tangents(gauge, params);
    const auto weights = at::randn({std::ssize(spanning)}, generator(4), at::kDouble);
    for (int64_t i = 0; i < weights.size(0); ++i) element += weights[i] * spanning[i];
    const auto moved_tensors = orbit_tangent(gauge, element, params);
    double along = 0;
    std::vector<at::Tensor> parts;
    for (const auto& [name, tensor] : params) {
      const auto found = moved_tensors.find(name);
      parts.push_back(found == moved_tensors.end() ? at::zeros_like(tensor).detach().flatten()
                                                   : found->second.flatten());
      along += (parts.back() * gradients[name].tensor.detach().flatten()).sum().item<double>();
    }
    const auto expected = rows.t().mv(weights);
    EXPECT_LE(largest(at::cat(parts) - expected),
              (gauge.fixes_ones ? 1e-6 : 1e-13) * largest(expected));
    const auto charge = noether_charge(gauge, params, gradients);
    const double twice = gauge.action == Action::rotation ? 2 : 1;
    EXPECT_NEAR((charge.value * element).sum().item<double>() / twice, along,
                1e-12 * (charge.scale * element.abs()).sum().item<double>());
    expect_error(
        [&] {
          orbit_tangent(gauge, at::zeros({2, 3, 5, 1}, at::kDouble), params);
        },
        {gauge.name, "[2, 3, 5, 1]"});
  }
}

TEST_P(Actions, MoveGradientsAsAutogradOfTheMovedNetworkDoes) {
  const auto gradients = gradients_at(params);
  for (const auto& gauge : gauges()) {
    SCOPED_TRACE(gauge.name);
    const auto element = drawn(gauge, 0.5, 1);
    const auto image = gradients.clone();
    act_on_gradient_(gauge, element, params, image);
    const auto expected = flat(gradients_at(moved(gauge, element, params)));
    EXPECT_LE(largest(flat(image) - expected), 1e-11 * largest(expected));
  }
}

TEST_P(Actions, MoveGradientsOfAllGaugesOneAfterTheOther) {
  const auto all = bed.gauges(params);
  const auto element = random_element(all, params, 0.3, generator(1));
  const auto there = params.clone();
  act_(all, element, there);
  const auto image = gradients_at(params);
  act_on_gradient_(all, element, params, image);
  const auto expected = flat(gradients_at(there));
  EXPECT_LE(largest(flat(image) - expected), 1e-10 * largest(expected));
}

INSTANTIATE_TEST_SUITE_P(Networks, Actions, ::testing::Values(true, false),
                         [](const auto& instance) {
                           return std::string(instance.param ? "LayerNorm" : "RmsNorm");
                         });

TEST(GroupElements, OfTheWrongShapeAreRefusedByName) {
  const auto bed = layer_norm();
  const auto params = bed.init(3, at::kDouble);
  for (const auto& gauge : bed.gauges(params)) {
    expect_error(
        [&] {
          act_(gauge, at::zeros({2, 3, 5, 1}, at::kDouble), params);
        },
        {gauge.name, "[2, 3, 5, 1]"});
  }
  expect_error([&] { act_(bed.gauges(params), {}, params); }, {"needs as many parts", "got 0"});
}

}  // namespace
}  // namespace ddc::tests
