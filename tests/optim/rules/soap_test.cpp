#include "ddc/optim/rules/soap.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "ddc/optim/rules/adam.h"
#include "support/rules.h"

namespace ddc::tests {
namespace {

using rules::SoapMoments;
using rules::SoapSettings;

constexpr int64_t kMany = 1 << 20;

Rule soap_rule(const SoapSettings& settings) {
  auto moments = std::make_shared<SoapMoments>();
  return [moments, settings](const at::Tensor& gradient, int64_t step) {
    return rules::soap(gradient, step, *moments, settings);
  };
}

std::vector<at::Tensor> tensors_of(const SoapMoments& m) {
  return {m.exp_avg,     m.exp_avg_sq,  m.left,         m.right, m.left_basis,
          m.right_basis, m.left_values, m.right_values, m.unit};
}

/// A matrix of numbers, for a reference without tensor operations.
struct Matrix {
  Matrix(int64_t r, int64_t c)
      : rows(static_cast<size_t>(r)), columns(static_cast<size_t>(c)), entries(rows * columns) {}
  double& operator()(size_t i, size_t j) { return entries[i * columns + j]; }
  double operator()(size_t i, size_t j) const { return entries[i * columns + j]; }

  size_t rows;
  size_t columns;
  std::vector<double> entries;
};

Matrix zeros_like(const Matrix& m) {
  return {static_cast<int64_t>(m.rows), static_cast<int64_t>(m.columns)};
}

Matrix transposed(const Matrix& m) {
  Matrix result(static_cast<int64_t>(m.columns), static_cast<int64_t>(m.rows));
  for (size_t i = 0; i < m.rows; ++i) {
    for (size_t j = 0; j < m.columns; ++j) result(j, i) = m(i, j);
  }
  return result;
}

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix result(static_cast<int64_t>(a.rows), static_cast<int64_t>(b.columns));
  for (size_t i = 0; i < a.rows; ++i) {
    for (size_t j = 0; j < b.columns; ++j) {
      for (size_t k = 0; k < a.columns; ++k) result(i, j) += a(i, k) * b(k, j);
    }
  }
  return result;
}

Matrix identity(size_t n) {
  Matrix result(static_cast<int64_t>(n), static_cast<int64_t>(n));
  for (size_t i = 0; i < n; ++i) result(i, i) = 1;
  return result;
}

/// Eigenvectors (in columns) by Jacobi's rotations; the eigenvalues are left on m's diagonal. They are
/// in no order, other than those of the rule's solver.
Matrix eigenvectors_(Matrix& m) {
  const size_t n = m.rows;
  auto vectors = identity(n);
  for (int sweep = 0; sweep < 30; ++sweep) {
    for (size_t p = 0; p < n; ++p) {
      for (size_t q = p + 1; q < n; ++q) {
        if (m(p, q) == 0) continue;
        const double angle = 0.5 * std::atan2(2 * m(p, q), m(q, q) - m(p, p));
        const double c = std::cos(angle);
        const double s = std::sin(angle);
        auto turn = identity(n);
        turn(p, p) = turn(q, q) = c;
        turn(p, q) = s;
        turn(q, p) = -s;
        m = product(transposed(turn), product(m, turn));
        vectors = product(vectors, turn);
      }
    }
  }
  return vectors;
}

/// One axis of the reference: the factor of the rows of what it is given, and its basis.
struct Side {
  Side(bool is_on, size_t n)
      : on(is_on), factor(zeros_like(identity(n))), basis(identity(n)), is_null(n, is_on) {}

  /// Second moments in the new basis, for an update of the basis.
  Matrix turn_(const Matrix& squares) {
    if (!on) return squares;
    auto diagonal = factor;
    const auto now = eigenvectors_(diagonal);
    double largest = 0;
    for (size_t i = 0; i < is_null.size(); ++i) largest = std::max(largest, diagonal(i, i));
    for (size_t i = 0; i < is_null.size(); ++i) is_null[i] = diagonal(i, i) < 1e-12 * largest;
    auto result = zeros_like(squares);
    for (size_t i = 0; i < squares.rows; ++i) {
      for (size_t k = 0; k < squares.rows; ++k) {
        double cosine = 0;
        for (size_t l = 0; l < squares.rows; ++l) cosine += now(l, i) * basis(l, k);
        for (size_t j = 0; j < squares.columns; ++j) {
          result(i, j) += cosine * cosine * squares(k, j);
        }
      }
    }
    basis = now;
    return result;
  }

