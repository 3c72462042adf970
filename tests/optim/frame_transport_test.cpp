// What is remembered in a frame goes along when the frame follows the weights.

#include <gtest/gtest.h>

#include <numeric>

#include "ddc/optim/muon.h"
#include "ddc/optim/sgd.h"
#include "gauge/block_map.h"
#include "support/matrices.h"
#include "support/pursuit.h"
#include "support/tolerances.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

TEST(FrameTransport, TurnsTheFirstMomentByTheBasisAndTheSecondByItsSquares) {
  const auto basis = std::get<0>(at::linalg_qr(normal({kHeads, kHeadSize, kHeadSize}, 1)));
  std::vector<int64_t> channels(kHeads * kHeadSize);
  std::iota(channels.begin(), channels.end(), 0);
  for (const int64_t axis : {0, 1}) {
    const std::vector<int64_t> shape =
        axis == 0 ? std::vector<int64_t>{8, 3} : std::vector<int64_t>{3, 8};
    const BlockMap map(channels, kHeads * kHeadSize, kHeadSize, axis, shape, at::kCPU);
    const auto m = normal(shape, 2);
    const auto v = normal(shape, 3).square();
    AdamMoments moments{m.clone(), v.clone(), {}};
    AdamRule::change_basis(moments, {map, basis});
    const auto rows = [&](const at::Tensor& t) { return axis == 0 ? t : t.t(); };
    for (int64_t b = 0; b < kHeads; ++b) {
      for (int64_t i = 0; i < kHeadSize; ++i) {
        auto first = at::zeros({3}, at::kDouble);
        auto second = at::zeros({3}, at::kDouble);
        for (int64_t j = 0; j < kHeadSize; ++j) {
          const auto r = basis[b][j][i].item<double>();
          first += rows(m)[b * kHeadSize + j] * r;
          second += rows(v)[b * kHeadSize + j] * (r * r);
        }
        const int64_t row = b * kHeadSize + i;
        EXPECT_LT((rows(moments.exp_avg)[row] - first).abs().max().item<double>(), 1e-14);
        EXPECT_LT((rows(moments.exp_avg_sq)[row] - second).abs().max().item<double>(), 1e-14);
      }
    }
  }
}

/// Adam in the eigenbasis of every step, written out for queries and keys side by side:
/// [heads, head size, 2 inputs].
struct ByHand {
  bool turn_first = true;
  bool turn_second = true;
  at::Tensor frame = {}, m = {}, v = {};

  void step(at::Tensor& w, const at::Tensor& gradient, double t) {
    const double lr = 2e-2;
    if (!frame.defined()) {
      frame = std::get<1>(at::linalg_eigh(w.matmul(w.transpose(1, 2))));
      m = at::zeros_like(w);
      v = at::zeros_like(w);
    }
    auto x = frame.transpose(1, 2).matmul(w);
    const auto g = frame.transpose(1, 2).matmul(gradient);
    m = 0.9 * m + 0.1 * g;
    v = 0.999 * v + 0.001 * g * g;
    auto move = -lr * (m / (1 - std::pow(0.9, t))) / ((v / (1 - std::pow(0.999, t))).sqrt() + 1e-8);
    // The part along the orbit, A x with M A + A M = skew part.
    const auto gram = x.matmul(x.transpose(1, 2));
    const auto moment = move.matmul(x.transpose(1, 2));
    const auto one = at::eye(kHeadSize, at::kDouble);
    for (int64_t h = 0; h < kHeads; ++h) {
      const auto skew = (moment[h] - moment[h].t()).reshape({-1});
      const auto system = at::kron(gram[h], one) + at::kron(one, gram[h]);
      move[h] -= at::linalg_solve(system, skew).view({kHeadSize, kHeadSize}).matmul(x[h]);
    }
    x = x * (1 - lr * 0.01) + move;
    w = frame.matmul(x);
    const auto basis = std::get<1>(at::linalg_eigh(x.matmul(x.transpose(1, 2))));
    frame = frame.matmul(basis);
    if (turn_first) m = basis.transpose(1, 2).matmul(m);
    if (turn_second) v = basis.square().transpose(1, 2).matmul(v);
  }
};

TEST(FrameTransport, EqualsAdamInTheEigenbasisOfEveryStepByHand) {
  const auto bed = pursuit([] { return fitting(0.4); }, /*moving=*/false);
  auto treatment = turned(SecondMoment::body_frame);
  treatment.frame_interval = 1;
  const auto trained = train(bed, turning(fitting(0.4)), treatment, 30);
  const auto side_by_side = [](const at::Tensor& q, const at::Tensor& k) {
    return at::cat({heads_of(q), heads_of(k)}, 2);
  };
  const auto expected = side_by_side(trained.params["query"].tensor, trained.params["key"].tensor);
  const auto error = [&](ByHand by_hand) {
    const auto params = fitting(0.4);
    const auto& q = params["query"].tensor;
    const auto& k = params["key"].tensor;
    for (int64_t step = 0; step < 30; ++step) {
      backward(bed, params, bed.batch(static_cast<uint64_t>(step), at::kDouble));
      const at::NoGradGuard no_grad;
      auto w = side_by_side(q, k);
      by_hand.step(w, side_by_side(q.grad(), k.grad()), static_cast<double>(step + 1));
      q.copy_(w.narrow(2, 0, kInputs).reshape(q.sizes()));
      k.copy_(w.narrow(2, kInputs, kInputs).reshape(k.sizes()));
    }
    return (side_by_side(q, k) - expected).norm().item<double>() / expected.norm().item<double>();
  };
  const double exact = error({});
  RecordProperty("error", testing::PrintToString(exact));
  EXPECT_LE(exact, kBodyFrameTolerance);
  EXPECT_GE(error({.turn_first = false}), 1e-3);
  EXPECT_GE(error({.turn_second = false}), 1e-3);
}

// SGD and Muon commute with rotations of a head, so that it makes no difference to them which frame they
// work in, if their momentum is turned with it.
TEST(FrameTransport, MakesNoDifferenceToBasesThatCommuteWithRotations) {
  const auto bed = pursuit([] { return fitting(0.4); });
  using Make = std::function<OptimizerMaker(const Treatment&)>;
  const std::vector<std::pair<std::string, Make>> bases{
      {"Sgd",
       [](const Treatment& treatment) {
         return testbeds::lifted<SgdRule>({.lr = 1e-2, .momentum = 0.9}, treatment);
       }},
      {"Muon",
       [](const Treatment& treatment) { return testbeds::ddc_muon({.lr = 2e-2}, {}, treatment); }}};
  for (const auto& [name, make] : bases) {
    const auto run = [&](SecondMoment mode) {
      const auto params = bed.init(1, at::kDouble);
      auto treatment = in_place(turned(mode));
      treatment.frame_interval = 1;
      const auto optimizer = make(treatment)(params, turning(params));
      for (int64_t step = 0; step < kSteps; ++step) {
        backward(bed, params, bed.batch(static_cast<uint64_t>(step), at::kDouble));
        optimizer->step();
      }
      const auto report = dynamic_cast<const LiftedOptimizer&>(*optimizer).report();
      EXPECT_EQ(report.gauges.front().frames_recomputed,
                mode == SecondMoment::body_frame ? kHeads * kSteps : 0);
      return params;
    };
    const double error =
        relative_error(run(SecondMoment::body_frame), run(SecondMoment::transported));
    RecordProperty(name, testing::PrintToString(error));
    EXPECT_LE(error, kBodyFrameTolerance) << name;
  }
}

}  // namespace
}  // namespace ddc::tests
