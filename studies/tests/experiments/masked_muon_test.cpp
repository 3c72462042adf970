// Muon that leaves out the directions in which its momentum has next to nothing.

#include "masked_muon.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "ddc/experiments/catalogue.h"
#include "ddc/experiments/run.h"
#include "ddc/optim/muon.h"
#include "ddc/testbeds/rope_grokking.h"
#include "ddc/testbeds/runs.h"
#include "support/errors.h"
#include "support/testbeds.h"

namespace ddc::experiments {
namespace {

at::Tensor random_matrix(int64_t rows, int64_t cols) {
  return at::randn({rows, cols}, testbeds::test_generator(3), at::TensorOptions(at::kDouble));
}

/// The displacement of the first step, whose momentum is along the gradient.
at::Tensor first_step(const at::Tensor& gradient, const MaskedMuonOptions& options) {
  const TensorView view{"", gradient, {}, {}};
  auto state = MaskedMuonRule::init(view, options);
  return MaskedMuonRule::step(gradient, 1, view, state, options);
}

MaskedMuonOptions masked(const MuonOptions& muon, double threshold = 1e-3) {
  return {muon, threshold};
}

/// Two directions of the six are a millionth of the others.
struct NearlyDeficient {
  at::Tensor u, v, matrix;
  NearlyDeficient() {
    const auto [left, s, right] = at::linalg_svd(random_matrix(8, 6), false);
    u = left;
    v = right.t();
    const auto values = at::tensor({3.0, 2.0, 1.5, 1.0, 1e-6, 1e-6}, at::kDouble);
    matrix = (u * values).matmul(v.t());
  }
};

TEST(MaskedMuon, IsMuonToTheLastBitWhereNothingIsDead) {
  const auto gradient = random_matrix(8, 6);
  const MuonOptions muon{.method = PolarMethod::newton_schulz};
  const TensorView view{"", gradient, {}, {}};
  auto state = MuonRule::init(view, muon);
  const auto expected = MuonRule::step(gradient, 1, view, state, muon);
  EXPECT_TRUE(at::equal(first_step(gradient, masked(muon)), expected));
}

TEST(MaskedMuon, HasNoPartInDeadDirections) {
  const NearlyDeficient problem;
  const auto step = first_step(problem.matrix, masked({.lr = 1, .method = PolarMethod::exact}));
  const auto seen = problem.u.t().matmul(step).matmul(problem.v);
  const auto factor = std::sqrt(8.0 / 6.0);  // of UpdateScale::original
  const auto expected = at::diag(at::tensor({1.0, 1.0, 1.0, 1.0, 0.0, 0.0}, at::kDouble)) * -factor;
  EXPECT_TRUE(at::allclose(seen, expected, 0, 1e-9)) << seen;
}

TEST(MaskedMuon, StepsFullyAlongThemIfNothingIsMasked) {
  const NearlyDeficient problem;
  const auto step = first_step(problem.matrix, masked({.lr = 1, .method = PolarMethod::exact}, 0));
  const auto last = problem.u.t().matmul(step).matmul(problem.v)[5][5].item<double>();
  EXPECT_NEAR(last, -std::sqrt(8.0 / 6.0), 1e-9);
}

TEST(MaskedMuon, StepsWhatIsLeftToAdamAsPlainMuonDoes) {
  const auto bed = testbeds::rope_grokking(
      {.modulus = 7, .sequence = 8, .batch_size = 8, .d_model = 16, .heads = 2, .d_ff = 12});
  // Nothing is masked at a threshold of zero, so that both are plain Muon.
  const Json settings = {{"lr", 0.01}, {"weight_decay", 0.3}, {"adam_lr", 0.002}};
  const auto trained = [&](const char* name, Json given) {
    const auto& entry = optimizer_entry(name);
    given = complete(name, entry.settings, given);
    const auto params = bed.init(1, at::kDouble);
    const auto optimizer = entry.make(given, params, {});
    for (uint64_t step = 0; step < 5; ++step) {
      testbeds::backward(bed, params, bed.batch(step, at::kDouble));
      optimizer->step();
    }
    return params;
  };
  auto unmasked = settings;
  unmasked["threshold"] = 0.0;
  EXPECT_EQ(testbeds::relative_error(trained("masked-muon", unmasked), trained("muon", settings)),
            0);
}

TEST(MaskedMuon, RefusesAThresholdThatMasksEverything) {
  const auto params = testbeds::rope_grokking().init(1, at::kFloat);
  tests::expect_error([&] { Lifted<MaskedMuonRule>(params, {}, masked({}, 1)); },
                      {"threshold must be in [0, 1), got 1"});
  const auto& entry = optimizer_entry("masked-muon");
  tests::expect_error(
      [&] {
        complete("masked-muon", entry.settings, {{"threshold", 1}});
      },
      {"threshold must be in [0, 1), got 1"});
}

}  // namespace
}  // namespace ddc::experiments
