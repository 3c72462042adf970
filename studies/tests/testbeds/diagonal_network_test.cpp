#include "ddc/testbeds/diagonal_network.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/testbeds.h"

namespace ddc::testbeds {
namespace {

using tests::expect_error;

TEST(DiagonalNetwork, TargetIsTwoSparse) {
  const auto batch = diagonal_network().batch(0, at::kDouble);
  const auto gram = batch.inputs.t().matmul(batch.inputs);
  const auto beta =
      at::linalg_solve(gram, batch.inputs.t().matmul(batch.targets.unsqueeze(1))).squeeze(1);
  const auto sorted = std::get<0>(beta.sort(/*dim=*/0, /*descending=*/true));
  const auto expected = at::zeros({64}, at::kDouble);
  expected.narrow(0, 0, 2).fill_(1);
  EXPECT_TRUE(at::allclose(sorted, expected, 0, 1e-10));
}

TEST(DiagonalNetwork, StartsAlignedAndUnbalanced) {
  const auto params = diagonal_network({.dimension = 4096}).init(0, at::kDouble);
  const auto u = params["u"].tensor.detach();
  const auto v = params["v"].tensor.detach();
  EXPECT_TRUE(at::allclose(u * v, at::full_like(u, 0.09), 1e-12));
  const auto log_ratio = (u / v).log();
  EXPECT_LE(log_ratio.abs().max().item<double>(), 5);
  EXPECT_NEAR(log_ratio.std().item<double>(), 5 / std::sqrt(3.0), 0.1);
}

TEST(DiagonalNetwork, HasOneGaugeChannelPerCoordinate) {
  const auto bed = diagonal_network();
  const auto params = bed.init(0, at::kDouble);
  ASSERT_EQ(bed.gauges(params).size(), 1u);
  EXPECT_EQ(dimension(bed.gauges(params)[0], params), 64);
}

TEST(DiagonalNetwork, VanishesWithOrderTwoAtTheDeadPoint) {
  for (const uint64_t seed : {1, 2}) {
    const auto bed = diagonal_network();
    EXPECT_NEAR(bed.observe(bed.init(seed, at::kDouble)).at("order"), 2.000, 5e-4);
  }
}

TEST(DiagonalNetwork, BadOptionsAreNamed) {
  expect_error([] { diagonal_network({.dimension = 0}); }, {"dimension", "0"});
  expect_error([] { diagonal_network({.dimension = 8, .nonzeros = 9}); }, {"nonzeros", "8", "9"});
}

}  // namespace
}  // namespace ddc::testbeds
