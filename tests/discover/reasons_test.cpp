// Reasons in words: a small network for each, with a gauge that one would have without what is named.

#include "discover/reasons.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ddc/discover/gate.h"
#include "ddc/gauge/attention.h"
#include "ddc/gauge/norm.h"
#include "ddc/gauge/residual.h"
#include "ddc/gauge/shift.h"
#include "ddc/testbeds/blocks.h"
#include "support/testbeds.h"

namespace ddc::tests {
namespace {

using testbeds::test_generator;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kSize = 8;
constexpr int64_t kTime = 5;

/// Parameters by name, all the same at every run, and data.
struct Reasons : ::testing::Test {
  Parameters params;
  uint64_t seed = 1;

  at::Tensor random(at::IntArrayRef shape) {
    return at::randn(shape, test_generator(seed++), at::kDouble);
  }
  at::Tensor add(const std::string& name, at::IntArrayRef shape) {
    params.add(name, random(shape).requires_grad_());
    return params[name].tensor;
  }
  at::Tensor weight(const std::string& name) { return add(name, {kSize, kSize}); }
  at::Tensor vector(const std::string& name) { return add(name, {kSize}); }
  const NamedTensor& of(const std::string& name) const { return params[name]; }

  const at::Tensor x = at::randn({3, kTime, kSize}, test_generator(100), at::kDouble);
  const at::Tensor target = at::randn({3, kTime, kSize}, test_generator(101), at::kDouble);
  const at::Tensor labels = at::randint(0, kSize, {3 * kTime}, test_generator(102), at::kLong);

  at::Tensor regression(const at::Tensor& y) const { return at::mse_loss(y, target); }
  at::Tensor classification(const at::Tensor& logits) const {
    return at::cross_entropy_loss(logits.reshape({-1, kSize}), labels);
  }
  static at::Tensor rms(const at::Tensor& h) {
    return h * (h.square().mean(-1, true) + 1e-6).rsqrt();
  }

