// Frames that follow the weights: exact through crossings of eigenvalues, signs of eigenvectors and
// degenerate weights, and with moments that go along.

#include <gtest/gtest.h>

#include "coordinates/coordinate_system.h"
#include "support/matrices.h"
#include "support/pursuit.h"
#include "support/tolerances.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

constexpr std::array kModes{SecondMoment::transported, SecondMoment::body_frame,
                            SecondMoment::body_frame_topk};

/// A rotation of every head by a large angle, in every other one with a reflection.
std::vector<GroupElement> with_reflections(uint64_t seed) {
  auto matrices = std::get<0>(at::linalg_qr(normal({kHeads, kHeadSize, kHeadSize}, seed)));
  for (int64_t h = 0; h < kHeads; ++h) {
    const double wanted = h % 2 == 0 ? -1 : 1;
    const double sign = wanted * at::linalg_det(matrices[h]).item<double>();
    matrices[h][0].mul_(sign < 0 ? -1 : 1);
  }
  return {matrices};
}

int64_t recomputed(const LiftedOptimizer& optimizer) {
  return optimizer.report().gauges.front().frames_recomputed;
}

// Near fits, the two largest eigenvalues change places while their eigenvectors all but stay.
TEST(BodyFrame, IsExactThroughCrossingsOfEigenvalues) {
  // Without noise all gradients would be rounding at first, of which Adam makes steps.
  for (const double noise : {1e-3, 0.02, 0.2}) {
    const auto bed = pursuit([=] { return fitting(noise); });
    for (const auto mode : kModes) {
      SCOPED_TRACE(testing::Message() << to_string(mode) << ", noise " << noise);
      const auto gauges = turning(fitting(noise));
      std::vector<double> gaps;
      std::vector<at::Tensor> top;
      const auto trained = train(bed, gauges, turned(mode), kSteps, [&](const Parameters& params) {
        const auto [values, vectors] = at::linalg_eigh(grams_of(params)[0]);
        gaps.push_back((1 - values[-2] / values[-1]).item<double>());
        top.push_back(vectors.select(1, kHeadSize - 1));
      });
      EXPECT_GT(gaps.front(), 0.4);
      EXPECT_LT(*std::min_element(gaps.begin(), gaps.end()), 0.1);
      EXPECT_GT(gaps.back(), 0.2);
      EXPECT_LT(top.front().dot(top.back()).abs().item<double>(), 0.5);
      EXPECT_EQ(recomputed(*trained.optimizer) > 0, mode != SecondMoment::transported);
      const double error = paired_error(bed, gauges, with_reflections(5),
                                        ddc_adam(quick(), turned(mode)), {.steps = kSteps});
      RecordProperty(std::string(to_string(mode)) + std::to_string(noise),
                     testing::PrintToString(error));
      EXPECT_LE(error, kBodyFrameTolerance);
    }
  }
}

// Both copies' frames are eigenvectors of related matrices, and so the same up to the signs that the
// solver chose.
TEST(BodyFrame, DoesNotSeeSignsOfEigenvectors) {
  const auto bed = pursuit([] { return fitting(0.2); });
  for (const auto mode : {SecondMoment::body_frame, SecondMoment::body_frame_topk}) {
    int64_t flipped = 0;
    for (uint64_t seed = 0; seed < 6; ++seed) {
      const auto element = with_reflections(seed);
      EXPECT_LT(at::linalg_det(element[0][0]).item<double>(), 0);
      const auto gauges = turning(fitting(0.2));
      const auto moved = pursuit([&] {
        const at::NoGradGuard no_grad;
        auto params = fitting(0.2);
        act_(gauges, element, params);
        return params;
      });
      const auto first = train(bed, gauges, turned(mode));
      const auto second = train(moved, gauges, turned(mode));
      const auto frame = [](const Trained& trained) {
        return trained.optimizer->coordinate_system().gauge_states().front().frame;
      };
      const auto signs =
          frame(first).transpose(1, 2).matmul(element[0].transpose(1, 2)).matmul(frame(second));
      EXPECT_LT((signs.abs() - at::eye(kHeadSize, at::kDouble)).abs().max().item<double>(), 1e-9);
      flipped += (signs.diagonal(0, 1, 2) < 0).sum().item<int64_t>();
      EXPECT_GT(recomputed(*first.optimizer), 0);
      EXPECT_EQ(recomputed(*first.optimizer), recomputed(*second.optimizer));
      const at::NoGradGuard no_grad;
      act_(gauges, element, first.params);
      EXPECT_LE(relative_error(second.params, first.params), kBodyFrameTolerance);
    }
    EXPECT_GT(flipped, 0) << to_string(mode);
  }
}

