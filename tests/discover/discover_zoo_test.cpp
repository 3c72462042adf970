// Discovery finds, for every network of the zoo and in both precisions, exactly the gauges that the
// network is known to have, and optimizers can bind them as they are.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ddc/optim/sgd.h"
#include "ddc/optim/shampoo.h"
#include "ddc/optim/soap.h"
#include "ddc/testbeds/runs.h"
#include "ddc/testbeds/zoo.h"
#include "support/discovered.h"
#include "support/symmetry_groups.h"

namespace ddc::tests {
namespace {

using testbeds::OptimizerMaker;
using testbeds::paired_error;
using testbeds::zoo;
using testbeds::zoo_entry;
using testbeds::ZooEntry;

constexpr double kEquivariant = 1e-9;
constexpr double kResidual = 1e-9;

SymmetryGroup discovered(const ZooEntry& entry, at::ScalarType type) {
  const auto params = entry.testbed.init(entry.seed, type);
  return discover(params, evaluation_of(entry.testbed, params));
}

double error_of(const ZooEntry& entry, const SymmetryGroup& group, const OptimizerMaker& make) {
  return paired_error(entry.testbed, group.gauges(), make, {.seed = entry.seed, .steps = 5});
}

std::vector<std::string> names() {
  std::vector<std::string> result;
  for (const auto& entry : zoo()) result.push_back(entry.name);
  return result;
}

class DiscoverZoo : public ::testing::TestWithParam<std::string> {
 protected:
  ZooEntry entry = zoo_entry(GetParam());
  /// Tangents are compared in float64 whatever the gauges were found in.
  Parameters params = entry.testbed.init(entry.seed, at::kDouble);
  std::vector<Gauge> expected = entry.testbed.gauges(params);