  /// The reason, once the gate has refused.
  template <typename Loss>
  std::string reason(const Gauge& gauge, const Loss& loss) const {
    const Evaluate evaluate = [&](uint64_t) { return Evaluation(loss()); };
    EXPECT_FALSE(gate(gauge, params, evaluate).passed) << gauge.name;
    return reason_of_failure(gauge, params, evaluate);
  }
};

/// One head of attention, with something done to queries and keys.
template <typename Change>
at::Tensor attend(const Parameters& params, const at::Tensor& x, const Change& change) {
  const auto project = [&](const char* name) { return at::linear(x, params[name].tensor); };
  const auto scores = change(project("q")).matmul(change(project("k")).transpose(-1, -2));
  return at::linear(scores.softmax(-1).matmul(project("v")), params["o"].tensor);
}

struct AttentionReasons : Reasons {
  const QueryKey spec;
  AttentionReasons() : spec(make()) {}
  QueryKey make() {
    for (const auto* name : {"q", "k", "v", "o"}) weight(name);
    return {.query = of("q"), .key = of("k"), .name = "qk"};
  }
};

TEST_F(Reasons, NameTheActivationThatIsNotHomogeneous) {
  const auto w1 = weight("w1");
  const auto w2 = weight("w2");
  const auto gauge = relu_rescale({.in = of("w1"), .out = {of("w2")}});
  const auto network = [&](auto activation) {
    return [=, this] { return regression(at::linear(activation(at::linear(x, w1)), w2)); };
  };
  EXPECT_EQ(reason(gauge, network([](const at::Tensor& h) { return at::gelu(h); })),
            "GELU between 'w1' and 'w2' is not homogeneous");
  EXPECT_THAT(reason(gauge, network([](const at::Tensor& h) { return at::silu(h); })),
              HasSubstr("SiLU between 'w1' and 'w2'"));
  EXPECT_THAT(reason(gauge, network([](const at::Tensor& h) { return h.tanh(); })),
              HasSubstr("tanh between"));
  EXPECT_THAT(reason(gauge, network([](const at::Tensor& h) { return h.sigmoid(); })),
              HasSubstr("sigmoid between"));
}

TEST_F(Reasons, NameExponentsThatDoNotFit) {
  const auto w1 = weight("w1");
  const auto w2 = weight("w2");
  const auto gauge = relu_rescale({.in = of("w1"), .out = {of("w2")}});
  EXPECT_THAT(
      reason(gauge, [&] { return regression(at::linear(at::linear(x, w1).relu().square(), w2)); }),
      AllOf(HasSubstr("exponents"), HasSubstr("'w1' and 'w2' (ReLU)")));
}

TEST_F(Reasons, NameWhatIsLeftOut) {
  const auto w1 = weight("w1");
  const auto b1 = vector("b1");
  const auto w2 = weight("w2");
  const auto w3 = weight("w3");
  const auto hidden = [&] { return at::linear(x, w1, b1).relu(); };
  const auto one = [&] { return regression(at::linear(hidden(), w2)); };
  EXPECT_EQ(reason(relu_rescale({.in = of("w1"), .out = {of("w2")}}), one),
            "'b1' is added to what 'w1' makes, and is left out");
  const auto two = [&] { return regression(at::linear(hidden(), w2) + at::linear(hidden(), w3)); };
  EXPECT_EQ(reason(relu_rescale({.in = of("w1"), .in_bias = of("b1"), .out = {of("w2")}}), two),
            "'w3' reads what 'w1' makes, and is left out");
}

TEST_F(Reasons, NameTheReaderOfANormThatIsLeftOut) {
  const auto gain = vector("gain");
  const auto shift = vector("shift");
  const auto a = weight("a");
  const auto b = weight("b");
  const auto bias = vector("bias");
  const auto loss = [&] {
    const auto n = at::layer_norm(x, {kSize}, gain, shift);
    return regression(at::linear(n, a, bias) * at::linear(n, b));
  };
  EXPECT_EQ(
      reason(norm_scale({.gain = of("gain"), .shift = of("shift"), .readers = {of("a")}}), loss),
      "'b' reads what 'gain' makes, and is left out");
  EXPECT_EQ(
      reason(norm_shift_exchange(
                 {.gain = of("gain"), .shift = of("shift"), .readers = {{of("a"), of("bias")}}}),
             loss),
      "'b' reads what 'shift' makes, and is left out");
}

TEST_F(Reasons, NameAResidualConnection) {
  const auto gain = vector("gain");
  const auto a = weight("a");
  const auto loss = [&] {
    const auto n = rms(x) * gain;
    return regression(n + at::linear(n, a).relu() + at::linear(x, a));
  };
  EXPECT_EQ(reason(norm_scale({.gain = of("gain"), .readers = {of("a")}}), loss),
            "a residual connection reads what 'gain' makes as well");
}

TEST_F(Reasons, NameATiedEmbedding) {
  const auto e = weight("e");
  const auto w = weight("w");
  const auto loss = [&] {
    const auto h = at::linear(at::embedding(e, labels), w).relu();
    return at::cross_entropy_loss(at::linear(h, e), labels);
  };
  EXPECT_EQ(reason(cross_entropy_shift(of("e")), loss),
            "tied embedding: 'e' is looked up as an embedding and multiplied as a matrix");
}

TEST_F(Reasons, NameWhatSeesAShiftOfLogits) {
  const auto u = weight("u");
  const auto gauge = cross_entropy_shift(of("u"));
  const auto logits = [&] { return at::linear(x, u); };
  EXPECT_EQ(reason(gauge, [&] { return classification(30 * (logits() / 30).tanh()); }),
            "soft cap: tanh between 'u' and the loss");
  EXPECT_THAT(
      reason(
          gauge,
          [&] { return classification(logits()) + 1e-2 * logits().logsumexp(-1).square().mean(); }),
      HasSubstr("z-loss"));
  EXPECT_THAT(reason(gauge, [&] { return regression(logits()); }), HasSubstr("no softmax"));
}

TEST_F(AttentionReasons, NameAQueryKeyNorm) {
  const auto gain = vector("gain");
  const auto loss = [&](auto norm) {
    return [=, this] { return regression(attend(params, x, norm)); };
  };
  const auto manual = loss([&](const at::Tensor& h) { return rms(h) * gain; });
  EXPECT_EQ(reason(qk_linear(spec), manual),
            "qk-norm: a norm between 'q' and the attention scores");
  const auto fused = loss([](const at::Tensor& h) { return at::layer_norm(h, {kSize}); });
  EXPECT_THAT(reason(qk_scale(spec), fused), HasSubstr("qk-norm: a norm between 'q'"));
}

TEST_F(AttentionReasons, NameARotaryEmbedding) {
  const auto angles =
      at::outer(at::arange(kTime, at::kDouble), at::arange(1, kSize / 2 + 1, at::kDouble));
  const auto turn = [&](const at::Tensor& h) {
    const auto half = h.chunk(2, -1);
    const auto turned = at::cat({-half[1], half[0]}, -1);
    return h * at::cat({angles, angles}, -1).cos() + turned * at::cat({angles, angles}, -1).sin();
  };
  const auto loss = [&] { return regression(attend(params, x, turn)); };
  EXPECT_THAT(reason(qk_rotation(spec), loss),
              HasSubstr("rotary embedding between 'q' and the attention scores"));
  EXPECT_THAT(reason(qk_linear(spec), loss), HasSubstr("rotary embedding"));
}

TEST_F(AttentionReasons, NameANormBeforeTheOutputProjection) {
  const auto loss = [&] {
    const auto heads = at::linear(x, of("q").tensor)
                           .matmul(at::linear(x, of("k").tensor).transpose(-1, -2))
                           .softmax(-1)
                           .matmul(at::linear(x, of("v").tensor));
    return regression(at::linear(rms(heads), of("o").tensor));
  };
  const ValueOutput values{.value = of("v"), .output = of("o")};
  EXPECT_EQ(reason(vo_scale(values), loss), "a norm between 'v' and 'o'");
}

TEST_F(AttentionReasons, SuspectHeadsOfAnotherSize) {
  const auto loss = [&] {
    const auto heads = [&](const char* name) {
      return at::linear(x, of(name).tensor).view({3, kTime, 2, kSize / 2}).transpose(1, 2);
    };
    const auto y = heads("q").matmul(heads("k").transpose(-1, -2)).softmax(-1).matmul(heads("v"));
    return regression(at::linear(y.transpose(1, 2).flatten(2), of("o").tensor));
  };
  EXPECT_THAT(reason(qk_rotation(spec), loss), HasSubstr("heads of another size?"));
}

TEST_F(Reasons, NameARotationAcrossAnActivation) {
  weight("v");
  weight("o");
  const auto loss = [&] {
    return regression(at::linear(at::linear(x, of("v").tensor).relu(), of("o").tensor));
  };
  EXPECT_EQ(reason(vo_rotation({.value = of("v"), .output = of("o")}), loss),
            "ReLU between 'v' and 'o' acts on each coordinate by itself");
}

TEST_F(Reasons, NameANormThatDoesNotSubtractTheMean) {
  const auto gain = vector("gain");
  const auto w = weight("w");
  const auto a = weight("a");
  const auto loss = [&] { return regression(at::linear(rms(at::linear(x, w)) * gain, a)); };
  const auto kernel = norm_kernel_shifts({.gain = of("gain"), .readers = {{of("a")}}}).front();
  EXPECT_EQ(reason(kernel, loss),
            "the norm before 'a' is not a LayerNorm: it does not subtract the mean");
  EXPECT_EQ(reason(residual_mean_shift({of("w"), 0}), loss),
            "the norm that reads 'w' is not a LayerNorm: it does not subtract the mean");
}

TEST_F(Reasons, SayWhenOnlyTheEpsOfANormIsInTheWay) {
  const auto w = weight("w");
  const auto a = weight("a");
  Gauge gauge;
  gauge.name = "scale";
  gauge.channels = 1;
  gauge.legs = {{.tensor = "w", .channel_of = channel_maps::whole(kSize)}};
  EXPECT_EQ(reason(gauge, [&] { return regression(at::linear(rms(at::linear(x, w)), a)); }),
            "nearly one: a norm undoes the scale of 'w' up to its eps");
}

TEST_F(Reasons, NameATensorThatIsUsedTwice) {
  const auto w1 = weight("w1");
  const auto w2 = weight("w2");
  const auto loss = [&] {
    return regression(at::linear(at::linear(x, w1).relu(), w2) + at::linear(x, w2));
  };
  EXPECT_EQ(reason(relu_rescale({.in = of("w1"), .out = {of("w2")}}), loss),
            "'w2' is used 2 times");
}

TEST_F(Reasons, SayWhatWasMeasuredOtherwise) {
  const auto w = weight("w");
  Gauge gauge;
  gauge.name = "scale";
  gauge.channels = kSize;
  gauge.legs = {{.tensor = "w"}};
  EXPECT_THAT(reason(gauge, [&] { return regression(at::linear(x, w)); }),
              AllOf(HasSubstr("the loss changes by "), HasSubstr("rounding allows")));
  const auto frozen = [&] { return regression(at::linear(x, w.detach())); };
  EXPECT_THAT(reason(gauge, frozen), HasSubstr("the loss changes"));
}

TEST_F(Reasons, NameTheNormThatARotationOfTheStreamForgets) {
  const auto bed = testbeds::rms_norm_block({.gauges = testbeds::GaugeSet::with_residual_rotation});
  params = bed.init(1, at::kDouble);
  auto gauge = testbeds::gauge_called(bed.gauges(params), "residual:rotation");
  std::erase_if(gauge.legs,
                [](const Leg& leg) { return leg.through.gain == "layers.0.mlp_norm.weight"; });
  EXPECT_THAT(reason(gauge, [&] { return bed.loss(params, bed.batch(0, at::kDouble)); }),
              HasSubstr("'layers.0.mlp_norm.weight' reads what 'embedding.weight' makes"));
}

}  // namespace
}  // namespace ddc::tests
