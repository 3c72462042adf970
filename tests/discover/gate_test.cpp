// The gate: gauges of the testbeds pass with room to spare, and what is nearly one of them does not.

#include "ddc/discover/gate.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "ddc/gauge/attention.h"
#include "ddc/gauge/norm.h"
#include "ddc/gauge/shift.h"
#include "ddc/testbeds/blocks.h"
#include "support/errors.h"
#include "support/testbeds.h"

namespace ddc::tests {
namespace {

using testbeds::flattened;
using testbeds::gauge_called;
using testbeds::GaugeSet;
using testbeds::Testbed;
using testbeds::with_exponent;
using testbeds::without_leg;

/// How far residuals stay from their tolerance: those of gauges below, those of others above.
constexpr double kPassMargin = 3;
constexpr double kFailMargin = 10;

void expect_passes(const Verdict& verdict, const std::string& what) {
  EXPECT_TRUE(verdict.passed) << what;
  EXPECT_LE(verdict.residual * kPassMargin, verdict.tolerance) << what << ", " << verdict.worst;
  EXPECT_GT(verdict.tolerance, 0) << what;
}

void expect_fails(const Verdict& verdict, const std::string& what) {
  EXPECT_FALSE(verdict.passed) << what;
  EXPECT_GE(verdict.residual, verdict.tolerance * kFailMargin) << what << ", " << verdict.worst;
}

struct Network {
  const char* name;
  Testbed (*make)(GaugeSet set);
};
void PrintTo(const Network& network, std::ostream* out) { *out << network.name; }

struct TrueGauges : ::testing::TestWithParam<Network> {};

TEST_P(TrueGauges, PassAloneAndTogetherInBothPrecisions) {
  for (const auto set : {GaugeSet::abelian, GaugeSet::with_residual_rotation}) {
    const auto bed = GetParam().make(set);
    for (const auto type : {at::kDouble, at::kFloat}) {
      for (uint64_t seed = 0; seed < 2; ++seed) {
        const auto params = bed.init(seed, type);
        const auto gauges = bed.gauges(params);
        const auto evaluate = evaluation_of(bed, params);
        const auto before = flattened(params);
        for (const auto& gauge : gauges) {
          const auto verdict = gate(gauge, params, evaluate, {.seed = seed});
          expect_passes(verdict, gauge.name + " " + toString(type));
          EXPECT_EQ(verdict.shifts_logits, gauge.kind.rfind("CE ", 0) == 0) << gauge.name;
        }
        const auto together = gate(gauges, params, evaluate, {.seed = seed});
        expect_passes(together, std::string("all, ") + toString(type));
        EXPECT_TRUE(together.shifts_logits);
        EXPECT_TRUE(flattened(params).equal(before));
      }
    }
  }
}

TEST_P(TrueGauges, NeedNoOutputs) {
  const auto bed = GetParam().make(GaugeSet::with_residual_rotation);
  const auto params = bed.init(5, at::kDouble);
  const Evaluate loss_only = [&](uint64_t number) {
    return bed.loss(params, bed.batch(number, at::kDouble));
  };
  const auto verdict = gate(bed.gauges(params), params, loss_only);
  expect_passes(verdict, "all");
  EXPECT_EQ(verdict.worst, "loss");
  EXPECT_FALSE(verdict.shifts_logits);
}

INSTANTIATE_TEST_SUITE_P(
    Networks, TrueGauges,
    ::testing::Values(
        Network{"layer_norm",
                [](GaugeSet set) { return testbeds::layer_norm_block({.gauges = set}); }},
        Network{"rms_norm", [](GaugeSet set) { return testbeds::rms_norm_block({.gauges = set}); }},
        Network{"gemma_norm",
                [](GaugeSet set) {
                  return testbeds::rms_norm_block({.gain_is_offset = true, .gauges = set});
                }},
        Network{"gpt_j", [](GaugeSet set) { return testbeds::gpt_j_block({.gauges = set}); }},
        Network{"vit", [](GaugeSet set) { return testbeds::vit_block({.gauges = set}); }}),
    [](const auto& instance) { return std::string(instance.param.name); });

/// What is nearly a gauge of one of two networks.
struct WrongGauges : ::testing::TestWithParam<at::ScalarType> {
  const Testbed layer_norm =
      testbeds::layer_norm_block({.gauges = GaugeSet::with_residual_rotation});
  const Testbed rms_norm = testbeds::rms_norm_block({.gauges = GaugeSet::with_residual_rotation});
  const Parameters with_biases = layer_norm.init(1, GetParam());
  const Parameters rotary = rms_norm.init(1, GetParam());

