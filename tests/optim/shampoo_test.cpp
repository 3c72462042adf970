#include "ddc/optim/shampoo.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "support/reference_shampoo.h"
#include "support/rules.h"

namespace ddc::tests {
namespace {

constexpr int64_t kMany = 1 << 20;

Rule shampoo_rule(const ShampooOptions& settings) { return rule_of<ShampooRule>(settings); }

struct Case {
  std::vector<int64_t> shape;
  bool left = true;
  bool right = true;
  int64_t max_dim = kMany;
};

/// The rule against one reference per matrix of the stack. Returns the largest relative error.
double error_against_reference(const Case& c, ShampooOptions settings, at::ScalarType type) {
  settings.max_dim = c.max_dim;
  const auto gradients = drawn_gradients(c.shape, 15, 3, type);
  const int64_t stack = c.shape.size() == 3 ? c.shape[0] : 1;
  std::vector<ReferenceShampoo> references(static_cast<size_t>(stack),
                                           ReferenceShampoo(c.left, c.right, settings));
  std::vector<at::Tensor> expected;
  for (const auto& gradient : gradients) {
    const int64_t rows = c.shape.size() == 3 ? c.shape[1] : c.shape.at(0);
    const auto matrices = gradient.to(at::kDouble).reshape({stack, rows, -1});
    std::vector<at::Tensor> steps;
    for (int64_t i = 0; i < stack; ++i) {
      steps.push_back(references[static_cast<size_t>(i)](matrices[i]));
    }
    expected.push_back(at::stack(steps).reshape(c.shape));
  }
  return largest_error(displacements(shampoo_rule(settings), gradients), expected);
}

const std::vector<Case> kCases{
    {.shape = {5, 5}},
    {.shape = {7, 3}},
    {.shape = {3, 7}},
    {.shape = {1, 1}},
    {.shape = {6}, .right = false},
    {.shape = {4, 5, 3}},
    {.shape = {4, 2, 3, 2}},
    {.shape = {7, 3}, .left = false, .max_dim = 4},
    {.shape = {3, 7}, .right = false, .max_dim = 4},
    {.shape = {2, 3, 7}, .right = false, .max_dim = 4},
};

TEST(ShampooRule, EqualsItsDefinition) {
  const std::vector<ShampooOptions> variants{
      {.lr = 0.1},
      {.lr = 0.1, .beta1 = 0, .beta2 = 1},
      {.lr = 0.1, .beta1 = 0.5, .beta2 = 0.8, .eps = 0.1},
      {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.9, .eps = 1e-4, .precondition_every = 4}};
  for (const auto& settings : variants) {
    for (const auto& c : kCases) {
      const double error = error_against_reference(c, settings, at::kDouble);
      // The largest is that of a vector, see CommutesWithRotationsOfRowsAndColumns.
      EXPECT_LT(error, 1e-8) << at::IntArrayRef(c.shape) << " max_dim " << c.max_dim << " beta2 "
                             << settings.beta2 << " every " << settings.precondition_every;
    }
  }
}

TEST(ShampooRule, EqualsItsDefinitionInFloat) {
  for (const auto& c : kCases) {
    const double error =
        error_against_reference(c, {.lr = 0.1, .beta2 = 0.9, .eps = 1e-4}, at::kFloat);
    EXPECT_LT(error, 1e-3) << at::IntArrayRef(c.shape) << " max_dim " << c.max_dim;
  }
}

TEST(ShampooRule, FallsBackToTheMomentsOfEntries) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{6}, {5, 6}, {2, 5, 6}}) {
    const auto gradients = drawn_gradients(shape, 12, 4);
    const auto actual = displacements(
        shampoo_rule({.lr = 0.1, .beta1 = 0, .beta2 = 1, .eps = 1e-3, .max_dim = 4}), gradients);
    auto sum = at::full(shape, 1e-3, at::kDouble);
    std::vector<at::Tensor> expected;
    for (const auto& g : gradients) {
      sum += g * g;
      expected.push_back(g / sum.sqrt() * -0.1);
    }
    EXPECT_LT(largest_error(actual, expected), 1e-14) << at::IntArrayRef(shape);
  }
}

