// Every base, every gauge of a transformer bound, in place and at the canonical place (moved back in every
// step): no gauge coordinate moves, and the network trains.

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

std::vector<Base> bases_with(const std::string& place, const Treatment& treatment) {
  return {{"Adam" + place, testbeds::ddc_adam(AdamOptions{.lr = 3e-3}, treatment)},
          {"MuonExact" + place, testbeds::ddc_muon({.lr = 0.01}, {.lr = 3e-3}, treatment)},
          {"MuonFast" + place,
           testbeds::ddc_muon({.lr = 0.01, .method = PolarMethod::fast}, {.lr = 3e-3}, treatment)},
          {"Sgd" + place, testbeds::lifted<SgdRule>({.lr = 0.1, .momentum = 0.9}, treatment)},
          {"Shampoo" + place, testbeds::lifted<ShampooRule>({.lr = 3e-3}, treatment)},
          {"Soap" + place, testbeds::lifted<SoapRule>({.lr = 3e-3}, treatment)}};
}

std::vector<Base> bases() {
  auto result = bases_with("", in_place());
  const auto canonical = bases_with("Placed", placed({.project = Projection::step, .every = 1}));
  result.insert(result.end(), canonical.begin(), canonical.end());
  return result;
}

class BasesHorizontality : public ::testing::TestWithParam<Base> {};

INSTANTIATE_TEST_SUITE_P(All, BasesHorizontality, ::testing::ValuesIn(bases()),
                         [](const auto& instance) { return instance.param.name; });

void expect_held_and_trained(const Testbed& bed, const Base& base) {
  const auto params = bed.init(1, at::kDouble);
  const auto result = testbeds::drift(bed, params, bed.gauges(params), base.make,
                                      {.seed = 1, .steps = 150, .type = at::kDouble});
  testing::Test::RecordProperty("drift", testing::PrintToString(result.largest()));
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
