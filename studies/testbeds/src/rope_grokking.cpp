#include "ddc/testbeds/rope_grokking.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <string>
#include <vector>

#include "ddc/geometry/observables.h"
#include "draw.h"
#include "layers.h"
#include "options.h"
#include "transformer.h"

namespace ddc::testbeds {
namespace {

constexpr int64_t equation_size = 4;
/// Where in an equation its answer is asked for.
constexpr int64_t equals_position = 2;

int64_t equations_per_sequence(const RopeGrokkingOptions& options) {
  return options.sequence / equation_size;
}

/// Equations for pairs numbered a * p + b, packed into sequences; pairs that do not fill one are left out.
Batch packed(const at::Tensor& pairs, const RopeGrokkingOptions& options) {
  const int64_t equations = equations_per_sequence(options);
  const auto kept = pairs.narrow(0, 0, pairs.size(0) / equations * equations);
  const auto a = kept.div(options.modulus, "floor");
  const auto b = kept.remainder(options.modulus);
  const auto sum = (a + b).remainder(options.modulus);
  const auto tokens = at::stack({a, b, at::full_like(a, options.modulus), sum}, 1);
  const auto targets = at::full_like(tokens, ignored_target);
  targets.select(1, equals_position).copy_(sum);
  return {tokens.view({-1, options.sequence}), targets.view({-1, options.sequence})};
}

struct Pairs {
  at::Tensor train;
  at::Tensor test;
};

Pairs split_pairs(const RopeGrokkingOptions& options) {
  TORCH_CHECK(options.modulus >= 2, "testbed option modulus must be >= 2, got ", options.modulus);
  TORCH_CHECK(options.train_fraction > 0 && options.train_fraction < 1,
              "testbed option train_fraction must be between 0 and 1, got ",
              options.train_fraction);
  TORCH_CHECK(options.sequence > 0 && options.sequence % equation_size == 0,
              "testbed option sequence must be a multiple of ", equation_size, ", got ",
              options.sequence);
  const int64_t pairs = options.modulus * options.modulus;
  const int64_t train = std::llround(options.train_fraction * static_cast<double>(pairs));
  const int64_t equations = equations_per_sequence(options);
  TORCH_CHECK(train >= equations && pairs - train >= equations,
              "testbed option sequence: training pairs (", train, ") and held-out pairs (",
              pairs - train, ") must each fill a sequence, got ", options.sequence);
  const auto order = at::randperm(pairs, generator(options.split_seed, Stream::split), at::kLong);
  return {order.narrow(0, 0, train), order.narrow(0, train, pairs - train)};
}

/// Training pairs in a new order, and again in another as often as the batch asks for.
Batch drawn(const at::Tensor& pairs, const RopeGrokkingOptions& options, uint64_t seed) {
  const int64_t all = pairs.size(0);
  const int64_t wanted =
      options.batch_size == 0 ? all : options.batch_size * equations_per_sequence(options);
  const auto source = generator(seed, Stream::batch);
  std::vector<at::Tensor> orders;
  for (int64_t count = 0; count < wanted; count += all) {
    orders.push_back(at::randperm(all, source, at::kLong));
  }
  return packed(pairs.index_select(0, at::cat(orders).narrow(0, 0, wanted)), options);
}

FeedForward::Kind kind_of(Activation activation) {
  switch (activation) {
    case Activation::relu:
      return FeedForward::Kind::relu;
    case Activation::squared_relu:
      return FeedForward::Kind::squared_relu;
    case Activation::gelu:
      return FeedForward::Kind::gelu;
  }
  TORCH_CHECK(false, "unknown activation ", static_cast<int>(activation));
}

std::vector<Gauge> listed_gauges(Transformer network, const RopeGrokkingOptions& options,
                                 const Parameters& params) {
  if (options.rotation == Rotation::none) network.gauges = GaugeSet::abelian;
  if (options.rotation == Rotation::full) network.rotary = {};
  auto gauges = transformer_gauges(network, params);
  if (!options.scales_and_shifts) {
    std::erase_if(gauges, [](const Gauge& gauge) { return !gauge.mixes(); });
  }
  return gauges;
}

Observations observe(const Testbed& bed, const Transformer& network, const RopeGrokkingSplit& split,
                     const Parameters& params) {
  const at::NoGradGuard no_grad;
  ActivationSpectrum spectrum;
  const auto test = traced_outputs(
      network, params, split.test.inputs, [&](const std::string& name, const at::Tensor& values) {
        if (name != "stream") return;
        spectrum = activation_spectrum(values.index({split.test.targets != ignored_target}));
      });
  return {
      {"train_accuracy", accuracy(bed.outputs(params, split.train.inputs), split.train.targets)},
      {"test_accuracy", accuracy(test, split.test.targets)},
      {"test_bits", cross_entropy(test, split.test.targets).item<double>() / std::log(2)},
      {"sigma_min", spectrum.sigma_min},
      {"effective_rank", spectrum.effective_rank}};
}

}  // namespace

RopeGrokkingSplit rope_grokking_split(const RopeGrokkingOptions& options) {
  const auto pairs = split_pairs(options);
  return {.train = packed(pairs.train, options), .test = packed(pairs.test, options)};
}

Testbed rope_grokking(const RopeGrokkingOptions& options) {
  const auto pairs = split_pairs(options);
  TORCH_CHECK(options.batch_size >= 0, "testbed option batch_size must be >= 0, got ",
              options.batch_size);
  const Transformer network{.vocabulary = options.modulus + 1,
                            .classes = options.modulus,
                            .d_model = options.d_model,
                            .heads = options.heads,
                            .kv_heads = options.heads,
                            .d_ff = options.d_ff,
                            .sequence = options.sequence,
                            .layers = options.layers,
                            .feed_forwards = {{"mlp", kind_of(options.activation)}},
                            .norm = Norm::rms,
                            .rotary = {.pairing = channel_maps::Pairing::half_split},
                            .attention_biases = false,
                            .feed_forward_biases = false,
                            .unembedding_bias = false,
                            .embedding_spread = 1 / std::sqrt(static_cast<double>(options.d_model)),
                            .gauges = GaugeSet::rotations};
  auto bed = transformer_testbed(network);
  bed.name = "rope grokking";
  bed.batch = [options, train = pairs.train](uint64_t seed, at::ScalarType /*dtype*/) {
    return drawn(train, options, seed);
  };
  bed.gauges = [network, options](const Parameters& params) {
    return listed_gauges(network, options, params);
  };
  bed.observe = [bed, network, split = rope_grokking_split(options)](const Parameters& params) {
    return observe(bed, network, split, params);
  };
  return bed;
}

}  // namespace ddc::testbeds
