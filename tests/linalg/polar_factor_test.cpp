// How far the singular values of each method's result are from 1, by condition number; that it
// commutes with orthogonal changes of basis; and that no input is bad.

#include "ddc/linalg/polar_factor.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "support/errors.h"
#include "support/matrices.h"

namespace ddc::tests {
namespace {

using Shape = std::pair<int64_t, int64_t>;

constexpr std::array kMethods{PolarMethod::exact, PolarMethod::fast, PolarMethod::sharpen,
                              PolarMethod::newton_schulz};
constexpr std::array kTypes{at::kFloat, at::kDouble};
/// A head, wide, square, and the shortest sides.
constexpr std::array<Shape, 5> kShapes{{{768, 64}, {48, 192}, {96, 96}, {100, 2}, {7, 13}}};

/// A matrix with the singular values `s`, and its polar factor.
struct Sample {
  at::Tensor matrix;
  at::Tensor polar;
};

Sample sample(Shape shape, const at::Tensor& s, uint64_t seed) {
  const auto [rows, cols] = shape;
  const auto u = orthonormal_columns(rows, s.size(0), seed);
  const auto v = orthonormal_columns(cols, s.size(0), seed + 1);
  return {at::matmul(u * s, v.t()), at::matmul(u, v.t())};
}

/// Singular values from 1 down to 1 / condition, even in their logarithms.
at::Tensor spread(Shape shape, double condition) {
  return at::logspace(0, -std::log10(condition), std::min(shape.first, shape.second), 10.0,
                      at::kDouble);
}

double spectral_norm(const at::Tensor& m) {
  return at::linalg_matrix_norm(m.to(at::kDouble), 2).max().item<double>();
}

/// Smallest and largest singular value.
std::pair<double, double> singular_range(const at::Tensor& m) {
  const auto s = at::linalg_svdvals(m.to(at::kDouble));
  return {s.min().item<double>(), s.max().item<double>()};
}

/// max |sigma - 1| of the result.
double sigma_error(const at::Tensor& m, PolarMethod method) {
  const auto [low, high] = singular_range(polar_factor(m, method));
  return std::max(1 - low, high - 1);
}

/// Runs check(type, shape, condition, sample in that type).
template <class Check>
void for_conditions(std::initializer_list<double> conditions, const Check& check) {
  uint64_t seed = 1;
  for (const auto type : kTypes) {
    for (const auto& shape : kShapes) {
      for (const double condition : conditions) {
        SCOPED_TRACE(testing::Message() << type << ' ' << shape.first << 'x' << shape.second
                                        << ", condition " << condition);
        auto [matrix, polar] = sample(shape, spread(shape, condition), seed += 2);
        check(type, condition, Sample{matrix.to(type), polar});
      }
    }
  }
}

// Rounding that an optimizer would step by: it brings units to life that have no gradient.
TEST(PolarFactor, RowsAndColumnsOfZerosStayZeroToTheLastBit) {
  for (const auto method : kMethods) {
    for (const auto type : kTypes) {
      for (const auto& [rows, cols] : kShapes) {
        SCOPED_TRACE(testing::Message()
                     << to_string(method) << ' ' << type << ' ' << rows << 'x' << cols);
        auto matrix = normal({rows, cols}, 3).to(type);
        matrix.select(0, rows / 2).zero_();
        matrix.select(1, cols - 1).zero_();
        const auto polar = polar_factor(matrix, method);
        EXPECT_EQ(polar.select(0, rows / 2).count_nonzero().item<int64_t>(), 0);
        EXPECT_EQ(polar.select(1, cols - 1).count_nonzero().item<int64_t>(), 0);
        EXPECT_GT(polar.count_nonzero().item<int64_t>(), 0);
      }
    }
  }
}

TEST(PolarFactorExact, HasSingularValuesOfOneForEveryCondition) {
  for_conditions({1e1, 1e2, 1e3, 1e4}, [](at::ScalarType type, double condition, const Sample& x) {
    const auto u = polar_factor(x.matrix);
    EXPECT_LT(sigma_error(x.matrix, PolarMethod::exact), type == at::kDouble ? 1e-14 : 2e-7);
    // The input's own rounding moves its singular vectors by as much as its smallest singular value
    // allows.
    const double eps = type == at::kDouble ? 1e-15 : 1e-7;
    EXPECT_LT(spectral_norm(u.to(at::kDouble) - x.polar), 10 * eps * condition);
    EXPECT_EQ(u.scalar_type(), type);
    EXPECT_TRUE(u.is_contiguous());
  });
}

// Matrices that are widened in several parts, and whose Gram matrix is made in several panels.
TEST(PolarFactorExact, IsThatOfTheWholeMatrixWhereItIsMadeInParts) {
  for (const Shape& shape : {Shape{1500, 250}, Shape{250, 1500}, Shape{600, 600}}) {
    SCOPED_TRACE(testing::Message() << shape.first << 'x' << shape.second);
    auto x = sample(shape, spread(shape, 1e4), 31).matrix.to(at::kFloat);
    x.select(0, 7).zero_();
    x.select(1, 201).zero_();
    const auto u = polar_factor(x);
    const auto [left, s, right] = at::linalg_svd(x.to(at::kDouble), /*full_matrices=*/false);
    const auto kept = (s > 1e-10).to(at::kDouble);
    EXPECT_LT(spectral_norm(u.to(at::kDouble) - at::matmul(left * kept, right)), 1e-6);
    EXPECT_EQ(u.select(0, 7).count_nonzero().item<int64_t>(), 0);
    EXPECT_EQ(u.select(1, 201).count_nonzero().item<int64_t>(), 0);
  }
}

TEST(PolarFactorFast, ReachesItsErrorToConditionThousand) {
  for_conditions({1e1, 1e2, 1e3}, [](at::ScalarType, double condition, const Sample& x) {
    // The bound of the normalisation is a little more than the largest singular value, so
    // that the smallest of the last ones are a little below 1e-3.
    const double slack = condition < 1e3 ? 1.05 : 2;
    EXPECT_LT(sigma_error(x.matrix, PolarMethod::fast), slack * 9.2e-4);
    EXPECT_LT(sigma_error(x.matrix, PolarMethod::sharpen), slack * 9.9e-3);
  });
}

TEST(PolarFactorFast, ReachesItsErrorForTheWorstSpectra) {
  // Where trace and Frobenius norm say the least about the largest singular value, and the most.
  for (const auto& shape : kShapes) {
    for (const bool one_small : {true, false}) {
      SCOPED_TRACE(testing::Message() << shape.first << 'x' << shape.second << ", "
                                      << (one_small ? "one small" : "one large"));
      auto s = at::full({std::min(shape.first, shape.second)}, one_small ? 1.0 : 1e-3, at::kDouble);
      s[0] = one_small ? 1e-3 : 1.0;
      const auto matrix = sample(shape, s, 5).matrix.to(at::kFloat);
      EXPECT_LT(sigma_error(matrix, PolarMethod::fast), 2 * 9.2e-4);
      EXPECT_LT(sigma_error(matrix, PolarMethod::sharpen), 2 * 9.8e-3);
    }
  }
}

TEST(PolarFactorFast, DoesNotOvershootForSmallerSingularValues) {
  for (const auto method : {PolarMethod::fast, PolarMethod::sharpen}) {
    SCOPED_TRACE(to_string(method));
    for (const auto type : kTypes) {
      const Shape shape{64, 32};
      const auto x = sample(shape, spread(shape, 1e4), 3);
      const auto [low, high] = singular_range(polar_factor(x.matrix.to(type), method));
      EXPECT_GT(low, 0.1);
      EXPECT_LT(high, 1.01);
    }
  }
}

TEST(PolarFactorNewtonSchulz, DoesToSingularValuesWhatItsPolynomialDoes) {
  for_conditions({1e1, 1e2, 1e3}, [](at::ScalarType type, double, const Sample& x) {
    auto s = std::get<1>(at::linalg_svd(x.matrix.to(at::kDouble), /*full_matrices=*/false));
    s = s / at::linalg_vector_norm(s);
    const bool in_range = s.min().item<double>() > 1.5e-3;
    for (int i = 0; i < 5; ++i) s = 3.4445 * s - 4.7750 * s.pow(3) + 2.0315 * s.pow(5);
    const auto u = polar_factor(x.matrix, PolarMethod::newton_schulz);
    const auto found = std::get<0>(at::linalg_svdvals(u.to(at::kDouble)).sort());
    const auto expected = std::get<0>(s.sort());
    EXPECT_LT((found - expected).abs().max().item<double>(), type == at::kDouble ? 1e-12 : 2e-5);
    const auto [low, high] = singular_range(u);
    EXPECT_LT(high, 1.21);
    if (in_range) {
      EXPECT_GT(low, 0.67);
    }
  });
}

/// What polar(A m B) may differ from A polar(m) B.
double equivariance_bound(PolarMethod method, at::ScalarType type, double condition) {
  const bool wide = type == at::kDouble;
  switch (method) {
    case PolarMethod::exact:  // the rounding of A m B itself
      return (wide ? 2e-15 : 1e-7) * std::max(condition, 10.0);
    case PolarMethod::fast:
    case PolarMethod::sharpen:  // the rounding of the Gram matrix
      return wide ? 1e-11 : condition < 1e3 ? 5e-4 : 5e-3;
    case PolarMethod::newton_schulz:
      return wide ? 1e-13 : 5e-5;
  }
  return 0;
}

TEST(PolarFactor, CommutesWithOrthogonalChangesOfBasis) {
  for (const auto method : kMethods) {
    SCOPED_TRACE(to_string(method));
    for_conditions({1e1, 1e2, 1e3}, [&](at::ScalarType type, double condition, const Sample& x) {
      const auto a = orthonormal_columns(x.matrix.size(0), x.matrix.size(0), 11);
      const auto b = orthonormal_columns(x.matrix.size(1), x.matrix.size(1), 12);
      const auto in_basis = [&](const at::Tensor& m) {
        return at::matmul(at::matmul(a, m.to(at::kDouble)), b);
      };
      const auto moved = polar_factor(in_basis(x.matrix).to(type), method);
      const auto expected = in_basis(polar_factor(x.matrix, method));
      EXPECT_LT(spectral_norm(moved.to(at::kDouble) - expected),
                equivariance_bound(method, type, condition));
    });
  }
}

TEST(PolarFactor, IsTheTransposedOfTheTransposed) {
  for (const auto method : kMethods) {
    SCOPED_TRACE(to_string(method));
    for (const auto& [rows, cols] : kShapes) {
      const auto m = normal({rows, cols}, 1);
      EXPECT_LT(spectral_norm(polar_factor(m.t(), method) - polar_factor(m, method).t()), 1e-9);
    }
  }
}

TEST(PolarFactor, DoesNotSeeTheScale) {
  for (const auto method : kMethods) {
    SCOPED_TRACE(to_string(method));
    for (const auto type : kTypes) {
      const auto m = normal({24, 16}, 1);
      const auto u = polar_factor(m.to(type), method);
      for (const double scale : {1e-36, 1e-30, 1e30, 1e37}) {
        const auto scaled = polar_factor((m * scale).to(type), method);
        EXPECT_LT(spectral_norm(scaled - u), type == at::kDouble ? 1e-11 : 5e-4) << scale;
      }
      // A power of 2 changes no digit of the input, and none of the result.
      EXPECT_TRUE(at::equal(polar_factor(m.to(type) * 1024, method), u));
    }
    // Subnormal numbers have few digits left.
    const auto m = normal({24, 16}, 1);
    const auto subnormal = polar_factor((m * 1e-41).to(at::kFloat), method);
    EXPECT_LT(spectral_norm(subnormal - polar_factor(m.to(at::kFloat), method)), 1e-2);
    EXPECT_LT(sigma_error(m * 1e-305, PolarMethod::exact), 1e-13);
    EXPECT_TRUE(polar_factor(m * 1e-310, method).isfinite().all().item<bool>());
  }
}

TEST(PolarFactor, OfZeroIsZero) {
  for (const auto method : kMethods) {
    SCOPED_TRACE(to_string(method));
    for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      for (const auto& [rows, cols] : kShapes) {
        EXPECT_TRUE(at::equal(polar_factor(at::zeros({rows, cols}, type), method),
                              at::zeros({rows, cols}, type)));
      }
    }
    auto stack = normal({3, 5, 4}, 1).to(at::kFloat);
    stack[1].zero_();
    const auto u = polar_factor(stack, method);
    EXPECT_EQ(u[1].abs().max().item<float>(), 0);
    EXPECT_GT(singular_range(u[0]).first, 0.3);
  }
}

TEST(PolarFactor, OfLowRankIsAPartialIsometry) {
  for (const auto method : kMethods) {
    SCOPED_TRACE(to_string(method));
    for (const auto type : kTypes) {
      for (const auto& shape : kShapes) {
        for (const int64_t rank : {1, 2}) {
          const auto x = sample(shape, at::linspace(1, 0.5, rank, at::kDouble), 21);
          const auto s =
              at::linalg_svdvals(polar_factor(x.matrix.to(type), method).to(at::kDouble));
          const auto kept = s.slice(0, 0, rank);
          const auto null = s.slice(0, rank);
          const double tolerance = method == PolarMethod::exact ? 2e-7 : 1e-2;
          if (method != PolarMethod::newton_schulz) {
            EXPECT_LT((kept - 1).abs().max().item<double>(), tolerance);
          }
          // Rounding noise of 1e-7 times the slopes at 0, 2e3 in all.
          const double noise = method == PolarMethod::exact ? 2e-7 : 1e-3;
          if (null.numel() > 0) {
            EXPECT_LT(null.max().item<double>(), noise);
          }
        }
      }
    }
  }
}

TEST(PolarFactor, OfVectorsIsTheirDirection) {
  for (const auto type : kTypes) {
    const auto v = normal({17}, 1).to(type);
    const auto direction = v / at::linalg_vector_norm(v);
    for (const auto method : {PolarMethod::exact, PolarMethod::fast, PolarMethod::sharpen}) {
      SCOPED_TRACE(to_string(method));
      const double tolerance = method == PolarMethod::exact ? 1e-6 : 1e-2;
      EXPECT_LT(spectral_norm(polar_factor(v.view({1, 17}), method) - direction.view({1, 17})),
                tolerance);
      EXPECT_LT(spectral_norm(polar_factor(v.view({17, 1}), method) - direction.view({17, 1})),
                tolerance);
      EXPECT_NEAR(polar_factor(at::full({1, 1}, -3, type), method).item<double>(), -1, tolerance);
    }
  }
}

TEST(PolarFactor, OfNothingIsNothing) {
  for (const auto method : kMethods) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{0, 3}, {3, 0}, {0, 0}, {0, 2, 3}, {2, 0, 3}}) {
      EXPECT_EQ(polar_factor(at::empty(shape), method).sizes(), at::IntArrayRef(shape));
    }
  }
}