  Matrix shared(Matrix squares) const {
    for (size_t j = 0; j < squares.columns; ++j) {
      double sum = 0;
      double count = 0;
      for (size_t i = 0; i < squares.rows; ++i) {
        if (!is_null[i]) continue;
        sum += squares(i, j);
        count += 1;
      }
      for (size_t i = 0; i < squares.rows; ++i) {
        if (is_null[i]) squares(i, j) = sum / count;
      }
    }
    return squares;
  }

  void add_(const Matrix& g, double beta) {
    const auto now = product(g, transposed(g));
    for (size_t i = 0; i < now.entries.size(); ++i) {
      factor.entries[i] = beta * factor.entries[i] + (1 - beta) * now.entries[i];
    }
  }

  bool on;
  Matrix factor;
  Matrix basis;
  std::vector<bool> is_null;
};

/// SOAP of one matrix by loops over numbers.
class Reference {
 public:
  Reference(int64_t rows, int64_t columns, bool left, bool right, const SoapSettings& settings)
      : settings_(settings),
        left_(left, static_cast<size_t>(rows)),
        right_(right, static_cast<size_t>(columns)),
        first_(rows, columns),
        second_(rows, columns) {}

  Matrix operator()(const Matrix& g) {
    const double beta = settings_.shampoo_beta.value_or(settings_.beta2);
    left_.add_(g, beta);
    right_.add_(transposed(g), beta);
    if (step_ % settings_.precondition_every == 0) {
      second_ = transposed(right_.turn_(transposed(left_.turn_(second_))));
      second_ = share(second_);
    }
    ++step_;
    auto squares = project(g);
    for (auto& x : squares.entries) x *= x;
    squares = share(squares);
    for (size_t i = 0; i < g.entries.size(); ++i) {
      first_.entries[i] =
          settings_.beta1 * first_.entries[i] + (1 - settings_.beta1) * g.entries[i];
      second_.entries[i] =
          settings_.beta2 * second_.entries[i] + (1 - settings_.beta2) * squares.entries[i];
    }
    auto direction = project(first_);
    const auto threshold = noise();
    const auto t = static_cast<double>(step_);
    for (size_t i = 0; i < g.entries.size(); ++i) {
      const double first = direction.entries[i] / (1 - std::pow(settings_.beta1, t));
      const double second = second_.entries[i] / (1 - std::pow(settings_.beta2, t));
      const bool is_signal = second_.entries[i] > threshold.entries[i];
      direction.entries[i] =
          is_signal ? -settings_.lr * first / (std::sqrt(second) + settings_.eps) : 0;
    }
    return product(left_.basis, product(direction, transposed(right_.basis)));
  }

 private:
  Matrix project(const Matrix& m) const {
    return product(transposed(left_.basis), product(m, right_.basis));
  }
  Matrix share(const Matrix& squares) const {
    return transposed(right_.shared(transposed(left_.shared(squares))));
  }

  /// Second moments that are rounding errors of the projections.
  Matrix noise() const {
    auto result = zeros_like(second_);
    if (!left_.on && !right_.on) return result;
    for (size_t i = 0; i < second_.rows; ++i) {
      for (size_t j = 0; j < second_.columns; ++j) {
        for (size_t k = left_.on ? 0 : i; k < (left_.on ? second_.rows : i + 1); ++k) {
          for (size_t l = right_.on ? 0 : j; l < (right_.on ? second_.columns : j + 1); ++l) {
            result(i, j) += 1e-24 * second_(k, l);
          }
        }
      }
    }
    return result;
  }