  Gauge of_layer_norm(const std::string& name) const {
    return gauge_called(layer_norm.gauges(with_biases), name);
  }
  Gauge of_rms_norm(const std::string& name) const {
    return gauge_called(rms_norm.gauges(rotary), name);
  }
  void refused_by_layer_norm(const std::string& what, const Gauge& gauge) const {
    expect_fails(gate(gauge, with_biases, evaluation_of(layer_norm, with_biases)), what);
  }
  void refused_by_rms_norm(const std::string& what, const Gauge& gauge) const {
    expect_fails(gate(gauge, rotary, evaluation_of(rms_norm, rotary)), what);
  }
  QueryKey queries_and_keys(channel_maps::Pairing pairing) const {
    return {.query = rotary["layers.0.attention.query.weight"],
            .key = rotary["layers.0.attention.key.weight"],
            .heads = 4,
            .kv_heads = 2,
            .pairing = pairing};
  }
};

TEST_P(WrongGauges, WithAWrongExponentAreRefused) {
  refused_by_layer_norm("relu of degree 2",
                        with_exponent(of_layer_norm("layers.0.mlp.up.weight:rescale"), 2, -2));
  refused_by_layer_norm(
      "squared relu of degree 1",
      with_exponent(of_layer_norm("layers.0.squared_mlp.up.weight:rescale"), 2, -1));
  refused_by_layer_norm(
      "queries against half of the keys",
      with_exponent(of_layer_norm("layers.0.attention_norm.weight:scale"), 3, -0.99));
}

TEST_P(WrongGauges, ThatForgetALegAreRefused) {
  refused_by_layer_norm("bias", without_leg(of_layer_norm("layers.0.mlp.up.weight:rescale"), 1));
  refused_by_layer_norm("reader",
                        without_leg(of_layer_norm("layers.0.attention_norm.weight:scale"), 3));
  refused_by_rms_norm("reader", without_leg(of_rms_norm("layers.0.mlp_norm.weight:scale"), 1));
  refused_by_layer_norm("bias of the values",
                        without_leg(of_layer_norm("layers.0.attention.value.weight:vo_linear"), 1));
  refused_by_layer_norm("reader of an exchange",
                        without_leg(of_layer_norm("layers.0.attention_norm.bias:exchange"), 3));
  refused_by_layer_norm("positions", without_leg(of_layer_norm("embedding.weight:exchange"), 1));
}

TEST_P(WrongGauges, WithPlanesPairedWronglyAreRefused) {
  const auto spec = queries_and_keys(channel_maps::Pairing::interleaved);
  refused_by_rms_norm("torus", qk_torus(spec));
  refused_by_rms_norm("plane scale", qk_scale(spec));
}

TEST_P(WrongGauges, OfHeadsThatAreTooLargeAreRefused) {
  const ValueOutput spec{.value = with_biases["layers.0.attention.value.weight"],
                         .value_bias = with_biases["layers.0.attention.value.bias"],
                         .output = with_biases["layers.0.attention.output.weight"],
                         .heads = 2};
  refused_by_layer_norm("vo rotation", vo_rotation(spec));
  refused_by_layer_norm("vo linear", vo_linear(spec));
}

TEST_P(WrongGauges, ThatRotaryEmbeddingBreaksAreRefused) {
  const auto spec = queries_and_keys(channel_maps::Pairing::none);
  refused_by_rms_norm("linear", qk_linear(spec));
  refused_by_rms_norm("rotation", qk_rotation(spec));
}

TEST_P(WrongGauges, ThatNeedALayerNormAreRefusedUnderAnRmsNorm) {
  const auto shifts =
      norm_kernel_shifts({.gain = rotary["layers.0.mlp_norm.weight"],
                          .readers = {{.weight = rotary["layers.0.mlp.up.weight"]}}});
  refused_by_rms_norm("kernel shift", shifts.front());
}

TEST_P(WrongGauges, ShiftsOfLogitsUnderAZLossAreRefused) {
  const auto gauge = of_layer_norm("unembedding.weight:shift");
  const Evaluate with_z_loss = [&](uint64_t number) {
    const auto batch = layer_norm.batch(number, GetParam());
    const auto logits = layer_norm.outputs(with_biases, batch.inputs);
    const auto z = logits.logsumexp(-1).square().mean();
    return Evaluation(layer_norm.loss(with_biases, batch) + 1e-4 * z, logits);
  };
  const auto verdict = gate(gauge, with_biases, with_z_loss);
  expect_fails(verdict, "z-loss");
  EXPECT_EQ(verdict.worst, "loss");
  EXPECT_FALSE(verdict.shifts_logits);
}

TEST_P(WrongGauges, RotationsOfTheStreamThatForgetANormAreRefused) {
  auto gauge = of_rms_norm("residual:rotation");
  const auto count = std::erase_if(
      gauge.legs, [](const Leg& leg) { return leg.through.gain == "layers.0.mlp_norm.weight"; });
  ASSERT_GT(count, 0U);
  refused_by_rms_norm("residual rotation", gauge);
}

TEST_P(WrongGauges, ThatOnlyTheEpsOfANormBreaksAreRefused) {
  // What writes to the stream, all larger by the same factor.
  Gauge gauge;
  gauge.name = "scale of the residual stream";
  gauge.action = Action::scale;
  gauge.channels = 1;
  for (const std::string name :
       {"embedding.weight", "layers.0.attention.output.weight", "layers.0.mlp.down.weight"}) {
    gauge.legs.push_back(
        {.tensor = name, .channel_of = channel_maps::whole(rotary[name].tensor.size(0))});
  }
  for (const double eps : {1e-5, 1e-6}) {
    const auto bed = testbeds::rms_norm_block({.norm_eps = eps});
    for (const double sign : {1.0, -1.0}) {
      for (auto& leg : gauge.legs) leg.exponent = sign;
      expect_fails(gate(gauge, rotary, evaluation_of(bed, rotary)), gauge.name);
    }
  }
  const auto exact = testbeds::rms_norm_block({.norm_eps = 0});
  expect_passes(gate(gauge, rotary, evaluation_of(exact, rotary)), "without eps");
}

TEST_P(WrongGauges, SpoilAListOfGauges) {
  auto gauges = layer_norm.gauges(with_biases);
  for (auto& gauge : gauges) {
    if (gauge.name == "layers.0.mlp.up.weight:rescale") gauge = without_leg(gauge, 1);
  }
  expect_fails(gate(gauges, with_biases, evaluation_of(layer_norm, with_biases)), "one of many");
}

INSTANTIATE_TEST_SUITE_P(Types, WrongGauges, ::testing::Values(at::kDouble, at::kFloat),
                         [](const auto& instance) {
                           return std::string(toString(instance.param));
                         });

/// y = sum of w, with a gauge of sizes that matter: a scale that is none.
struct Gates : ::testing::Test {
  const at::Tensor weight = at::arange(1, 5, at::kDouble).requires_grad_();
  const Parameters params{std::vector<NamedTensor>{{"w", weight}}};
  Gauge gauge;
  const at::Tensor before = weight.detach().clone();

