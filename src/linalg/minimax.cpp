#include "linalg/minimax.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace ddc {
namespace {

// Extended precision, because the equations below lose digits as the interval shrinks around 1.
using Real = long double;

/// x * sum_j weights[j] T_j(s), s the image of x^2 under the affine map of [low^2, high^2] to
/// [-1, 1]. In this basis the equations are well conditioned for intervals of every width; in
/// powers of x they are not.
struct OddChebyshev {
  Real low;
  Real high;
  std::vector<Real> weights;

  Real slope() const { return 2 / (high * high - low * low); }
  Real offset() const { return -(high * high + low * low) / (high * high - low * low); }

  /// The basis at x.
  std::vector<Real> basis(Real x) const {
    const Real s = slope() * x * x + offset();
    std::vector<Real> values(weights.size());
    for (size_t j = 0; j < values.size(); ++j) {
      values[j] = j == 0 ? x : j == 1 ? x * s : 2 * s * values[j - 1] - values[j - 2];
    }
    return values;
  }

  /// 1 - p(x)
  Real error(Real x) const {
    const auto values = basis(x);
    Real result = 1;
    for (size_t j = 0; j < values.size(); ++j) result -= weights[j] * values[j];
    return result;
  }

  /// The coefficients of x, x^3, ...
  std::vector<double> coefficients() const {
    const size_t n = weights.size();
    std::vector<Real> sum(n, 0);
    std::vector<Real> previous(n, 0);
    std::vector<Real> current(n, 0);
    current[0] = 1;
    for (size_t j = 0; j < n; ++j) {
      for (size_t i = 0; i <= j; ++i) sum[i] += weights[j] * current[i];
      const Real factor = j == 0 ? 1 : 2;
      std::vector<Real> next(n, 0);
      for (size_t i = 0; i < n; ++i) {
        next[i] = factor * (offset() * current[i] + (i > 0 ? slope() * current[i - 1] : 0));
        if (j > 0) next[i] -= previous[i];
      }
      previous = std::exchange(current, next);
    }
    return {sum.begin(), sum.end()};
  }
};

/// The solution of a square system, by elimination with row pivots. `rows` have the right side
/// last.
std::vector<Real> solve(std::vector<std::vector<Real>> rows) {
  const size_t n = rows.size();
  for (size_t c = 0; c < n; ++c) {
    size_t pivot = c;
    for (size_t r = c + 1; r < n; ++r) {
      if (std::abs(rows[r][c]) > std::abs(rows[pivot][c])) pivot = r;
    }
    std::swap(rows[c], rows[pivot]);
    for (size_t r = c + 1; r < n; ++r) {
      const Real factor = rows[r][c] / rows[c][c];
      for (size_t k = c; k <= n; ++k) rows[r][k] -= factor * rows[c][k];
    }
  }
  std::vector<Real> x(n);
  for (size_t c = n; c-- > 0;) {
    x[c] = rows[c][n];
    for (size_t k = c + 1; k < n; ++k) x[c] -= rows[c][k] * x[k];
    x[c] /= rows[c][c];
  }
  return x;
}

/// The zero of the error between two points at which its signs differ.
Real zero_between(const OddChebyshev& p, Real low, Real high) {
  const bool negative = p.error(low) < 0;
  for (int i = 0; i < 80; ++i) {
    const Real middle = (low + high) / 2;
    ((p.error(middle) < 0) == negative ? low : high) = middle;
  }
  return (low + high) / 2;
}

/// Where |error| is largest between two neighbouring zeros of it: it has one maximum there.
Real peak_between(const OddChebyshev& p, Real low, Real high) {
  constexpr Real kGolden = 1 / std::numbers::phi_v<Real>;
  for (int i = 0; i < 80; ++i) {
    const Real a = high - kGolden * (high - low);
    const Real b = low + kGolden * (high - low);
    if (std::abs(p.error(a)) < std::abs(p.error(b))) {
      low = a;
    } else {
      high = b;
    }
  }
  return (low + high) / 2;
}

/// The minimax odd polynomial with `count` coefficients and its error, by Remez' exchange: p is
/// best when its error has one size and alternating signs at count + 1 points. These are both ends
/// and the count - 1 positive zeros of p', so all of them are exchanged at once and none has to be
/// searched for on a grid.
std::pair<OddChebyshev, Real> minimax(Real low, Real high, size_t count) {
  OddChebyshev p{low, high, std::vector<Real>(count, 0)};
  std::vector<Real> points(count + 1);
  for (size_t i = 0; i <= count; ++i) {
    const Real angle = std::numbers::pi_v<Real> * static_cast<Real>(i) / static_cast<Real>(count);
    points[i] = (low + high) / 2 - (high - low) / 2 * std::cos(angle);
  }
  points.front() = low;
  points.back() = high;
  Real largest = 0;
  for (int iteration = 0; iteration < 100; ++iteration) {
    std::vector<std::vector<Real>> equations;
    for (size_t i = 0; i <= count; ++i) {
      auto row = p.basis(points[i]);
      row.push_back(i % 2 == 0 ? 1 : -1);
      row.push_back(1);
      equations.push_back(std::move(row));
    }
    auto solution = solve(std::move(equations));
    solution.pop_back();
    p.weights = std::move(solution);

    std::vector<Real> zeros(count);
    for (size_t i = 0; i < count; ++i) zeros[i] = zero_between(p, points[i], points[i + 1]);
    for (size_t i = 1; i < count; ++i) points[i] = peak_between(p, zeros[i - 1], zeros[i]);
    largest = 0;
    Real smallest = std::abs(p.error(low));
    for (const Real x : points) {
      const Real size = std::abs(p.error(x));
      largest = std::max(largest, size);
      smallest = std::min(smallest, size);
    }
    if (largest - smallest <= Real{1e-12} * largest) break;
  }
  return {p, largest};
}

}  // namespace

std::vector<std::vector<double>> odd_minimax_composition(double lower, int steps, int degree) {
  TORCH_CHECK(lower > 0 && lower < 1, "the lower bound must be in (0, 1), got ", lower);
  TORCH_CHECK(steps >= 1, "the number of steps must be >= 1, got ", steps);
  TORCH_CHECK(degree >= 1 && degree % 2 == 1, "the degree must be odd and >= 1, got ", degree);
  const auto count = static_cast<size_t>((degree + 1) / 2);
  // The error falls as the width to the power `count`. On anything narrower it is below double's
  // rounding, and nothing would be left of its signs.
  const Real narrowest = std::pow(Real{1e-16}, Real{1} / static_cast<Real>(count));
  Real low = lower;
  Real high = 1;
  std::vector<std::vector<double>> polynomials;
  for (int step = 0; step < steps; ++step) {
    const auto [p, error] = minimax(low, high, count);
    polynomials.push_back(p.coefficients());
    low = 1 - std::max(error, narrowest);
    high = 1 + std::max(error, narrowest);
  }
  return polynomials;
}

double evaluate_composition(const std::vector<std::vector<double>>& polynomials, double x) {
  for (const auto& coefficients : polynomials) {
    double sum = 0;
    for (size_t i = coefficients.size(); i-- > 0;) sum = sum * x * x + coefficients[i];
    x *= sum;
  }
  return x;
}

}  // namespace ddc