  SoapSettings settings_;
  Side left_;
  Side right_;
  Matrix first_;
  Matrix second_;
  int64_t step_ = 0;
};

struct Case {
  std::vector<int64_t> shape;
  bool left = true;
  bool right = true;
  int64_t max_dim = kMany;
  bool precondition_vectors = false;
};

/// Rows of the shape as matrices are seen.
int64_t rows_of(const std::vector<int64_t>& shape) {
  return shape.size() == 3 ? shape[1] : shape.at(0);
}

/// The rule against one reference per matrix of the stack. Returns the largest relative error.
double error_against_reference(const Case& c, SoapSettings settings, at::ScalarType type) {
  settings.max_dim = c.max_dim;
  settings.precondition_vectors = c.precondition_vectors;
  const auto gradients = drawn_gradients(c.shape, 25, 3, type);
  const int64_t stack = c.shape.size() == 3 ? c.shape[0] : 1;
  const int64_t rows = rows_of(c.shape);
  const int64_t columns = gradients.front().numel() / (rows * stack);
  std::vector<Reference> references(static_cast<size_t>(stack),
                                    Reference(rows, columns, c.left, c.right, settings));
  std::vector<at::Tensor> expected;
  for (const auto& gradient : gradients) {
    const auto matrices = gradient.to(at::kDouble).reshape({stack, rows, columns}).contiguous();
    auto result = at::empty_like(matrices);
    for (int64_t i = 0; i < stack; ++i) {
      Matrix g(rows, columns);
      const double* from = matrices[i].const_data_ptr<double>();
      std::copy(from, from + rows * columns, g.entries.begin());
      const auto moved = references[static_cast<size_t>(i)](g);
      std::copy(moved.entries.begin(), moved.entries.end(), result[i].mutable_data_ptr<double>());
    }
    expected.push_back(result.reshape(c.shape));
  }
  return largest_error(displacements(soap_rule(settings), gradients), expected);
}

const std::vector<Case> kCases{
    {.shape = {5, 5}},
    {.shape = {7, 3}},
    {.shape = {3, 7}},
    {.shape = {1, 1}},
    {.shape = {6}, .left = false, .right = false},
    {.shape = {6}, .right = false, .precondition_vectors = true},
    {.shape = {4, 5, 3}},
    {.shape = {4, 2, 3, 2}},
    {.shape = {7, 3}, .left = false, .max_dim = 4},
    {.shape = {3, 7}, .right = false, .max_dim = 4},
    {.shape = {2, 3, 7}, .right = false, .max_dim = 4},
    {.shape = {5, 6}, .left = false, .right = false, .max_dim = 4},
};

TEST(SoapRule, EqualsItsDefinition) {
  const std::vector<SoapSettings> variants{
      {},
      {.beta1 = 0.9, .beta2 = 0.99, .shampoo_beta = 0.8, .precondition_every = 3},
      {.beta1 = 0, .beta2 = 0.9, .eps = 1e-3, .precondition_every = 1},
      {.eps = 1e-3}};
  for (const auto& settings : variants) {
    for (const auto& c : kCases) {
      const double error = error_against_reference(c, settings, at::kDouble);
      EXPECT_LT(error, 1e-11) << at::IntArrayRef(c.shape) << " max_dim " << c.max_dim << " every "
                              << settings.precondition_every << " eps " << settings.eps;
    }
  }
}

TEST(SoapRule, EqualsItsDefinitionInFloat) {
  for (const auto& c : kCases) {
    const double error = error_against_reference(c, {}, at::kFloat);
    EXPECT_LT(error, 1e-5) << at::IntArrayRef(c.shape) << " max_dim " << c.max_dim;
  }
}

TEST(SoapRule, IsAdamOnVectors) {
  const auto gradients = drawn_gradients({9}, 30, 4);
  rules::AdamMoments moments;
  std::vector<at::Tensor> expected;
  for (size_t i = 0; i < gradients.size(); ++i) {
    expected.push_back(rules::adam(gradients[i], static_cast<int64_t>(i) + 1, moments,
                                   {.lr = 3e-3, .beta1 = 0.95, .beta2 = 0.95, .eps = 1e-8}));
  }
  EXPECT_LT(largest_error(displacements(soap_rule({}), gradients), expected), 1e-14);
}

TEST(SoapRule, TakesAStepAtOnce) {
  // In its own singular basis the first gradient is diagonal, and Adam's first step a sign.
  const auto g = drawn_gradients({4, 6}, 1, 5).front();
  const auto moved = soap_rule({.lr = 1})(g, 1);
  const auto [u, s, vh] = at::linalg_svd(g, /*full_matrices=*/false);
  EXPECT_LT(largest_error({moved}, {-u.matmul(vh)}), 1e-7);
}

std::vector<at::Tensor> turned(const std::vector<at::Tensor>& tensors, const at::Tensor& a,
                               const at::Tensor& b) {
  std::vector<at::Tensor> result;
  for (const auto& x : tensors) {
    result.push_back(x.dim() == 1 ? a.matmul(x) : a.matmul(x).matmul(b));
  }
  return result;
}

/// Largest relative error between the image of the displacements and those of the images.
double equivariance_error(const Case& c, double eps, int64_t every, const at::Tensor& a,
                          const at::Tensor& b, uint64_t seed = 6,
                          at::ScalarType type = at::kDouble) {
  const SoapSettings settings{.eps = eps,
                              .max_dim = c.max_dim,
                              .precondition_every = every,
                              .precondition_vectors = c.precondition_vectors};
  const auto gradients = drawn_gradients(c.shape, 20, seed);
  const auto rule = [&] {
    return [inner = soap_rule(settings), type](const at::Tensor& gradient, int64_t step) {
      return inner(gradient.to(type), step).to(at::kDouble);
    };
  };
  return largest_error(displacements(rule(), turned(gradients, a, b)),
                       turned(displacements(rule(), gradients), a, b));
}

TEST(SoapRule, CommutesWithRotationsOfRowsAndColumns) {
  auto random = rule_generator(11);
  for (const auto& c : kCases) {
    if (c.shape.size() == 4) continue;  // rotations would mix the flattened axes
    const bool is_vector = c.shape.size() == 1;
    const int64_t rows = rows_of(c.shape);
    const int64_t columns = is_vector ? 1 : c.shape.back();
    // A side without a factor has signs only.
    const auto element = [&](bool rotates, int64_t n) {
      const auto q = random_orthogonal(n, random);
      return rotates ? q : at::diag(q.diagonal().sign());
    };
    const auto a = element(c.left, rows);
    const auto b = element(c.right, columns);
    for (const int64_t every : {1, 4, 10}) {
      for (const double eps : {1e-8, 0.0}) {
        const double error = equivariance_error(c, eps, every, a, b);
        EXPECT_LT(error, 1e-11) << at::IntArrayRef(c.shape) << " max_dim " << c.max_dim << " every "
                                << every << " eps " << eps;
      }
    }
  }
}

TEST(SoapRule, CommutesWithRotationsInFloat) {
  // Large enough for eigenvalues to be close, which is what the first basis is computed in float64 for.
  auto random = rule_generator(14);
  for (const auto& shape : std::vector<std::vector<int64_t>>{{40, 40}, {20, 64}, {64, 20}}) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
      const auto a = random_orthogonal(shape[0], random);
      const auto b = random_orthogonal(shape[1], random);
      EXPECT_LT(equivariance_error({.shape = shape}, 1e-8, 10, a, b, seed, at::kFloat), 1e-3)
          << at::IntArrayRef(shape) << " seed " << seed;
    }
  }
}

