// The compositions of odd polynomials that take [lower, 1] to 1: as good as the theory says, and no
// accident of rounding.

#include "linalg/minimax.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/errors.h"

namespace ddc::tests {
namespace {

using Polynomials = std::vector<std::vector<double>>;

/// max |1 - p(x)| over [low, high], on a grid that is even in log(x).
double largest_error(const Polynomials& polynomials, double low, double high) {
  constexpr int kPoints = 50'000;
  double largest = 0;
  for (int i = 0; i <= kPoints; ++i) {
    const double x = low * std::pow(high / low, static_cast<double>(i) / kPoints);
    largest = std::max(largest, std::abs(1 - evaluate_composition(polynomials, x)));
  }
  return largest;
}

TEST(Minimax, ReachesTheOptimalErrors) {
  EXPECT_NEAR(largest_error(odd_minimax_composition(1e-3, 6, 5), 1e-3, 1), 9.2e-4, 1e-5);
  EXPECT_NEAR(largest_error(odd_minimax_composition(1e-3, 4, 9), 1e-3, 1), 9.8e-3, 1e-4);
}

TEST(Minimax, KnowsThePolynomialOfDegreeOne) {
  // c x with the same error at both ends.
  EXPECT_NEAR(odd_minimax_composition(0.25, 1, 1).at(0).at(0), 2 / 1.25, 1e-15);
}

TEST(Minimax, KnowsTheCubic) {
  // With p' = 0 at m the error has one size at l, m and 1: the classical closed form
  // m^2 = (1 + l + l^2) / 3, p(x) = 2 (3 m^2 x - x^3) / (2 m^3 + l + l^2).
  for (const double l : {1e-3, 0.1, 0.5, 0.99}) {
    const double m2 = (1 + l + l * l) / 3;
    const double scale = 2 / (2 * m2 * std::sqrt(m2) + l + l * l);
    const auto p = odd_minimax_composition(l, 1, 3).at(0);
    EXPECT_NEAR(p.at(0), 3 * m2 * scale, 1e-12) << l;
    EXPECT_NEAR(p.at(1), -scale, 1e-12) << l;
  }
}

/// Local extrema of the error on a fine grid, with their signs; both ends included.
std::vector<double> extrema(const Polynomials& p, double low, double high) {
  constexpr int kPoints = 400'000;
  std::vector<double> errors;
  for (int i = 0; i <= kPoints; ++i) {
    const double x = low + (high - low) * i / kPoints;
    errors.push_back(1 - evaluate_composition(p, x));
  }
  std::vector<double> result{errors.front()};
  for (size_t i = 1; i + 1 < errors.size(); ++i) {
    if ((errors[i] - errors[i - 1]) * (errors[i + 1] - errors[i]) < 0) result.push_back(errors[i]);
  }
  result.push_back(errors.back());
  return result;
}

TEST(Minimax, EquioscillatesAtEveryStep) {
  for (const int degree : {3, 5, 7, 9}) {
    SCOPED_TRACE(degree);
    const auto polynomials = odd_minimax_composition(1e-2, 3, degree);
    double low = 1e-2;
    double high = 1;
    for (const auto& p : polynomials) {
      const double size = largest_error({p}, low, high);
      if (size < 1e-6) break;  // the grid's differences are rounding
      const auto peaks = extrema({p}, low, high);
      ASSERT_EQ(peaks.size(), p.size() + 1);
      for (size_t i = 0; i < peaks.size(); ++i) {
        EXPECT_NEAR(peaks[i], i % 2 == 0 ? size : -size, 1e-4 * size);
      }
      low = 1 - size;
      high = 1 + size;
    }
  }
}

TEST(Minimax, ConvergesToRoundingAndStaysThere) {
  for (const int degree : {3, 5, 9, 13}) {
    for (const double lower : {1e-3, 0.5, 0.999}) {
      SCOPED_TRACE(testing::Message() << "degree " << degree << ", lower bound " << lower);
      EXPECT_LT(largest_error(odd_minimax_composition(lower, 20, degree), lower, 1), 2e-15);
    }
  }
}

TEST(Minimax, NamesAnArgumentThatIsOutOfRange) {
  expect_error([] { odd_minimax_composition(0, 1, 3); }, {"lower bound", "(0, 1)", "0"});
  expect_error([] { odd_minimax_composition(1.5, 1, 3); }, {"lower bound", "1.5"});
  expect_error([] { odd_minimax_composition(0.1, 0, 3); }, {"steps", ">= 1"});
  expect_error([] { odd_minimax_composition(0.1, 1, 4); }, {"degree", "odd", "4"});
}

}  // namespace
}  // namespace ddc::tests
