// What Shampoo and SOAP share: factors of rows and columns, in units near the size of the gradients.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ddc/optim/shampoo.h"
#include "ddc/optim/soap.h"
#include "support/rules.h"

namespace ddc::tests {
namespace {

constexpr int64_t kMany = 1 << 20;

template <class Of>
class FactoredRules : public ::testing::Test {
 public:
  using Options = typename Of::Options;

  /// With vectors that have a factor, where that is a choice.
  static Options preconditioning(Options options) {
    if constexpr (requires { options.precondition_vectors; }) options.precondition_vectors = true;
    return options;
  }
  static double usual_eps() { return Options().eps; }
};
using Factored = ::testing::Types<ShampooRule, SoapRule>;
TYPED_TEST_SUITE(FactoredRules, Factored);

struct Case {
  std::vector<int64_t> shape;
  int64_t max_dim = kMany;
};
const std::vector<Case> kCases{{{5, 5}},    {{7, 3}},       {{3, 7}},       {{1, 1}},
                               {{6}},       {{4, 5, 3}},    {{4, 2, 3, 2}}, {{7, 3}, 4},
                               {{3, 7}, 4}, {{2, 3, 7}, 4}, {{5, 6}, 4}};

TYPED_TEST(FactoredRules, DoNotDependOnTheScaleOfGradientsWithoutEps) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    for (const auto& c : kCases) {
      const typename TypeParam::Options options{.lr = 0.1, .eps = 0, .max_dim = c.max_dim};
      const auto gradients = drawn_gradients(c.shape, 12, 8, type);
      const auto expected = displacements(rule_of<TypeParam>(options), gradients);
      for (const double scale : {std::exp2(-100), std::exp2(100)}) {
        std::vector<at::Tensor> scaled;
        for (const auto& g : gradients) scaled.push_back(g * scale);
        // Powers of two are exact, and so is the rule's use of them.
        EXPECT_EQ(largest_error(displacements(rule_of<TypeParam>(options), scaled), expected), 0)
            << type << " " << at::IntArrayRef(c.shape) << " " << scale;
      }
    }
  }
}

/// `Fixture` is FactoredRules<Rule>.
template <class Fixture, class Rule>
void expect_finite_on_nasty_gradients(const std::vector<std::vector<int64_t>>& shapes,
                                      const std::vector<int64_t>& largest_dims) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    for (const auto& shape : shapes) {
      for (const auto& kind : nasty_kinds()) {
        for (const double eps : {Fixture::usual_eps(), 0.0}) {
          for (const int64_t every : {1, 5}) {
            for (const int64_t max_dim : largest_dims) {
              SCOPED_TRACE(testing::Message()
                           << type << " " << at::IntArrayRef(shape) << " " << kind << " eps " << eps
                           << " every " << every << " max_dim " << max_dim);
              const auto options = Fixture::preconditioning(
                  {.lr = 0.1, .eps = eps, .max_dim = max_dim, .precondition_every = every});
              const auto view = alone(at::zeros(shape, type));
              auto state = Rule::init(view, options);
              double largest = 0;
              const auto gradients = nasty_gradients(kind, shape, 12, type);
              for (size_t i = 0; i < gradients.size(); ++i) {
                const auto moved =
                    Rule::step(gradients[i], static_cast<int64_t>(i) + 1, view, state, options);
                ASSERT_TRUE(all_finite({moved}));
                ASSERT_TRUE(all_finite(tensors_of(state)));
                ASSERT_EQ(moved.sizes(), gradients[i].sizes());
                ASSERT_EQ(moved.scalar_type(), type);
                largest = std::max(largest, moved.abs().max().template item<double>());
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

TYPED_TEST(FactoredRules, StayFiniteOnNastyGradients) {
  expect_finite_on_nasty_gradients<TestFixture, TypeParam>({{6}, {7, 3}, {}}, {kMany, 4});
}

TYPED_TEST(FactoredRules, StayFiniteOnNastyGradientsLong) {
  expect_finite_on_nasty_gradients<TestFixture, TypeParam>(
      {{6}, {5, 5}, {7, 3}, {3, 7}, {2, 4, 3}, {}, {1, 1}}, {kMany, 4, 0});
}

TYPED_TEST(FactoredRules, TakeEmptyTensors) {
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{0}, {0, 3}, {3, 0}, {0, 2, 3}, {2, 0, 3}, {0, 2, 3, 2}}) {
    const auto view = alone(at::zeros(shape));
    auto state = TypeParam::init(view, {});
    for (int64_t step = 1; step <= 2; ++step) {
      const auto moved = TypeParam::step(at::zeros(shape), step, view, state, {});
      EXPECT_EQ(moved.sizes(), at::IntArrayRef(shape));
    }
    EXPECT_TRUE(state.exp_avg.defined());
  }
}

}  // namespace
}  // namespace ddc::tests