TEST(SoapRule, CommutesWithSignsOfRowsAndColumns) {
  auto random = rule_generator(12);
  for (const auto& c : kCases) {
    if (c.shape.size() == 4) continue;
    const auto signs = [&](int64_t n) {
      return at::diag(at::randn({n}, random, at::kDouble).sign());
    };
    const auto a = signs(rows_of(c.shape));
    const auto b = signs(c.shape.back());
    EXPECT_LT(equivariance_error(c, 1e-3, 4, a, b), 1e-11)
        << at::IntArrayRef(c.shape) << " max_dim " << c.max_dim;
  }
}

TEST(SoapRule, CommutesWithRotationsOfGradientsThatBeginWithZeros) {
  auto random = rule_generator(13);
  const auto a = random_orthogonal(4, random);
  const auto b = random_orthogonal(3, random);
  auto gradients = drawn_gradients({2, 4, 3}, 20, 9);
  gradients[0].zero_();
  gradients[1].select(0, 1).zero_();  // the second matrix is a step behind
  const SoapSettings settings{.eps = 1e-3};
  const auto plain = displacements(soap_rule(settings), gradients);
  const auto other = displacements(soap_rule(settings), turned(gradients, a, b));
  EXPECT_EQ(plain[0].abs().max().item<double>(), 0);
  auto expected = turned(plain, a, b);
  EXPECT_LT(largest_error({other.begin() + 1, other.end()}, {expected.begin() + 1, expected.end()}),
            1e-11);
}

