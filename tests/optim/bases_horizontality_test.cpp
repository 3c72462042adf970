// Every base, every gauge of a transformer bound in place: no gauge coordinate moves, and the network
// trains. (At the canonical place linear gauges are moved back to first order, and every so many steps.)

#include <gtest/gtest.h>

#include <numeric>

#include "ddc/optim/sgd.h"
#include "ddc/optim/shampoo.h"
#include "ddc/optim/soap.h"
#include "ddc/testbeds/blocks.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

using testbeds::GaugeSet;

struct Base {
  std::string name;
  OptimizerMaker make;
};
void PrintTo(const Base& base, std::ostream* out) { *out << base.name; }

std::vector<Base> bases() {
  return {{"Adam", testbeds::ddc_adam(AdamOptions{.lr = 3e-3}, in_place())},
          {"MuonExact", testbeds::ddc_muon({.lr = 0.01}, {.lr = 3e-3}, in_place())},
          {"MuonFast",
           testbeds::ddc_muon({.lr = 0.01, .method = PolarMethod::fast}, {.lr = 3e-3}, in_place())},
          {"Sgd", testbeds::lifted<SgdRule>({.lr = 0.1, .momentum = 0.9}, in_place())},
          {"Shampoo", testbeds::lifted<ShampooRule>({.lr = 3e-3}, in_place())},
          {"Soap", testbeds::lifted<SoapRule>({.lr = 3e-3}, in_place())}};
}

class BasesHorizontality : public ::testing::TestWithParam<Base> {};

INSTANTIATE_TEST_SUITE_P(All, BasesHorizontality, ::testing::ValuesIn(bases()),
                         [](const auto& instance) { return instance.param.name; });

void expect_held_and_trained(const Testbed& bed, const Base& base) {
  const auto params = bed.init(1, at::kDouble);
  const auto result = testbeds::drift(bed, params, bed.gauges(params), base.make,
                                      {.seed = 1, .steps = 150, .type = at::kDouble});
  EXPECT_LE(result.largest(), 1e-11) << bed.name;
  const auto mean = [&](size_t first) {
    return std::accumulate(result.losses.begin() + static_cast<std::ptrdiff_t>(first),
                           result.losses.begin() + static_cast<std::ptrdiff_t>(first + 10), 0.0) /
           10;
  };
  EXPECT_LT(mean(140), 0.9 * mean(0)) << bed.name;
  // The same number is not small for an optimizer that binds nothing.
  const auto plain = bed.init(1, at::kDouble);
  const auto moved = testbeds::drift(bed, plain, bed.gauges(plain), adamw(),
                                     {.seed = 1, .steps = 20, .type = at::kDouble});
  EXPECT_GE(moved.largest(), 1e-2) << bed.name;
}

TEST_P(BasesHorizontality, LayerNormBlock) {
  expect_held_and_trained(
      testbeds::layer_norm_block({.relu_part = false, .gauges = GaugeSet::full}), GetParam());
}

TEST_P(BasesHorizontality, RmsNormBlockWithTheRotationOfTheStream) {
  expect_held_and_trained(testbeds::rms_norm_block({.gauges = GaugeSet::with_residual_rotation}),
                          GetParam());
}

}  // namespace
}  // namespace ddc::tests
