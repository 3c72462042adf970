#include "ddc/optim/soap.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "ddc/optim/adam.h"
#include "support/reference_soap.h"
#include "support/rules.h"

namespace ddc::tests {
namespace {

constexpr int64_t kMany = 1 << 20;

Rule soap_rule(const SoapOptions& settings) { return rule_of<SoapRule>(settings); }

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
double error_against_reference(const Case& c, SoapOptions settings, at::ScalarType type) {
  settings.max_dim = c.max_dim;
  settings.precondition_vectors = c.precondition_vectors;
  const auto gradients = drawn_gradients(c.shape, 25, 3, type);
  const int64_t stack = c.shape.size() == 3 ? c.shape[0] : 1;
  const int64_t rows = rows_of(c.shape);
  const int64_t columns = gradients.front().numel() / (rows * stack);
  std::vector<ReferenceSoap> references(static_cast<size_t>(stack),
                                        ReferenceSoap(rows, columns, c.left, c.right, settings));
  std::vector<at::Tensor> expected;
  for (const auto& gradient : gradients) {
    const auto matrices = gradient.to(at::kDouble).reshape({stack, rows, columns});
    auto result = at::empty_like(matrices);
    for (int64_t i = 0; i < stack; ++i) {
      result[i] = references[static_cast<size_t>(i)](matrices[i]);
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
  const std::vector<SoapOptions> variants{
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
  const auto adam = rule_of<AdamRule>({.lr = 3e-3, .beta1 = 0.95, .beta2 = 0.95, .eps = 1e-8});
  const auto expected = displacements(adam, gradients);
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
  const SoapOptions settings{.eps = eps,
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
  const SoapOptions settings{.eps = 1e-3};
  const auto plain = displacements(soap_rule(settings), gradients);
  const auto other = displacements(soap_rule(settings), turned(gradients, a, b));
  EXPECT_EQ(plain[0].abs().max().item<double>(), 0);
  auto expected = turned(plain, a, b);
  EXPECT_LT(largest_error({other.begin() + 1, other.end()}, {expected.begin() + 1, expected.end()}),
            1e-11);
}

TEST(SoapRule, KeepsStateOfTheDocumentedShapesAndTypes) {
  const auto check = [](at::ScalarType type, at::ScalarType factors) {
    const auto parameter = at::zeros({2, 5, 3}, type);
    // Narrow parameters have gradients and moments in float32.
    const auto computed = type == at::kDouble ? at::kDouble : at::kFloat;
    const auto gradient = drawn_gradients({2, 5, 3}, 1, 1, computed).front();
    auto moments = SoapRule::init(alone(parameter), {});
    const auto moved = SoapRule::step(gradient, 1, alone(parameter), moments, {});
    EXPECT_EQ(moved.scalar_type(), computed);
    EXPECT_EQ(moments.exp_avg.scalar_type(), computed);
    EXPECT_EQ(moments.exp_avg_sq.scalar_type(), computed);
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
