// What the closed forms of leakage say AdamW will do, against what torch::optim::AdamW does.

#include "ddc/measure/leakage.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <set>

#include "ddc/gauge/action.h"
#include "ddc/gauge/channel_map.h"
#include "ddc/measure/gauge_coordinates.h"
#include "ddc/testbeds/blocks.h"
#include "ddc/testbeds/teacher_student.h"
#include "gauge/block_map.h"
#include "support/errors.h"
#include "support/testbeds.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

using testbeds::flattened;
using testbeds::gauge_called;
using testbeds::GaugeSet;
using testbeds::gradients_of;
using testbeds::without_leg;

/// Error of the prediction to first order, at a learning rate of 1e-3, per step and over a run.
constexpr double kFirstOrderError = 0.05;

double size_of(const at::Tensor& tensor) { return tensor.norm().item<double>(); }

/// A skew matrix from its exponential, for angles below a right one.
at::Tensor logarithm(const at::Tensor& rotation) {
  const auto skew = (rotation - rotation.transpose(-1, -2)) / 2;
  const auto [sines, vectors] =
      at::linalg_eigh(at::complex(at::zeros_like(skew), -skew));  // -i skew is Hermitian
  const auto angles = at::complex(at::zeros_like(sines), sines.asin());
  return at::real((vectors * angles.unsqueeze(-2)).matmul(vectors.transpose(-1, -2).conj()))
      .contiguous();
}

/// The change of the gauge coordinate between two points, from the weights alone: as r is read off them,
/// and for a rotation by an SVD.
at::Tensor measured_drift(const Gauge& gauge, const Parameters& before, const Parameters& after) {
  if (gauge.action == Action::scale) {
    return GaugeCoordinates(after, {gauge}).measure().front() -
           GaugeCoordinates(before, {gauge}).measure().front();
  }
  at::Tensor product;
  for (const auto& leg : gauge.legs) {
    const auto take = [&](const Parameters& params) {
      const auto tensor = params[leg.tensor].tensor.detach().to(at::kDouble);
      return BlockMap(leg.channel_of, gauge.channels, gauge.block, leg.axis, tensor.sizes(),
                      tensor.device())
          .take(tensor);
    };
    const auto part = take(after).matmul(take(before).transpose(-1, -2));
    product = product.defined() ? product + part : part;
  }
  const auto [u, s, v] = at::linalg_svd(product);
  return logarithm(u.matmul(v));
}

struct Subject {
  std::string name;
  Testbed bed;
  std::vector<Gauge> gauges;
};

/// Scales and rotations of stored weights, of a kind each once.
std::vector<Subject> subjects() {
  std::vector<Subject> result;
  const auto add = [&](const Testbed& bed) {
    const auto params = bed.init(1, at::kDouble);
    Subject subject{bed.name, bed, {}};
    std::set<std::string> kinds;
    for (const auto& gauge : bed.gauges(params)) {
      const bool wanted = (gauge.action == Action::scale || gauge.action == Action::rotation) &&
                          gauge.legs.back().through.empty();
      if (wanted && kinds.insert(gauge.kind).second) subject.gauges.push_back(gauge);
    }
    result.push_back(subject);
  };
  add(testbeds::relu_teacher_student());
  add(testbeds::relu_teacher_student({.per_channel = true}));
  add(testbeds::layer_norm_block({.gauges = GaugeSet::rotations}));
  add(testbeds::rms_norm_block({.gain_is_offset = true, .gauges = GaugeSet::rotations}));
  return result;
}

/// The kinds over all subjects: a kind that is missing would go untested.
TEST(LeakageSubjects, AreOfAllKinds) {
  std::set<std::string> kinds;
  for (const auto& subject : subjects()) {
    for (const auto& gauge : subject.gauges) kinds.insert(gauge.kind);
  }
  for (const auto* kind : {"relu rescale", "norm scale", "QK scale", "QK plane scale", "VO scale",
                           "QK rotation", "VO rotation", "QK torus", "glu rescale"}) {
    EXPECT_EQ(kinds.count(kind), 1U) << kind;
  }
}