  Gates() {
    gauge.name = "scale";
    gauge.channels = 4;
    gauge.legs = {{.tensor = "w"}};
  }
  void TearDown() override { EXPECT_TRUE(weight.detach().equal(before)); }
};

TEST_F(Gates, RestoreParametersWhenAnEvaluationThrows) {
  for (int allowed = 0; allowed < 12; ++allowed) {
    int calls = 0;
    const Evaluate evaluate = [&](uint64_t) {
      TORCH_CHECK(calls++ < allowed, "no more");
      return Evaluation(weight.sum() * 0 + 1);
    };
    expect_error([&] { gate(gauge, params, evaluate); }, {"no more"});
    EXPECT_TRUE(weight.detach().equal(before)) << allowed;
  }
}

TEST_F(Gates, EvaluateWithoutGradients) {
  const Evaluate evaluate = [&](uint64_t) {
    EXPECT_FALSE(at::GradMode::is_enabled());
    return Evaluation(weight.sum());
  };
  EXPECT_FALSE(gate(gauge, params, evaluate).passed);
  EXPECT_FALSE(weight.grad().defined());
}

TEST_F(Gates, NameTheBatchWhoseLossIsNotFinite) {
  const Evaluate evaluate = [&](uint64_t batch) {
    return Evaluation(batch == 1 ? (weight - 10).log().sum() : weight.sum());
  };
  expect_error([&] { gate(gauge, params, evaluate); }, {"batch 1", "nan"});
}

TEST_F(Gates, RefuseWhatLeadsToNaN) {
  // Finite at the weights, and not far from them.
  const Evaluate evaluate = [&](uint64_t) {
    return Evaluation((weight - before + 1e-9).sqrt().sum() * 1e-30 + 1);
  };
  const auto verdict = gate(gauge, params, evaluate);
  EXPECT_FALSE(verdict.passed);
  EXPECT_EQ(verdict.residual, std::numeric_limits<double>::infinity());
  EXPECT_EQ(verdict.worst, "loss");
}

TEST_F(Gates, RefuseToJudgeALossThatChangesByItself) {
  int calls = 0;
  const Evaluate evaluate = [&](uint64_t) { return Evaluation(weight.sum() + ++calls); };
  expect_error([&] { gate(gauge, params, evaluate); }, {"batch 0", "same loss"});
}

TEST_F(Gates, DoNotTakeASingleOutputForAShiftOfLogits) {
  const Evaluate evaluate = [&](uint64_t) {
    return Evaluation(weight.sum() * 0 + 1, weight.sum().view({1, 1}));
  };
  const auto verdict = gate(gauge, params, evaluate);
  EXPECT_FALSE(verdict.passed);
  EXPECT_EQ(verdict.worst, "outputs");
}

TEST_F(Gates, PassWhatTheLossIsBlindTo) {
  const Evaluate evaluate = [&](uint64_t batch) {
    return Evaluation(at::ones({}, at::kDouble) * (1.0 + static_cast<double>(batch)));
  };
  EXPECT_TRUE(gate(gauge, params, evaluate).passed);
}

TEST_F(Gates, NameOptionsThatMakeNoSense) {
  const Evaluate evaluate = [&](uint64_t) { return Evaluation(weight.sum()); };
  expect_error([&] { gate(gauge, params, evaluate, {.batches = 0}); }, {"batches", "0"});
  expect_error([&] { gate(gauge, params, evaluate, {.sizes = {}}); }, {"sizes"});
  expect_error([&] { gate(gauge, params, evaluate, {.sizes = {-1}}); }, {"sizes", "-1"});
  expect_error([&] { gate(gauge, params, Evaluate()); }, {"evaluate"});
  expect_error([&] { gate(gauge, params, [&](uint64_t) { return Evaluation(weight * 1); }); },
               {"batch 0", "scalar"});
}

TEST(Reseeded, GivesTheSameBatchForTheSameNumberAndLeavesTheGeneratorAlone) {
  const auto evaluate = reseeded([] { return Evaluation(at::randn({}, at::kDouble)); });
  const auto first = evaluate(3).loss;
  const auto drawn = at::randn({});
  EXPECT_TRUE(evaluate(3).loss.equal(first));
  EXPECT_FALSE(evaluate(4).loss.equal(first));

  const auto generator = at::globalContext().defaultGenerator(at::Device(at::kCPU));
  const auto state = generator.get_state();
  evaluate(5);
  EXPECT_TRUE(generator.get_state().equal(state));
  const auto throwing = reseeded([]() -> Evaluation { TORCH_CHECK(false, "never"); });
  expect_error([&] { throwing(6); }, {"never"});
  EXPECT_TRUE(generator.get_state().equal(state));
  expect_error([] { reseeded(nullptr); }, {"empty"});
  EXPECT_TRUE(drawn.defined());
}

}  // namespace
}  // namespace ddc::tests