TEST(ShampooRule, OrthogonalisesTheFirstGradient) {
  // (G G^T)^(-1/4) G (G^T G)^(-1/4) = U V^T.
  const auto g = drawn_gradients({4, 6}, 1, 5).front();
  const auto moved = shampoo_rule({.lr = 1})(g, 1);
  const auto [u, s, vh] = at::linalg_svd(g, /*full_matrices=*/false);
  EXPECT_LT(largest_error({moved}, {-u.matmul(vh)}), 1e-10);
}

TEST(ShampooRule, CommutesWithRotationsOfRowsAndColumns) {
  auto random = rule_generator(11);
  for (const int64_t every : {1, 4}) {
    for (const auto& c : kCases) {
      if (c.shape.size() == 4) continue;  // rotations would mix the flattened axes
      const bool is_vector = c.shape.size() == 1;
      const int64_t rows = is_vector ? c.shape[0] : c.shape[c.shape.size() - 2];
      const auto a = random_orthogonal(rows, random);
      const auto b = random_orthogonal(is_vector ? 1 : c.shape.back(), random);
      const auto turn = [&](const std::vector<at::Tensor>& tensors) {
        std::vector<at::Tensor> result;
        for (const auto& x : tensors) {
          result.push_back(is_vector ? a.matmul(x) : a.matmul(x).matmul(b));
        }
        return result;
      };
      const ShampooOptions settings{.lr = 0.1, .max_dim = c.max_dim, .precondition_every = every};
      const auto gradients = drawn_gradients(c.shape, 20, 6);
      const double error = largest_error(displacements(shampoo_rule(settings), turn(gradients)),
                                         turn(displacements(shampoo_rule(settings), gradients)));
      // A factor of a few vectors has eigenvalues 0, and roots of these that are as large as eps
      // lets them: 1e6 where the exponent is -1/2, 1e3 per side where it is -1/4.
      EXPECT_LT(error, is_vector ? 1e-8 : 1e-10)
          << at::IntArrayRef(c.shape) << " max_dim " << c.max_dim << " every " << every;
    }
  }
}

TEST(ShampooRule, DoesNotTrustRootsThatDoNotKnowTheGradients) {
  for (const double first : {0.0, 1e-6}) {
    auto gradients = drawn_gradients({2, 4, 3}, 8, 9);
    gradients[0] *= first;
    gradients[1].select(0, 1) *= first;  // the second matrix is a step behind
    const auto every_step =
        displacements(shampoo_rule({.lr = 1, .precondition_every = 1}), gradients);
    const auto rarely =
        displacements(shampoo_rule({.lr = 1, .precondition_every = 100}), gradients);
    EXPECT_LT(largest_error({rarely[1][0]}, {every_step[1][0]}), 1e-14);
    EXPECT_LT(largest_error({rarely[2][1]}, {every_step[2][1]}), 1e-14);
    EXPECT_GT(largest_error({rarely[7]}, {every_step[7]}), 1e-3) << "the roots are not old";
  }
}

TEST(ShampooRule, KeepsStateOfTheDocumentedShapesAndTypes) {
  const auto check = [](at::ScalarType type, at::ScalarType factors) {
    const auto parameter = at::zeros({2, 5, 3}, type);
    // Narrow parameters have gradients and moments in float32.
    const auto computed = type == at::kDouble ? at::kDouble : at::kFloat;
    const auto gradient = drawn_gradients({2, 5, 3}, 1, 1, computed).front();
    auto moments = ShampooRule::init(alone(parameter), {});
    const auto moved = ShampooRule::step(gradient, 1, alone(parameter), moments, {});
    EXPECT_EQ(moved.scalar_type(), computed);
    EXPECT_EQ(moments.exp_avg.scalar_type(), computed);
    EXPECT_EQ(moments.left.scalar_type(), factors);
    EXPECT_EQ(moments.left_root.scalar_type(), factors);
    EXPECT_EQ(moments.left.sizes(), at::IntArrayRef({2, 5, 5}));
    EXPECT_EQ(moments.right_root.sizes(), at::IntArrayRef({2, 3, 3}));
    EXPECT_EQ(moments.unit.sizes(), at::IntArrayRef({2, 1, 1}));
    EXPECT_FALSE(moments.diagonal.defined());
  };
  check(at::kDouble, at::kDouble);
  check(at::kFloat, at::kFloat);
  check(at::kBFloat16, at::kFloat);
}

}  // namespace
}  // namespace ddc::tests