/// AdamW for some steps; after each, `look` sees the parameters before it, those after it, and the
/// moments.
template <typename Look>
void train(const Testbed& bed, const Parameters& params, const torch::optim::AdamWOptions& options,
           int steps, const Look& look) {
  torch::optim::AdamW optimizer(params.tensors(), options);
  AdamWMoments moments;
  for (int t = 0; t < steps; ++t) {
    backward(bed, params, bed.batch(static_cast<uint64_t>(t), at::kDouble));
    Parameters gradients;
    for (const auto& [name, tensor] : params) gradients.add(name, tensor.grad());
    moments.update(gradients);
    const auto before = params.clone();
    optimizer.step();
    look(t, before, moments);
  }
}

TEST(AdamWMoments, GiveTheStepsOfAdamW) {
  const auto bed = testbeds::layer_norm_block();
  const auto params = bed.init(1, at::kDouble);
  const double lr = 1e-3;
  const double decay = 0.1;
  train(bed, params, torch::optim::AdamWOptions(lr).weight_decay(decay), 5,
        [&](int, const Parameters& before, const AdamWMoments& moments) {
          const auto direction = moments.direction();
          const auto preconditioner = moments.preconditioner();
          const auto momentum = moments.momentum();
          for (const auto& [name, tensor] : params) {
            const auto d = direction[name].tensor;
            const auto expected = before[name].tensor * (1 - lr * decay) - lr * d;
            EXPECT_LE(size_of(tensor - expected), 1e-15 * size_of(expected)) << name;
            const auto product = preconditioner[name].tensor * momentum[name].tensor;
            EXPECT_LE(size_of(d - product), 1e-14 * size_of(d)) << name;
          }
        });
}

TEST(PredictedDrift, IsThatOfAdamWWithinFivePercent) {
  for (const auto& subject : subjects()) {
    for (const auto& gauge : subject.gauges) {
      SCOPED_TRACE(subject.name + ", " + gauge.name);
      const auto params = subject.bed.init(1, at::kDouble);
      at::Tensor measured;
      at::Tensor predicted;
      double first_error = 0;
      double second_error = 0;
      double total = 0;
      train(subject.bed, params, torch::optim::AdamWOptions(1e-3).weight_decay(0.01), 20,
            [&](int t, const Parameters& before, const AdamWMoments& moments) {
              const auto drift = predicted_drift(gauge, before, moments.direction(),
                                                 {.lr = 1e-3, .weight_decay = 0.01});
              const auto actual = measured_drift(gauge, before, params);
              first_error += size_of(drift.first_order - actual);
              second_error += size_of(drift.second_order - actual);
              total += size_of(actual);
              measured = t == 0 ? actual : measured + actual;
              predicted = t == 0 ? drift.first_order : predicted + drift.first_order;
            });
      EXPECT_GE(total, 1e-4) << "AdamW does not move it";
      EXPECT_LE(first_error, kFirstOrderError * total);
      EXPECT_LE(second_error, 0.02 * first_error);
      EXPECT_LE(size_of(predicted - measured), kFirstOrderError * size_of(measured));
    }
  }
}

TEST(PredictedDrift, IsWrongByTheNextOrderOfTheLearningRate) {
  const auto slope = [](double at_small, double at_large) {
    return std::log(at_large / at_small) / std::log(4.0);
  };
  for (const auto& subject : subjects()) {
    for (const auto& gauge : subject.gauges) {
      SCOPED_TRACE(subject.name + ", " + gauge.name);
      double errors[2][2] = {};
      const double rates[2] = {1e-3, 4e-3};
      for (int k = 0; k < 2; ++k) {
        const auto params = subject.bed.init(1, at::kDouble);
        // The same direction for both, and a decay that is felt.
        const auto gradients = gradients_of(subject.bed, params, subject.bed.batch(0, at::kDouble));
        AdamWMoments moments;
        moments.update(gradients);
        torch::optim::AdamW optimizer(params.tensors(),
                                      torch::optim::AdamWOptions(rates[k]).weight_decay(0.5));
        for (const auto& [name, tensor] : params) tensor.mutable_grad() = gradients[name].tensor;
        const auto before = params.clone();
        optimizer.step();
        const auto drift = predicted_drift(gauge, before, moments.direction(),
                                           {.lr = rates[k], .weight_decay = 0.5});
        const auto actual = measured_drift(gauge, before, params);
        errors[0][k] = size_of(drift.first_order - actual);
        errors[1][k] = size_of(drift.second_order - actual);
      }
      EXPECT_NEAR(slope(errors[0][0], errors[0][1]), 2, 0.05);
      EXPECT_NEAR(slope(errors[1][0], errors[1][1]), 3, 0.05);
    }
  }
}