struct Start {
  std::string name;
  std::function<Parameters()> init;
};

at::Tensor orthonormal_rows(uint64_t seed) {
  return at::cat({orthonormal_columns(kInputs, kHeadSize, seed).t(),
                  orthonormal_columns(kInputs, kHeadSize, seed + 1).t()})
      .contiguous()
      .requires_grad_();
}

std::vector<Start> degenerate_starts() {
  const auto rows = [](int64_t count, uint64_t seed) { return normal({count, kInputs}, seed); };
  const auto leaf = [](const at::Tensor& t) { return t.contiguous().requires_grad_(); };
  return {
      {"orthonormal heads",
       [] {
         return table({{"query", orthonormal_rows(1)}, {"key", orthonormal_rows(3)}});
       }},
      {"orthonormal queries only",
       [=] {
         return table({{"query", orthonormal_rows(1)}, {"key", leaf(rows(8, 3) * 1e-3)}});
       }},
      {"equal heads",
       [=] {
         return table({{"query", leaf(rows(4, 1).repeat({2, 1}))},
                       {"key", leaf(rows(4, 2).repeat({2, 1}))}});
       }},
      {"equal directions",
       [=] {
         return table({{"query", leaf(rows(1, 1).repeat({8, 1}) + rows(8, 3) * 1e-2)},
                       {"key", leaf(rows(8, 2))}});
       }},
      {"zero keys",
       [=] {
         return table({{"query", leaf(rows(8, 1))}, {"key", leaf(at::zeros({8, 6}, at::kDouble))}});
       }},
      {"orthonormal queries and zero keys",
       [=] {
         return table(
             {{"query", orthonormal_rows(1)}, {"key", leaf(at::zeros({8, 6}, at::kDouble))}});
       }},
      {"a zero head", [=] {
         const auto half = at::cat({rows(4, 1), at::zeros({4, 6}, at::kDouble)});
         return table({{"query", leaf(half.clone())}, {"key", leaf(half.flip(1))}});
       }}};
}

TEST(BodyFrame, IsExactOnDegenerateWeights) {
  for (const auto& [name, init] : degenerate_starts()) {
    for (const auto mode : kModes) {
      const auto gauges = turning(init());
      const double error =
          paired_error(pursuit(init, /*moving=*/false), gauges, with_reflections(7),
                       ddc_adam(quick(), turned(mode)), {.steps = kSteps});
      RecordProperty(name + " " + to_string(mode), testing::PrintToString(error));
      EXPECT_LE(error, kDegenerateFrameTolerance) << name << ", " << to_string(mode);
    }
  }
}

// A smooth invariant function has no gradient at a head that is zero altogether.
TEST(BodyFrame, LeavesAZeroHeadAloneAndSaysSo) {
  const auto init = degenerate_starts().back().init;
  for (const auto mode : kModes) {
    const auto [params, optimizer] =
        train(pursuit(init, /*moving=*/false), turning(init()), turned(mode));
    EXPECT_EQ(optimizer->report().degenerate_channels(), kHeadSize);
    EXPECT_EQ(heads_of(params["query"].tensor)[1].abs().max().item<double>(), 0);
    EXPECT_GT((params["query"].tensor - init()["query"].tensor).norm().item<double>(), 0.1);
  }
}

TEST(BodyFrame, IsRecomputedWhenItIsDueAndWhenItHasDrifted) {
  const auto bed = pursuit([] { return fitting(0.2); });
  const auto count = [&](SecondMoment mode, double drift, int64_t interval) {
    auto treatment = turned(mode);
    treatment.frame_drift = drift;
    treatment.frame_interval = interval;
    return recomputed(*train(bed, turning(fitting(0.2)), treatment).optimizer);
  };
  for (const auto mode : {SecondMoment::body_frame, SecondMoment::body_frame_topk}) {
    EXPECT_EQ(count(mode, 10, 1000), 0);
    EXPECT_EQ(count(mode, 10, 7), kHeads * (kSteps / 7));
    EXPECT_EQ(count(mode, 10, 1), kHeads * kSteps);
    const auto by_drift = count(mode, 0.05, 1000);
    EXPECT_GT(by_drift, 0);
    EXPECT_GT(count(mode, 0.005, 1000), by_drift);
  }
  EXPECT_EQ(count(SecondMoment::transported, 0.005, 1), 0);
}

}  // namespace
}  // namespace ddc::tests