/// Runs on so many threads, and then on as many as before.
class Threads {
 public:
  explicit Threads(int count) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_ = at::get_num_threads();
};

TEST(PolarFactor, OfAStackIsThatOfEachMatrix) {
  for (const int count : {1, 2, 16}) {
    const Threads threads(count);
    for (const auto method : kMethods) {
      SCOPED_TRACE(testing::Message() << to_string(method) << " on " << count << " threads");
      for (const auto type : kTypes) {
        const auto stack = normal({2, 3, 9, 5}, 1).to(type);
        const auto permuted = stack.permute({1, 0, 3, 2});
        const auto u = polar_factor(stack, method);
        const auto v = polar_factor(permuted, method);
        for (int64_t i = 0; i < 2; ++i) {
          for (int64_t j = 0; j < 3; ++j) {
            EXPECT_TRUE(at::equal(u[i][j], polar_factor(stack[i][j], method)));
            EXPECT_TRUE(at::equal(v[j][i], polar_factor(permuted[j][i], method)));
          }
        }
      }
    }
  }
}

TEST(PolarFactor, TakesNarrowTypesAndTensorsThatNeedGradients) {
  for (const auto method : kMethods) {
    SCOPED_TRACE(to_string(method));
    for (const auto type : {at::kBFloat16, at::kHalf}) {
      auto m = normal({24, 16}, 1).to(type).requires_grad_();
      const auto u = polar_factor(m, method);
      EXPECT_EQ(u.scalar_type(), type);
      EXPECT_FALSE(u.requires_grad());
      EXPECT_FALSE(polar_factor(at::stack({m, m}), method).requires_grad());
      const auto reference = polar_factor(m.detach().to(at::kFloat), method);
      const bool in_type = method == PolarMethod::newton_schulz;
      EXPECT_LT((u.detach().to(at::kFloat) - reference).abs().max().item<double>(),
                in_type ? 0.05 : 4e-3);
    }
  }
}

TEST(PolarFactor, NamesWhatItCannotTake) {
  expect_error([] { polar_factor(at::ones({3})); }, {"matrix", "1 axes", "[3]"});
  expect_error([] { polar_factor(at::ones({})); }, {"matrix", "0 axes"});
  expect_error([] { polar_factor(at::ones({3, 3}, at::kLong)); }, {"float32", "Long"});
  expect_error([] { polar_factor(at::ones({3, 3}, at::kComplexFloat)); }, {"ComplexFloat"});
}

}  // namespace
}  // namespace ddc::tests