TEST(PredictedDrift, OfDecayAloneIsThereOnlyWhereTheHeaderSaysSo) {
  const auto bed = testbeds::layer_norm_block();
  const auto params = bed.init(1, at::kDouble);
  const auto zero = params.clone();
  {
    const at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : zero) at::Tensor(tensor).zero_();
  }
  const StepSize step{.lr = 1e-2, .weight_decay = 0.5};
  const auto gauges = bed.gauges(params);
  const auto norm_scale = gauge_called(gauges, "layers.0.mlp_norm.weight:scale");
  const auto squared = gauge_called(gauges, "layers.0.squared_mlp.up.weight:rescale");
  for (const auto& gauge : {norm_scale, squared}) {
    EXPECT_LE(size_of(predicted_drift(gauge, params, zero, step).first_order), 1e-16) << gauge.name;
    EXPECT_LE(size_of(predicted_drift(gauge, params, zero, step).second_order), 1e-15)
        << gauge.name;
  }
  auto one_sided = without_leg(without_leg(norm_scale, 2), 1);
  auto uneven = squared;
  uneven.legs[1].exponent = 3;
  auto offset = norm_scale;
  offset.legs[0].offset = 1;
  for (const auto& gauge : {one_sided, uneven, offset}) {
    EXPECT_GE(size_of(predicted_drift(gauge, params, zero, step).first_order), 1e-3) << gauge.name;
  }
}

TEST(PredictedDrift, OfSgdIsThereAwayFromBalance) {
  // It keeps the difference of the squares, and so the ratio where they are equal only.
  const auto bed = testbeds::relu_teacher_student();
  const auto params = bed.init(1, at::kDouble);
  const auto gauge = bed.gauges(params).front();
  const auto gradients = gradients_of(bed, params, bed.batch(0, at::kDouble));
  const auto after = params.clone();
  {
    const at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : after) {
      at::Tensor(tensor).sub_(gradients[name].tensor, 1e-4);
    }
  }
  const auto actual = measured_drift(gauge, params, after);
  const auto drift = predicted_drift(gauge, params, gradients, {.lr = 1e-4});
  EXPECT_GE(size_of(actual), 1e-6);
  EXPECT_LE(size_of(drift.first_order - actual), 0.01 * size_of(actual));
}

/// P = 1 for every coordinate, or a number per tensor.
Parameters constant_like(const Parameters& params, const std::function<double(size_t)>& value) {
  Parameters result;
  for (const auto& [name, tensor] : params) {
    result.add(name, at::full_like(tensor, value(result.size())).detach());
  }
  return result;
}

TEST(Leakage, OfSgdIsRounding) {
  for (const auto& subject : subjects()) {
    const auto params = subject.bed.init(1, at::kDouble);
    const auto gradients = gradients_of(subject.bed, params, subject.bed.batch(0, at::kDouble));
    const auto ones = constant_like(params, [](size_t) { return 1.0; });
    AdamWMoments moments;
    moments.update(gradients);
    for (const auto& gauge : subject.gauges) {
      const auto sgd = leakage(gauge, params, ones, gradients);
      const double scale = size_of(noether_charge(gauge, params, gradients).scale);
      EXPECT_LE(size_of(sgd.total()), 1e-13 * scale) << gauge.name;
      EXPECT_LE(size_of(sgd.covariance), 1e-13 * scale) << gauge.name;
      const auto adam = leakage(gauge, params, moments.preconditioner(), moments.momentum());
      EXPECT_GE(size_of(adam.total()), 1e-2) << gauge.name;
      EXPECT_GE(size_of(adam.covariance), 1e-2) << gauge.name;
    }
  }
}

