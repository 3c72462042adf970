// Moves of heads in loops over raw memory, beside what they are meant to do and what decompositions find.

#include "kernels/heads.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cmath>

#include "coordinates/blocks.h"

namespace ddc::tests {
namespace {

constexpr double kRounding = 1e-14;
constexpr int64_t kEntries = 200;

/// Both sides of a head before and after a step; balanced before.
struct Head {
  Head(int64_t size, double step) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(size));
    const auto random = [&] { return at::randn({size, kEntries}, generator, at::kDouble); };
    // Singular values over three orders of magnitude.
    before = random() * at::logspace(0, -3, size, 10.0, at::kDouble).unsqueeze(1);
    plus = before + random() * before.abs().mean(1, true) * step;
    minus = before + random() * before.abs().mean(1, true) * step;
  }
  int64_t size() const { return before.size(0); }

  at::Tensor before, plus, minus;
};

struct Moved {
  at::Tensor plus, minus, factor, dual;
};

Moved moved(const Head& head, bool balances, bool turns, double rounding = kRounding) {
  const auto p = head.plus.mm(head.plus.t());
  const auto m = head.minus.mm(head.minus.t());
  const auto turned_plus = head.before.mm(head.plus.t());
  const auto turned_minus = head.before.mm(head.minus.t());
  Moved result{{}, {}, at::empty_like(p), at::empty_like(p)};
  const auto of = [](const at::Tensor& x, bool given) {
    return given ? x.const_data_ptr<double>() : nullptr;
  };
  kernels::HeadMove move{head.size(),
                         of(p, balances),
                         of(m, balances),
                         of(turned_plus, turns),
                         of(turned_minus, turns),
                         result.factor.mutable_data_ptr<double>(),
                         result.dual.mutable_data_ptr<double>()};
  if (!kernels::find_move(move, rounding)) {
    const auto basis = std::get<1>(at::linalg_eigh(p + m)).t().contiguous();
    move.basis = basis.const_data_ptr<double>();
    EXPECT_TRUE(kernels::find_move(move, rounding));
  }
  result.plus = result.factor.mm(head.plus);
  result.minus = result.dual.mm(head.minus);
  return result;
}

double relative(const at::Tensor& difference, const at::Tensor& to) {
  return (difference.norm() / to.norm()).item<double>();
}

double imbalance(const at::Tensor& plus, const at::Tensor& minus) {
  const auto p = plus.mm(plus.t());
  return relative(p - minus.mm(minus.t()), p);
}

double turn(const Head& head, const at::Tensor& plus, const at::Tensor& minus) {
  const auto overlap = head.before.mm(plus.t()) + head.before.mm(minus.t());
  return relative(overlap - overlap.t(), overlap);
}

TEST(HeadMove, BalancesAndTurnsBack) {
  for (const int64_t size : {1, 3, 16, 33, 64}) {
    for (const double step : {1e-6, 1e-3, 3e-2}) {
      const Head head(size, step);
      const auto both = moved(head, true, true);
      EXPECT_LE(imbalance(both.plus, both.minus), 1e-11) << size << " " << step;
      EXPECT_LE(turn(head, both.plus, both.minus), 1e-11) << size << " " << step;
      // What the network computes stays as it is.
      EXPECT_LE(relative(both.dual.t().mm(both.factor) - at::eye(size, at::kDouble),
                         at::eye(size, at::kDouble)),
                1e-13)
          << size << " " << step;
      EXPECT_TRUE(size == 1 || turn(head, head.plus, head.minus) > 1e-9);
      EXPECT_GT(imbalance(head.plus, head.minus), 1e-9);

      const auto turned = moved(head, false, true);
      EXPECT_LE(turn(head, turned.plus, turned.minus), 1e-11) << size << " " << step;
      EXPECT_LE(relative(turned.factor.t().mm(turned.factor) - at::eye(size, at::kDouble),
                         at::eye(size, at::kDouble)),
                1e-13);
      EXPECT_TRUE(at::allclose(turned.factor, turned.dual, 1e-13, 1e-13));

      const auto balanced = moved(head, true, false);
      EXPECT_LE(imbalance(balanced.plus, balanced.minus), 1e-11) << size << " " << step;
      EXPECT_LE(relative(balanced.factor - balanced.factor.t(), balanced.factor), 1e-2 * step);
    }
  }
}

/// Generator of the move that is left, in the sizes of the directions themselves.
double generator_left(const at::Tensor& p, const at::Tensor& m) {
  const auto [values, vectors] = at::linalg_eigh(p + m);
  const auto apart = vectors.t().mm(m - p).mm(vectors);
  return (apart / (values.unsqueeze(0) + values.unsqueeze(1))).norm().item<double>();
}