  void expect_exact(const SymmetryGroup& group) {
    const auto found = group.gauges();
    EXPECT_EQ(differences(expected, found, params), "");
    expect_same_span(expected, found, params);
    for (const auto& finding : group.findings) {
      EXPECT_EQ(finding.group, group_name(finding.gauge, params)) << finding.gauge.name;
      EXPECT_EQ(finding.dimension, dimension(finding.gauge, params)) << finding.gauge.name;
      EXPECT_GT(finding.tolerance, 0) << finding.gauge.name;
      EXPECT_LE(finding.residual, finding.tolerance) << finding.gauge.name;
    }
    expect_same(group, SymmetryGroup::parse(group.to_json()));
  }
};

INSTANTIATE_TEST_SUITE_P(All, DiscoverZoo, ::testing::ValuesIn(names()),
                         [](const auto& instance) { return instance.param; });

TEST_P(DiscoverZoo, FindsExactlyTheGaugesInFloat64AndDDCAdamBindsThem) {
  const auto group = discovered(entry, at::kDouble);
  expect_exact(group);
  for (const auto& finding : group.findings) {
    EXPECT_LT(finding.residual, kResidual) << finding.gauge.name;
  }
  EXPECT_LE(error_of(entry, group, testbeds::ddc_adam(AdamOptions{.lr = 1e-3})), kEquivariant);
}

TEST_P(DiscoverZoo, FindsExactlyTheGaugesInFloat32) { expect_exact(discovered(entry, at::kFloat)); }

TEST(DiscoverZooTest, EveryOptimizerBindsWhatIsFound) {
  struct Base {
    const char* name;
    OptimizerMaker make;
  };
  const std::vector<Base> bases = {
      {"Muon", testbeds::ddc_muon({.lr = 1e-3}, {.lr = 1e-3})},
      {"Sgd", testbeds::lifted<SgdRule>({.lr = 1e-3, .momentum = 0.9})},
      {"Shampoo", testbeds::lifted<ShampooRule>({.lr = 1e-3})},
      {"Soap", testbeds::lifted<SoapRule>({.lr = 1e-3})}};
  for (const auto* name : {"ln_squared_relu", "rms_partial_rope", "conv_relu"}) {
    const auto entry = zoo_entry(name);
    const auto group = discovered(entry, at::kDouble);
    for (const auto& base : bases) {
      EXPECT_LE(error_of(entry, group, base.make), kEquivariant) << name << " " << base.name;
    }
    // The numbers above would say little if any optimizer passed.
    EXPECT_GT(error_of(entry, group, testbeds::adamw(1e-3, 0)), 1e-6) << name;
  }
}

/// What a model that differs in one respect has, why this one has not, and of which tensor that is said.
struct ExpectedRefusal {
  const char* entry;
  const char* kind;
  const char* tensor;
  const char* reason;
};
class DiscoverRefuses : public ::testing::TestWithParam<ExpectedRefusal> {};

INSTANTIATE_TEST_SUITE_P(
    All, DiscoverRefuses,
    ::testing::Values(
        ExpectedRefusal{"ln_gelu", "relu rescale", "layers.0.mlp.up.weight", "GELU"},
        ExpectedRefusal{"rms_swiglu_rope", "relu rescale", "layers.0.mlp.gate.weight", "SiLU"},
        ExpectedRefusal{"rms_swiglu_rope", "QK linear", "layers.0.attention.query.weight",
                        "rotary embedding"},
        ExpectedRefusal{"rms_swiglu_interleaved", "QK linear", "layers.0.attention.query.weight",
                        "rotary embedding"},
        ExpectedRefusal{"fused_qkv", "QK linear", "layers.0.attention.qkv.weight",
                        "rotary embedding"},
        ExpectedRefusal{"tied", "CE row shift", "embedding.weight", "tied embedding"},
        ExpectedRefusal{"tied", "norm scale", "final_norm.weight", "tied embedding"},
        ExpectedRefusal{"tied", "residual rotation", "embedding.weight", "tied embedding"},
        ExpectedRefusal{"gemma", "CE row shift", "embedding.weight", "tied embedding"},
        ExpectedRefusal{"softcap", "CE row shift", "unembedding.weight", "soft cap"},
        ExpectedRefusal{"z_loss", "CE row shift", "unembedding.weight", "z-loss"},
        ExpectedRefusal{"z_loss", "CE bias shift", "unembedding.bias", "z-loss"},
        ExpectedRefusal{"qk_norm", "QK scale", "layers.0.attention.query.weight", "qk-norm"},
        ExpectedRefusal{"qk_norm_rope", "QK scale", "layers.0.attention.query.weight", "qk-norm"},
        ExpectedRefusal{"qk_norm_gain", "QK linear", "layers.0.attention.query.weight", "qk-norm"},
        ExpectedRefusal{"post_norm", "norm scale", "layers.0.attention_norm.weight",
                        "residual connection"}),
    [](const auto& instance) {
      return std::to_string(instance.index) + "_" + instance.param.entry;
    });

TEST_P(DiscoverRefuses, WithTheReasonInWords) {
  const auto& expected = GetParam();
  const auto group = discovered(zoo_entry(expected.entry), at::kDouble);
  bool listed = false;
  for (const auto& refusal : group.refusals) {
    const bool same =
        refusal.kind == expected.kind &&
        std::count(refusal.tensors.begin(), refusal.tensors.end(), expected.tensor) > 0;
    if (!same) continue;
    listed = true;
    EXPECT_THAT(refusal.reason, ::testing::HasSubstr(expected.reason));
    EXPECT_GT(refusal.residual, 1e-3);
  }
  EXPECT_TRUE(listed) << group;
}

TEST(DiscoverZooTest, TriesAllGaugesTogetherAndRefusesNothingThatTheZooKnows) {
  for (const auto* name : {"ln_relu", "rms_partial_rope", "vit", "conv_relu"}) {
    const auto group = discovered(zoo_entry(name), at::kDouble);
    EXPECT_GT(group.joint_tolerance, 0) << name;
    EXPECT_LE(group.joint_residual, group.joint_tolerance) << name;
    EXPECT_LT(group.joint_residual, 1e-9) << name;
    for (const auto& refusal : group.refusals) {
      for (const auto& finding : group.findings) EXPECT_NE(refusal.name, finding.gauge.name);
    }
  }
}

TEST(DiscoverZooTest, TriesManyGaugesByKindAndFindsTheSame) {
  const auto entry = zoo_entry("ln_relu", {.d_ff = 5, .layers = 4});
  const auto params = entry.testbed.init(entry.seed, at::kDouble);
  const auto expected = entry.testbed.gauges(params);
  ASSERT_GT(expected.size(), 60U);
  const auto group = discovered(entry, at::kDouble);
  EXPECT_THAT(group.notes, ::testing::Contains(::testing::HasSubstr("tried together")));
  std::multiset<std::pair<std::string, std::string>> named;
  for (const auto& gauge : expected) named.insert({gauge.name, gauge.kind});
  std::multiset<std::pair<std::string, std::string>> found;
  for (const auto& gauge : group.gauges()) found.insert({gauge.name, gauge.kind});
  EXPECT_EQ(found, named);
}

}  // namespace
}  // namespace ddc::tests