TEST(Leakage, OfOneNumberPerTensorIsThatOfTheLemma) {
  const auto p = [](size_t index) { return 1.0 + static_cast<double>(index % 7); };
  for (const auto& subject : subjects()) {
    const auto params = subject.bed.init(1, at::kDouble);
    const auto gradients = gradients_of(subject.bed, params, subject.bed.batch(0, at::kDouble));
    const auto per_tensor = constant_like(params, p);
    for (const auto& gauge : subject.gauges) {
      const auto general = leakage(gauge, params, per_tensor, gradients);
      const double scale = size_of(noether_charge(gauge, params, gradients).scale);
      EXPECT_LE(size_of(general.covariance), 1e-13 * scale) << gauge.name;
      // Two legs: the gradient's charges cancel, and what is left is the difference of the factors.
      if (gauge.legs.size() != 2) continue;
      const auto first = without_leg(gauge, 1);
      const double difference = per_tensor[gauge.legs[0].tensor].tensor.mean().item<double>() -
                                per_tensor[gauge.legs[1].tensor].tensor.mean().item<double>();
      ASSERT_NE(difference, 0) << gauge.name;
      auto expected = noether_charge(first, params, gradients).value * difference;
      if (gauge.action == Action::rotation) {
        expected = expected / 2;
      } else {
        at::Tensor square;
        for (const auto& leg : gauge.legs) {
          const auto tensor = params[leg.tensor].tensor.detach() + leg.offset;
          const ChannelMap map(leg.channel_of, gauge.channels, leg.axis, tensor.size(leg.axis),
                               tensor.dim(), tensor.device());
          const auto part = map.scatter_all((tensor * leg.exponent).square());
          square = square.defined() ? square + part : part;
        }
        expected = expected / square.sqrt();
      }
      EXPECT_GE(size_of(expected), 1e-6) << gauge.name;
      EXPECT_LE(size_of(general.total() - expected), 1e-12 * size_of(expected) + 1e-13 * scale)
          << gauge.name;
    }
  }
}

TEST(Leakage, IsThePartOfTheDirectionAlongTheOrbit) {
  for (const auto& subject : subjects()) {
    const auto params = subject.bed.init(1, at::kDouble);
    AdamWMoments moments;
    moments.update(gradients_of(subject.bed, params, subject.bed.batch(0, at::kDouble)));
    const auto directions = moments.direction();
    Parameters ordered;
    for (const auto& [name, tensor] : params) ordered.add(name, directions[name].tensor);
    for (const auto& gauge : subject.gauges) {
      SCOPED_TRACE(gauge.name);
      const auto total =
          leakage(gauge, params, moments.preconditioner(), moments.momentum()).total();
      const auto tangents = orbit_tangents(gauge, params);
      const auto products = tangents.mv(flattened(ordered));
      if (gauge.action == Action::scale) {
        EXPECT_LE(size_of(total - products / tangents.norm(2, {1})), 1e-12 * size_of(total));
        continue;
      }
      // A tangent turns the plane of i < j by one: <D, A W> = <A, D W^T> has that entry twice.
      const auto rows = at::triu_indices(gauge.block, gauge.block, 1);
      const auto entries = total.index({at::indexing::Slice(), rows[0], rows[1]}).flatten();
      EXPECT_LE(size_of(2 * entries - products), 1e-12 * size_of(products));
    }
  }
}

TEST(Leakage, IsRefusedWhereItIsNotKnown) {
  const auto bed = testbeds::layer_norm_block({.gauges = GaugeSet::with_residual_rotation});
  const auto params = bed.init(1, at::kDouble);
  const auto gauges = bed.gauges(params);
  const auto refuse = [&](const std::string& name, const std::vector<std::string>& words) {
    const auto gauge = gauge_called(gauges, name);
    expect_error([&] { leakage(gauge, params, params, params); }, words);
    expect_error([&] { predicted_drift(gauge, params, params, {}); }, words);
  };
  refuse("unembedding.weight:shift", {"unembedding.weight:shift", "shift"});
  refuse("residual:rotation", {"residual:rotation", "is seen through"});
  const auto scale = gauge_called(gauges, "layers.0.mlp_norm.weight:scale");
  expect_error([&] { predicted_drift(scale, params, Parameters(), {}); },
               {"layers.0.mlp_norm.weight"});
  expect_error([&] { predicted_drift(scale, params, params, {.lr = NAN}); }, {"lr", "nan"});
}

}  // namespace
}  // namespace ddc::tests