TEST(SoapRule, DoesNotDependOnTheScaleOfGradientsWithoutEps) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    for (const auto& c : kCases) {
      const SoapSettings settings{.eps = 0, .max_dim = c.max_dim};
      const auto gradients = drawn_gradients(c.shape, 12, 8, type);
      const auto expected = displacements(soap_rule(settings), gradients);
      for (const double scale : {std::exp2(-100), std::exp2(100)}) {
        std::vector<at::Tensor> scaled;
        for (const auto& g : gradients) scaled.push_back(g * scale);
        // Powers of two are exact, and so is the rule's use of them.
        EXPECT_EQ(largest_error(displacements(soap_rule(settings), scaled), expected), 0)
            << type << " " << at::IntArrayRef(c.shape) << " " << scale;
      }
    }
  }
}

TEST(SoapRule, StaysFiniteOnNastyGradients) {
  const std::vector<std::vector<int64_t>> shapes{{6},       {5, 5}, {7, 3}, {3, 7},
                                                 {2, 4, 3}, {},     {1, 1}};
  for (const auto type : {at::kDouble, at::kFloat}) {
    for (const auto& shape : shapes) {
      for (const auto& kind : nasty_kinds()) {
        for (const double eps : {1e-8, 0.0}) {
          for (const int64_t every : {1, 5}) {
            for (const int64_t max_dim : {kMany, int64_t{4}, int64_t{0}}) {
              SCOPED_TRACE(testing::Message()
                           << type << " " << at::IntArrayRef(shape) << " " << kind << " eps " << eps
                           << " every " << every << " max_dim " << max_dim);
              const SoapSettings settings{.lr = 0.1,
                                          .eps = eps,
                                          .max_dim = max_dim,
                                          .precondition_every = every,
                                          .precondition_vectors = true};
              SoapMoments moments;
              double largest = 0;
              const auto gradients = nasty_gradients(kind, shape, 12, type);
              for (size_t i = 0; i < gradients.size(); ++i) {
                const auto moved =
                    rules::soap(gradients[i], static_cast<int64_t>(i) + 1, moments, settings);
                ASSERT_TRUE(all_finite({moved}));
                ASSERT_TRUE(all_finite(tensors_of(moments)));
                ASSERT_EQ(moved.sizes(), gradients[i].sizes());
                ASSERT_EQ(moved.scalar_type(), type);
                largest = std::max(largest, moved.abs().max().item<double>());
              }
              // A step is of the order of the learning rate whatever the gradients are.
              EXPECT_LT(largest, 0.1 * 100);
            }
          }
        }
      }
    }
  }
}

TEST(SoapRule, TakesEmptyTensors) {
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{0}, {0, 3}, {3, 0}, {0, 2, 3}, {2, 0, 3}, {0, 2, 3, 2}}) {
    SoapMoments moments;
    for (int64_t step = 1; step <= 2; ++step) {
      const auto moved = rules::soap(at::zeros(shape), step, moments, {});
      EXPECT_EQ(moved.sizes(), at::IntArrayRef(shape));
    }
    EXPECT_TRUE(moments.exp_avg.defined());
  }
}

TEST(SoapRule, KeepsStateOfTheDocumentedShapesAndTypes) {
  const auto check = [](at::ScalarType type, at::ScalarType factors) {
    SoapMoments moments;
    const auto gradient = drawn_gradients({2, 5, 3}, 1, 1, type).front();
    const auto moved = rules::soap(gradient, 1, moments, {});
    EXPECT_EQ(moved.scalar_type(), type);
    EXPECT_EQ(moments.exp_avg.scalar_type(), type);
    EXPECT_EQ(moments.exp_avg_sq.scalar_type(), type);
    EXPECT_EQ(moments.exp_avg_sq.sizes(), gradient.sizes());
    EXPECT_EQ(moments.left.scalar_type(), factors);
    EXPECT_EQ(moments.left_basis.scalar_type(), factors);
    EXPECT_EQ(moments.left_values.scalar_type(), factors);
    EXPECT_EQ(moments.left.sizes(), at::IntArrayRef({2, 5, 5}));
    EXPECT_EQ(moments.left_values.sizes(), at::IntArrayRef({2, 5}));
    EXPECT_EQ(moments.right_basis.sizes(), at::IntArrayRef({2, 3, 3}));
    EXPECT_EQ(moments.unit.sizes(), at::IntArrayRef({2, 1, 1}));
  };
  check(at::kDouble, at::kDouble);
  check(at::kFloat, at::kFloat);
  check(at::kBFloat16, at::kFloat);
}

}  // namespace
}  // namespace ddc::tests
