#include "ddc/testbeds/zoo.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>
#include <utility>

#include "ddc/gauge/norm.h"
#include "ddc/gauge/rescale.h"
#include "ddc/testbeds/blocks.h"
#include "tasks.h"
#include "transformer.h"
#include "zoo_networks.h"

namespace ddc::testbeds {
namespace {

using channel_maps::Pairing;
using Kind = FeedForward::Kind;

/// A network that has gauges which the one at hand has not, and why it has not.
struct Imagined {
  Transformer network;
  std::string reason;
};

struct TransformerEntry {
  std::string name;
  std::string description;
  Transformer network;
  std::vector<Imagined> imagined = {};
  std::function<std::vector<Refused>(const Parameters& params)> refused = nullptr;
  int64_t unexplained = 0;
  uint64_t seed = 1;
};

/// LayerNorm, learned positions and biases everywhere.
Transformer with_layer_norm(const ZooShape& shape, Kind kind) {
  return {.vocabulary = shape.vocabulary,
          .classes = shape.vocabulary,
          .d_model = shape.d_model,
          .heads = shape.heads,
          .kv_heads = shape.heads,
          .d_ff = shape.d_ff,
          .sequence = shape.sequence,
          .layers = shape.layers,
          .feed_forwards = {{"mlp", kind}},
          .norm_eps = shape.norm_eps,
          .gain_spread = 0.2,
          .bias_spread = 0.2,
          .gauges = GaugeSet::with_residual_rotation};
}

Transformer without_biases(Transformer network) {
  network.norm_shifts = false;
  network.attention_biases = false;
  network.feed_forward_biases = false;
  network.unembedding_bias = false;
  return network;
}

/// RMSNorm, rotary positions, no biases.
Transformer with_rms_norm(const ZooShape& shape, Kind kind, int64_t kv_heads, Rotary rotary) {
  auto network = without_biases(with_layer_norm(shape, kind));
  network.norm = Norm::rms;
  network.kv_heads = kv_heads;
  network.rotary = rotary;
  return network;
}

template <class Change>
Transformer changed(Transformer network, Change change) {
  change(network);
  return network;
}

ZooEntry make(const ZooShape& shape, const TransformerEntry& spec) {
  ZooEntry entry;
  entry.name = spec.name;
  entry.description = spec.description;
  entry.testbed = transformer_testbed(spec.network);
  entry.testbed.name = spec.name;
  entry.testbed.batch =
      token_sums(shape.vocabulary, /*multiplier=*/3, shape.batch_size, shape.sequence);
  entry.refused = [spec](const Parameters& params) {
    const auto actual = transformer_gauges(spec.network, params);
    std::vector<Refused> result;
    if (spec.refused) result = spec.refused(params);
    for (const auto& [network, reason] : spec.imagined) {
      for (auto& refused : refuse(transformer_gauges(network, params), actual, reason)) {
        result.push_back(std::move(refused));
      }
    }
    return result;
  };
  entry.log_softmax = spec.network.z_loss == 0;
  entry.unexplained = spec.unexplained;
  entry.seed = spec.seed;
  return entry;
}

Imagined other_feed_forward(const Transformer& network, Kind kind, std::string reason) {
  return {changed(network, [&](Transformer& t) { t.feed_forwards.front().kind = kind; }),
          std::move(reason)};
}
Imagined layer_norm_instead(const Transformer& network) {
  return {changed(network, [](Transformer& t) { t.norm = Norm::layer; }),
          "RMSNorm does not subtract the mean"};
}
Imagined no_rotary(const Transformer& network) {
  return {changed(network, [](Transformer& t) { t.rotary = {}; }),
          "rotary embedding turns queries and keys by angles that depend on the position"};
}
Imagined other_pairing(const Transformer& network) {
  return {changed(network,
                  [](Transformer& t) {
                    t.rotary.pairing = t.rotary.pairing == Pairing::half_split
                                           ? Pairing::interleaved
                                           : Pairing::half_split;
                  }),
          network.rotary.pairing == Pairing::half_split
              ? "rotary planes are made of coordinates half a head apart"
              : "rotary planes are made of adjacent coordinates"};
}
Imagined all_rotary(const Transformer& network) {
  return {changed(network, [](Transformer& t) { t.rotary.size = {}; }),
          "the rotary embedding turns a part of each head only"};
}
Imagined untied(const Transformer& network) {
  return {changed(network, [](Transformer& t) { t.tied = false; }),
          "the unembedding is tied to the embedding"};
}

/// Both factors of a gated part are multiplied, but only one of them is linear.
std::vector<Refused> gate_rescale(const Parameters& params, const char* reason) {
  return {{relu_rescale({.in = params["layers.0.mlp.gate.weight"],
                         .out = {params["layers.0.mlp.down.weight"]}}),
           reason}};
}

Gauge scale_of(const NormReaders& norm) {
  NormScale spec{.gain = norm.gain, .shift = norm.shift, .readers = {}};
  for (const auto& reader : norm.readers) spec.readers.push_back(reader.weight);
  return norm_scale(spec);
}

/// The scale of a norm's gain against what reads it next.
std::function<std::vector<Refused>(const Parameters&)> first_norm_scale(const Transformer& network,
                                                                        const char* reason) {
  return [=](const Parameters& params) {
    return std::vector<Refused>{{scale_of(norms_with_readers(network, params).front()), reason}};
  };
}

std::vector<TransformerEntry> with_layer_norms(const ZooShape& shape) {
  std::vector<TransformerEntry> result;
  const auto relu = with_layer_norm(shape, Kind::relu);
  result.push_back(
      {"ln_relu",
       "LayerNorm, ReLU, learned positions, biases everywhere",
       relu,
       {other_feed_forward(relu, Kind::squared_relu, "ReLU is homogeneous of degree 1, not 2")}});
  const auto squared = with_layer_norm(shape, Kind::squared_relu);
  result.push_back({"ln_squared_relu",
                    "LayerNorm, squared ReLU, learned positions, biases everywhere",
                    squared,
                    {other_feed_forward(squared, Kind::relu,
                                        "squared ReLU is homogeneous of degree 2, not 1")}});
  const auto gelu = with_layer_norm(shape, Kind::gelu);
  result.push_back({"ln_gelu",
                    "LayerNorm, GELU, learned positions, biases everywhere",
                    gelu,
                    {other_feed_forward(gelu, Kind::relu, "GELU is not homogeneous")}});
  const auto bare = without_biases(relu);
  result.push_back(
      {"ln_no_bias",
       "LayerNorm with a gain and no shift, ReLU, learned positions, no biases",
       bare,
       {other_feed_forward(bare, Kind::squared_relu, "ReLU is homogeneous of degree 1, not 2")}});
  const auto tied = changed(squared, [](Transformer& t) { t.tied = true; });
  result.push_back(
      {"tied",
       "LayerNorm, squared ReLU, learned positions; the unembedding is the embedding. "
       "What all tokens gain the positions may lose: the logits all gain the same then",
       tied,
       {untied(tied)}});
  const auto scaled = changed(squared, [](Transformer& t) { t.layer_scale = true; });
  const auto no_scale = [](Transformer& t) { t.layer_scale = false; };
  result.push_back(
      {"layer_scale",
       "LayerNorm, squared ReLU, biases everywhere; every branch is multiplied by a learned vector",
       scaled,
       {{changed(scaled, no_scale), "the layer's scale tells the channels apart"}}});
  const auto norms_after = [](Transformer& t) {
    t.norm_place = NormPlace::after;
    t.final_norm = false;
  };
  const auto post = changed(without_biases(squared), norms_after);
  result.push_back({"post_norm",
                    "x = norm(x + branch(x)) with LayerNorms without shift, squared ReLU, no "
                    "biases; a norm after the embedding, and none before the unembedding",
                    post,
                    {},
                    first_norm_scale(post, "the residual stream goes on from the norm's output")});
  const auto bert = changed(gelu, norms_after);
  result.push_back({"post_norm_bias",
                    "x = norm(x + branch(x)) with LayerNorms, GELU, biases everywhere (BERT). What "
                    "the shift of a norm gains, the biases of its readers and that of the matrix "
                    "that writes next may lose",
                    bert,
                    {},
                    first_norm_scale(bert, "the residual stream goes on from the norm's output")});
  const auto sandwich = changed(squared, [](Transformer& t) { t.norm_place = NormPlace::around; });
  result.push_back(
      {"sandwich_norm",
       "x += post_norm(branch(norm(x))) with LayerNorms, squared ReLU, biases everywhere",
       sandwich,
       {{changed(sandwich, [](Transformer& t) { t.norm_place = NormPlace::before; }),
         "a norm's gain, which tells channels apart, writes to the residual stream"}}});
  const auto z_loss = changed(squared, [](Transformer& t) { t.z_loss = 1e-2; });
  result.push_back({"z_loss",
                    "LayerNorm, squared ReLU; the loss has a term in logsumexp(logits)",
                    z_loss,
                    {{squared, "a z-loss sees a constant in all logits"}}});
  const auto neox = changed(gelu, [&](Transformer& t) {
    t.packing = Packing::per_head;
    t.rotary = {.pairing = Pairing::half_split,
                .size = std::max<int64_t>(2, shape.d_model / shape.heads / 4 * 2)};
  });
  result.push_back(
      {"neox",
       "LayerNorm, GELU, biases; query, key and value of each head stand together in one tensor, "
       "and rotary embedding turns a part of each head",
       neox,
       {{changed(neox, [](Transformer& t) { t.packing = Packing::stacked; }),
         "query, key and value are packed head by head"},
        no_rotary(neox)}});
  return result;
}

std::vector<TransformerEntry> with_rms_norms(const ZooShape& shape) {
  std::vector<TransformerEntry> result;
  const int64_t head_size = shape.d_model / std::max<int64_t>(shape.heads, 1);
  const int64_t grouped = shape.heads % 2 == 0 ? shape.heads / 2 : 1;
  const Rotary half_split{.pairing = Pairing::half_split};
  const auto swiglu = with_rms_norm(shape, Kind::swiglu, grouped, half_split);
  const auto refused_gate = [](const char* reason) {
    return [reason](const Parameters& params) { return gate_rescale(params, reason); };
  };
  result.push_back({"rms_swiglu_rope",
                    "RMSNorm, grouped-query attention, rotary (half a head apart), SwiGLU",
                    swiglu,
                    {layer_norm_instead(swiglu), no_rotary(swiglu), other_pairing(swiglu)},
                    refused_gate("SiLU is not homogeneous")});
  const auto interleaved =
      with_rms_norm(shape, Kind::swiglu, shape.heads, {.pairing = Pairing::interleaved});
  result.push_back({"rms_swiglu_interleaved",
                    "RMSNorm, rotary (adjacent coordinates), SwiGLU",
                    interleaved,
                    {no_rotary(interleaved), other_pairing(interleaved)}});
  const auto geglu = with_rms_norm(shape, Kind::geglu, 1, half_split);
  result.push_back({"rms_geglu_mqa",
                    "RMSNorm, one key and value head for all query heads, rotary, GEGLU",
                    geglu,
                    {no_rotary(geglu)},
                    refused_gate("GELU is not homogeneous")});
  const auto partial = with_rms_norm(
      shape, Kind::swiglu, grouped,
      {.pairing = Pairing::half_split, .size = std::max<int64_t>(2, head_size / 4 * 2)});
  result.push_back({"rms_partial_rope",
                    "RMSNorm, grouped-query attention, rotary embedding of a part of each head",
                    partial,
                    {no_rotary(partial), all_rotary(partial)}});
  const auto learned = with_rms_norm(shape, Kind::swiglu, grouped, {});
  result.push_back({"rms_no_rope",
                    "RMSNorm, grouped-query attention without rotary embedding, learned positions",
                    learned,
                    {layer_norm_instead(learned)}});
  const auto gemma = changed(geglu, [](Transformer& t) {
    t.gain_is_offset = true;
    t.tied = true;
  });
  result.push_back({"gemma",
                    "RMSNorm that stores its gain as 1 + w, GEGLU, rotary, tied embedding",
                    gemma,
                    {untied(gemma)}});
  const auto plain = changed(swiglu, [](Transformer& t) { t.qk_norm = QkNorm::plain; });
  const auto no_qk_norm = [](Transformer& t) { t.qk_norm = QkNorm::none; };
  result.push_back(
      {"qk_norm_rope",
       "RMSNorm of each query and key head, without gain, before the rotary embedding",
       plain,
       {{changed(plain, no_qk_norm), "a norm divides queries and keys by their size"}}});
  const auto no_rope = [](Transformer& t) { t.rotary = {}; };
  const auto plain_learned = changed(plain, no_rope);
  result.push_back(
      {"qk_norm",
       "RMSNorm of each query and key head, without gain; learned positions",
       plain_learned,
       {{changed(plain_learned, no_qk_norm), "a norm divides queries and keys by their size"}}});
  const auto with_gain = [](Transformer& t) { t.qk_norm = QkNorm::with_gain; };
  const auto gain = changed(swiglu, with_gain);
  result.push_back({"qk_norm_gain_rope",
                    "RMSNorm of each query and key head, with a gain that the heads share, before "
                    "the rotary embedding",
                    gain,
                    {{plain, "the gain of the norm tells the coordinates of a head apart"}}});
  const auto gain_learned = changed(gain, no_rope);
  result.push_back(
      {"qk_norm_gain",
       "RMSNorm of each query and key head, with a gain that the heads share; learned "
       "positions",
       gain_learned,
       {{plain_learned, "the gain of the norm tells the coordinates of a head apart"}}});
  const auto softcap = changed(swiglu, [](Transformer& t) { t.softcap = 5; });
  result.push_back({"softcap",
                    "RMSNorm, SwiGLU, rotary; logits -> 5 tanh(logits / 5)",
                    softcap,
                    {{swiglu, "a soft cap sees a constant in all logits"}}});
  const auto fused = changed(swiglu, [](Transformer& t) {
    t.kv_heads = t.heads;
    t.packing = Packing::stacked;
    t.fused_gate_up = true;
  });
  result.push_back(
      {"fused_qkv",
       "RMSNorm, SwiGLU, rotary; one tensor for query, key and value, and one for gate "
       "and up projection",
       fused,
       {{changed(fused, [](Transformer& t) { t.packing = Packing::per_head; }),
         "all queries come first, then all keys, then all values"}}});
  return result;
}

ZooEntry vit_entry(const ZooShape& shape) {
  const VitBlockOptions options{.patches = shape.sequence,
                                .classes = shape.vocabulary,
                                .d_model = shape.d_model,
                                .heads = shape.heads,
                                .d_ff = shape.d_ff,
                                .batch_size = shape.batch_size,
                                .layers = std::max<int64_t>(shape.layers, 2),
                                .norm_eps = shape.norm_eps,
                                .gauges = GaugeSet::with_residual_rotation};
  ZooEntry entry;
  entry.name = "vit";
  entry.description =
      "patches, class token and learned positions, LayerNorm, squared ReLU, biases everywhere; "
      "attention that is not causal, at least two layers";
  entry.testbed = vit_block(options);
  entry.testbed.name = entry.name;
  entry.refused = [gauges = entry.testbed.gauges](const Parameters& params) {
    auto scale = relu_rescale({.in = params["layers.0.mlp.up.weight"],
                               .in_bias = params["layers.0.mlp.up.bias"],
                               .out = {params["layers.0.mlp.down.weight"]}});
    return refuse({scale}, gauges(params), "squared ReLU is homogeneous of degree 2, not 1");
  };
  return entry;
}

}  // namespace

std::vector<std::string> Refused::tensors() const {
  std::vector<std::string> result;
  for (const auto& leg : gauge.legs) {
    if (std::find(result.begin(), result.end(), leg.tensor) == result.end()) {
      result.push_back(leg.tensor);
    }
  }
  return result;
}

std::vector<ZooEntry> zoo(const ZooShape& shape) {
  std::vector<ZooEntry> entries;
  for (const auto& spec : with_layer_norms(shape)) entries.push_back(make(shape, spec));
  for (const auto& spec : with_rms_norms(shape)) entries.push_back(make(shape, spec));
  entries.push_back(vit_entry(shape));
  entries.push_back(conv_relu_entry(shape));
  entries.push_back(mlp_chain_entry(shape));
  entries.push_back(linear_pair_entry(shape));
  return entries;
}

ZooEntry zoo_entry(const std::string& name, const ZooShape& shape) {
  std::string names;
  for (auto& entry : zoo(shape)) {
    if (entry.name == name) return entry;
    names.append(names.empty() ? "" : ", ").append(entry.name);
  }
  TORCH_CHECK(false, "the zoo has no network '", name, "'; it has ", names);
}

}  // namespace ddc::testbeds
