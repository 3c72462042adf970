// What every testbed promises: its gauges are gauges, they are tight (no leg can be left out or
// given another exponent), its randomness comes from the seed alone, and there is something to
// learn.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <ostream>
#include <set>

#include "ddc/measure/gauge_coordinates.h"
#include "ddc/testbeds/blocks.h"
#include "ddc/testbeds/diagonal_network.h"
#include "ddc/testbeds/mlp.h"
#include "ddc/testbeds/modular_addition.h"
#include "ddc/testbeds/rope_grokking.h"
#include "ddc/testbeds/runs.h"
#include "ddc/testbeds/sparse_parity.h"
#include "ddc/testbeds/teacher_student.h"
#include "support/testbeds.h"

namespace ddc::testbeds {
namespace {

constexpr double exact = 1e-13;
constexpr double broken = 1e-4;

struct Case {
  std::string name;
  Testbed bed;
  /// Learning rate of the plain gradient steps in the last test.
  double learning_rate;
  bool full_batch = false;
};

void PrintTo(const Case& value, std::ostream* out) { *out << value.name; }

std::vector<Case> cases() {
  return {
      {"ReluTeacherStudent", relu_teacher_student(), 1e-2, true},
      {"ReluTeacherStudentPerChannel", relu_teacher_student({.per_channel = true}), 1e-2, true},
      {"NormTeacherStudent", norm_teacher_student(), 1e-2, true},
      {"DiagonalNetwork", diagonal_network(), 1e-3, true},
      {"ReluChain", relu_chain(), 1e-2},
      {"ReluChainWholeTensor", relu_chain({.per_channel = false}), 1e-2},
      {"ReluChainSquared", relu_chain({.depth = 3, .degree = 2}), 1e-3},
      {"LayerNormBlock", layer_norm_block(), 1e-2},
      {"LayerNormBlockTwoLayers", layer_norm_block({.layers = 2}), 1e-2},
      {"RmsNormBlock", rms_norm_block(), 1e-2},
      {"RmsNormBlockTwoLayers", rms_norm_block({.layers = 2}), 1e-2},
      {"RmsNormBlockOffsetGain", rms_norm_block({.gain_is_offset = true}), 1e-2},
      {"LayerNormBlockFixedEmbedding", layer_norm_block({.fixed_embedding = true}), 1e-2},
      {"RmsNormBlockFixedEmbedding", rms_norm_block({.fixed_embedding = true}), 1e-2},
      {"GptJBlock", gpt_j_block(), 1e-2},
      {"GptJBlockTwoLayers", gpt_j_block({.layers = 2}), 1e-2},
      {"GptJBlockAllRotary", gpt_j_block({.rotary_size = std::nullopt}), 1e-2},
      {"GptJBlockFixedEmbedding", gpt_j_block({.fixed_embedding = true}), 1e-2},
      {"VitBlock", vit_block(), 1e-2},
      {"VitBlockFixedEmbedding", vit_block({.fixed_embedding = true}), 1e-2},
      {"ModularAddition",
       modular_addition(
           {.modulus = 13, .d_model = 16, .d_ff = 32, .gain_spread = 0.2, .bias_spread = 0.2}),
       1e-2, true},
      {"ModularAdditionMinibatches",
       modular_addition({.modulus = 13,
                         .batch_size = 16,
                         .d_model = 16,
                         .d_ff = 32,
                         .layers = 2,
                         .degree = 1,
                         .attention_biases = true,
                         .final_norm = true,
                         .gain_spread = 0.2,
                         .bias_spread = 0.2}),
       1e-2},
      {"RopeGrokking",
       rope_grokking({.modulus = 7,
                      .sequence = 8,
                      .batch_size = 8,
                      .d_model = 16,
                      .heads = 2,
                      .d_ff = 12,
                      .layers = 2,
                      .rotation = Rotation::none,
                      .scales_and_shifts = true}),
       1e-2},
      {"SparseParity", sparse_parity({.d_hidden = 32, .gain_spread = 0.2}), 1e-2, true},
  };
}

class TestbedContract : public testing::TestWithParam<Case> {
 protected:
  const Testbed& bed = GetParam().bed;
  Parameters params = bed.init(1, at::kDouble);
  Batch batch = bed.batch(2, at::kDouble);
  std::vector<Gauge> gauges = bed.gauges(params);
};

std::string case_name(const testing::TestParamInfo<Case>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(All, TestbedContract, testing::ValuesIn(cases()), case_name);

TEST_P(TestbedContract, EachGaugeLeavesTheLossUnchanged) {
  for (const auto& gauge : gauges) {
    EXPECT_LE(loss_change(bed, {gauge}, params, batch), exact) << gauge.name;
  }
}

TEST_P(TestbedContract, AllGaugesTogetherLeaveTheLossUnchanged) {
  EXPECT_LE(loss_change(bed, gauges, params, batch), exact);
}

TEST_P(TestbedContract, GaugesLeaveTheLossOfOtherBatchesUnchanged) {
  for (uint64_t seed = 10; seed < 15; ++seed) {
    EXPECT_LE(loss_change(bed, gauges, params, bed.batch(seed, at::kDouble)), exact) << seed;
  }
}

TEST_P(TestbedContract, NoetherChargesAreZero) {
  const auto gradients = gradients_of(bed, params, batch);
  double largest = 0;
  for (const auto& [name, gradient] : gradients) {
    largest = std::max(largest, gradient.abs().max().item<double>());
  }
  for (const auto& gauge : gauges) {
    const auto charge = noether_charge(gauge, params, gradients);
    // A null gradient is its own charge and its own scale: judge it by the others.
    const auto scale =
        gauge.kind == "null shift" ? at::full_like(charge.scale, largest) : charge.scale;
    EXPECT_GT(scale.max().item<double>(), 0) << gauge.name;
    EXPECT_TRUE(charge.value.abs().le(scale * exact).all().item<bool>())
        << gauge.name << ": " << (charge.value.abs() / scale).max().item<double>();
  }
}

TEST_P(TestbedContract, LeavingOutALegBreaksTheGauge) {
  for (const auto& gauge : gauges) {
    if (gauge.legs.size() == 1) continue;
    for (size_t k = 0; k < gauge.legs.size(); ++k) {
      // The key bias of a scale gauge is null by itself.
      if (gauge.legs[k].tensor.ends_with("key.bias")) continue;
      EXPECT_GT(loss_change(bed, {without_leg(gauge, k)}, params, batch), broken)
          << gauge.name << " without " << gauge.legs[k].tensor;
    }
  }
}

TEST_P(TestbedContract, AWrongExponentBreaksTheGauge) {
  for (const auto& gauge : gauges) {
    if (gauge.legs.size() == 1) continue;
    for (size_t k = 0; k < gauge.legs.size(); ++k) {
      if (gauge.legs[k].tensor.ends_with("key.bias")) continue;
      const auto wrong = with_exponent(gauge, k, gauge.legs[k].exponent * 2);
      EXPECT_GT(loss_change(bed, {wrong}, params, batch), broken)
          << gauge.name << " with another exponent on " << gauge.legs[k].tensor;
    }
  }
}

TEST_P(TestbedContract, LeavingOutAnIndexBreaksAShift) {
  for (auto gauge : gauges) {
    if (gauge.action != Action::shift || gauge.kind == "null shift") continue;
    auto& leg = gauge.legs.front();
    leg.channel_of.front() = -1;
    EXPECT_GT(loss_change(bed, {gauge}, params, batch), broken) << gauge.name;
  }
}

TEST_P(TestbedContract, AllGaugesCanBeBoundTogether) {
  EXPECT_NO_THROW(GaugeCoordinates(params, gauges));
}

TEST_P(TestbedContract, GaugeNamesAreUnique) {
  std::set<std::string> names;
  for (const auto& gauge : gauges) EXPECT_TRUE(names.insert(gauge.name).second) << gauge.name;
}

TEST_P(TestbedContract, TheSameSeedGivesTheSameBits) {
  const auto again = bed.init(1, at::kDouble);
  ASSERT_EQ(again.size(), params.size());
  for (const auto& [name, tensor] : params) {
    EXPECT_TRUE(at::equal(tensor, again[name].tensor)) << name;
  }
  const auto batch_again = bed.batch(2, at::kDouble);
  EXPECT_TRUE(at::equal(batch.inputs, batch_again.inputs));
  EXPECT_TRUE(at::equal(batch.targets, batch_again.targets));
}

TEST_P(TestbedContract, OtherSeedsGiveOtherNumbers) {
  const auto other = bed.init(2, at::kDouble);
  for (const auto& [name, tensor] : params) {
    // A tensor that starts as a constant (a gain without spread) is the same for all seeds.
    const bool constant = tensor.eq(tensor.flatten()[0]).all().item<bool>();
    EXPECT_TRUE(constant || !at::equal(tensor, other[name].tensor)) << name;
  }
  EXPECT_EQ(at::equal(batch.inputs, bed.batch(3, at::kDouble).inputs), GetParam().full_batch);
}

TEST_P(TestbedContract, TheGlobalGeneratorIsLeftAlone) {
  const auto global = at::globalContext().defaultGenerator(at::kCPU);
  const auto before = global.get_state();
  bed.loss(bed.init(3, at::kDouble), bed.batch(4, at::kDouble));
  EXPECT_TRUE(at::equal(before, global.get_state()));
}

TEST_P(TestbedContract, Float32AndFloat64StartFromTheSamePoint) {
  const auto single = bed.init(1, at::kFloat);
  for (const auto& [name, tensor] : params) {
    EXPECT_TRUE(at::equal(tensor.to(at::kFloat), single[name].tensor)) << name;
    EXPECT_TRUE(single[name].tensor.is_leaf() && single[name].tensor.requires_grad()) << name;
  }
  const auto single_batch = bed.batch(2, at::kFloat);
  EXPECT_TRUE(at::equal(batch.inputs.to(single_batch.inputs.scalar_type()), single_batch.inputs));
  const double loss = loss_value(bed, params, batch);
  EXPECT_NEAR(loss_value(bed, single, single_batch), loss, 1e-5 * std::abs(loss));
}

TEST_P(TestbedContract, OutputsFitTheTargets) {
  const at::NoGradGuard no_grad;
  const auto outputs = bed.outputs(params, batch.inputs);
  if (at::isFloatingType(batch.targets.scalar_type())) {
    EXPECT_EQ(outputs.sizes(), batch.targets.sizes());
  } else {
    EXPECT_EQ(outputs.argmax(-1).sizes(), batch.targets.sizes());
  }
}

TEST_P(TestbedContract, PlainGradientStepsLowerTheLoss) {
  const double start = loss_value(bed, params, batch);
  for (int step = 0; step < 20; ++step) {
    const auto gradients = gradients_of(bed, params, batch);
    const at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : params) {
      at::Tensor(tensor).sub_(gradients[name].tensor, GetParam().learning_rate);
    }
  }
  EXPECT_LT(loss_value(bed, params, batch), 0.99 * start);
}

}  // namespace
}  // namespace ddc::testbeds