/// Training turns heads out of the basis in which their Gram matrices were diagonal.
TEST(HeadMove, IsFoundWhereGramMatricesAreRotatedAndIllConditioned) {
  auto random = at::make_generator<at::CPUGeneratorImpl>(5);
  const auto normal = [&](int64_t rows, int64_t columns) {
    return at::randn({rows, columns}, random, at::kDouble);
  };
  for (const int64_t size : {8, 64}) {
    for (const double condition : {1e2, 1e3, 1e4, 1e5, 1e6}) {
      const auto turn = std::get<0>(at::linalg_qr(normal(size, size)));
      const auto singular = at::logspace(0, -0.5 * std::log10(condition), size, 10.0, at::kDouble);
      const auto side = [&] {
        const auto right = std::get<0>(at::linalg_qr(normal(6 * size, size))).t();
        return turn.mm(singular.unsqueeze(1) * right);
      };
      const auto before_plus = side();
      const auto before_minus = side();
      const auto after = [&](const at::Tensor& x) {
        return x + 1e-3 * x.std() * normal(size, 6 * size);
      };
      const auto plus = after(before_plus);
      const auto minus = after(before_minus);
      const auto p = plus.mm(plus.t());
      const auto m = minus.mm(minus.t());
      const auto turned_plus = before_plus.mm(plus.t());
      const auto turned_minus = before_minus.mm(minus.t());
      auto factor = at::empty_like(p);
      auto dual = at::empty_like(p);
      kernels::HeadMove head{size,
                             p.const_data_ptr<double>(),
                             m.const_data_ptr<double>(),
                             turned_plus.const_data_ptr<double>(),
                             turned_minus.const_data_ptr<double>(),
                             factor.mutable_data_ptr<double>(),
                             dual.mutable_data_ptr<double>()};
      for (const double rounding : {1e-6, kRounding}) {
        SCOPED_TRACE(testing::Message() << size << ", condition " << condition << ", " << rounding);
        head.basis = nullptr;
        const bool as_it_stands = kernels::find_move(head, rounding);
        const auto basis = std::get<1>(at::linalg_eigh(p + m)).t().contiguous();
        if (!as_it_stands) {
          head.basis = basis.const_data_ptr<double>();
          EXPECT_TRUE(kernels::find_move(head, rounding));
        }
        // What says that it found the move did.
        EXPECT_GT(generator_left(p, m), 1e-3);
        EXPECT_LE(generator_left(factor.mm(p).mm(factor.t()), dual.mm(m).mm(dual.t())),
                  std::max(10 * rounding, 1e-9));
        const auto overlap = turned_plus.mm(factor.t()) + turned_minus.mm(dual.t());
        EXPECT_LE(relative(overlap - overlap.t(), overlap), std::max(10 * rounding, 1e-9));
        EXPECT_LE((dual.t().mm(factor) - at::eye(size, at::kDouble)).norm().item<double>(), 1e-11);
        // (Which they are not here, so that the basis has been needed.)
        EXPECT_FALSE(as_it_stands && condition >= 1e4 && size > 8);
      }
    }
  }
}

TEST(HeadMove, IsThatOfDecompositions) {
  for (const int64_t size : {3, 16, 64}) {
    const Head head(size, 1e-3);
    const auto p = head.plus.mm(head.plus.t());
    const auto m = head.minus.mm(head.minus.t());
    // The balance is found up to a rotation.
    const auto balance = exact_balancing_factor(p.unsqueeze(0), m.unsqueeze(0)).squeeze(0);
    const auto factor = moved(head, true, false).factor;
    EXPECT_LE(relative(factor.t().mm(factor) - balance.mm(balance), balance), 1e-9) << size;
    const auto overlap = head.before.mm((head.plus + head.minus).t());
    const auto [u, s, vh] = at::linalg_svd(overlap, /*full_matrices=*/false);
    const auto turn = moved(head, false, true).factor;
    EXPECT_LE(relative(turn - u.mm(vh), turn), 1e-9) << size;
  }
}

TEST(HeadMove, LeavesRoundingAndWhatNothingFixes) {
  const Head head(16, 1e-3);
  const auto little = moved(head, true, true, /*rounding=*/1);
  EXPECT_TRUE(at::equal(little.factor, at::eye(16, at::kDouble)));
  // Directions in which both sides are empty.
  Head half = head;
  for (auto* each : {&half.before, &half.plus, &half.minus}) {
    each->copy_(each->clone().slice(0, 0, 8).repeat({2, 1}) *
                (at::arange(16, at::kDouble) < 8).unsqueeze(1));
  }
  const auto both = moved(half, true, true);
  EXPECT_LE(imbalance(both.plus, both.minus), 1e-11);
  for (const auto& matrix : {both.factor, both.dual}) {
    EXPECT_TRUE(at::equal(matrix.slice(0, 8).slice(1, 8), at::eye(8, at::kDouble)));
    EXPECT_EQ(matrix.slice(0, 0, 8).slice(1, 8).abs().max().item<double>(), 0);
  }
}

}  // namespace
}  // namespace ddc::tests
