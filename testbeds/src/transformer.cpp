#include "transformer.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "ddc/gauge/attention.h"
#include "ddc/gauge/channel_map.h"
#include "ddc/gauge/norm_scale.h"
#include "ddc/gauge/rescale.h"
#include "ddc/gauge/shift.h"
#include "draw.h"
#include "layers.h"
#include "options.h"

namespace ddc::testbeds {
namespace {

using Kind = FeedForward::Kind;

void check(const Transformer& network) {
  check_positive("vocabulary", network.vocabulary);
  check_positive("d_model", network.d_model);
  check_positive("heads", network.heads);
  check_positive("kv_heads", network.kv_heads);
  check_positive("d_ff", network.d_ff);
  check_positive("sequence", network.sequence);
  check_positive("layers", network.layers);
  TORCH_CHECK(network.d_model % network.heads == 0, "testbed option heads must divide d_model (",
              network.d_model, "), got ", network.heads);
  TORCH_CHECK(network.heads % network.kv_heads == 0, "testbed option kv_heads must divide heads (",
              network.heads, "), got ", network.kv_heads);
  TORCH_CHECK(network.learned_positions || network.d_model / network.heads % 2 == 0,
              "rotary attention needs heads of even size, got ", network.d_model, " / ",
              network.heads);
}

std::string layer_name(int64_t l) { return "layers." + std::to_string(l) + "."; }

int64_t relu_degree(Kind kind) { return kind == Kind::squared_relu ? 2 : 1; }

Parameters init(const Transformer& network, uint64_t seed, at::ScalarType dtype) {
  Initializer weights(seed, dtype);
  const int64_t d_kv = network.d_model / network.heads * network.kv_heads;
  const auto add_norm = [&](const std::string& name) {
    weights.add(name + ".weight", {network.d_model}, network.gain_spread,
                network.gain_is_offset ? 0 : 1);
    if (network.norm == Norm::layer) {
      weights.add(name + ".bias", {network.d_model}, network.bias_spread);
    }
  };
  const auto add_linear = [&](const std::string& name, int64_t out, int64_t in, bool bias) {
    bias ? weights.add_linear(name, out, in, network.bias_spread)
         : weights.add_linear(name, out, in);
  };
  weights.add("embedding.weight", {network.vocabulary, network.d_model}, network.embedding_spread);
  if (network.learned_positions) {
    weights.add("positions.weight", {network.sequence, network.d_model}, network.embedding_spread);
  }
  for (int64_t l = 0; l < network.layers; ++l) {
    const auto layer = layer_name(l);
    add_norm(layer + "attention_norm");
    const auto attention = layer + "attention.";
    add_linear(attention + "query", network.d_model, network.d_model, network.attention_biases);
    add_linear(attention + "key", d_kv, network.d_model, network.attention_biases);
    add_linear(attention + "value", d_kv, network.d_model, network.attention_biases);
    add_linear(attention + "output", network.d_model, network.d_model, network.attention_biases);
    for (const auto& part : network.feed_forwards) {
      const auto name = layer + part.name;
      add_norm(name + "_norm");
      if (part.kind == Kind::swiglu) {
        add_linear(name + ".gate", network.d_ff, network.d_model, network.feed_forward_biases);
      }
      add_linear(name + ".up", network.d_ff, network.d_model, network.feed_forward_biases);
      add_linear(name + ".down", network.d_model, network.d_ff, network.feed_forward_biases);
    }
  }
  if (network.final_norm) add_norm("final_norm");
  add_linear("unembedding", network.classes, network.d_model, network.unembedding_bias);
  return weights.parameters();
}

at::Tensor logits(const Transformer& network, const Parameters& params, const at::Tensor& tokens) {
  const auto norm = [&](const std::string& name, const at::Tensor& x) {
    return network.norm == Norm::layer ? layer_norm(params, name, x)
                                       : rms_norm(params, name, x, network.gain_is_offset);
  };
  auto x = at::embedding(params["embedding.weight"].tensor, tokens);
  if (network.learned_positions) x = x + params["positions.weight"].tensor;
  for (int64_t l = 0; l < network.layers; ++l) {
    const auto layer = layer_name(l);
    // After the last attention positions do not meet any more: only the one asked for is computed.
    const bool narrow = network.last_position_only && l + 1 == network.layers;
    const auto mixed = attention(params, layer + "attention", norm(layer + "attention_norm", x),
                                 {.heads = network.heads,
                                  .kv_heads = network.kv_heads,
                                  .rotary = !network.learned_positions,
                                  .last_query_only = narrow});
    x = (narrow ? x.narrow(1, x.size(1) - 1, 1) : x) + mixed;
    for (const auto& part : network.feed_forwards) {
      const auto name = layer + part.name;
      const auto read = norm(name + "_norm", x);
      x = x +
          (part.kind == Kind::swiglu
               ? swiglu(params, name, read)
               : linear(params, name + ".down",
                        relu_power(linear(params, name + ".up", read), relu_degree(part.kind))));
    }
  }
  if (network.final_norm) x = norm("final_norm", x);
  const auto result = linear(params, "unembedding", x);
  return network.last_position_only ? result.squeeze(1) : result;
}

/// LayerNorm subtracts the mean over channels, so what writes to a residual stream that is only
/// read through LayerNorms may add the same to every channel: a constant per token, per position,
/// per column of an output projection.
Gauge residual_mean_shift(const NamedTensor& writer, int64_t channel_axis) {
  Gauge gauge;
  gauge.name = writer.name + ":mean";
  gauge.kind = "residual mean shift";
  gauge.action = Action::shift;
  gauge.channels = 1;
  gauge.legs = {{.tensor = writer.name,
                 .axis = channel_axis,
                 .exponent = 1,
                 .channel_of = channel_maps::whole(writer.tensor.size(channel_axis))}};
  return gauge;
}

/// Token and position embedding are only read as a sum: what all tokens of a class gain, the
/// positions at which they stand may lose.
Gauge embedding_exchange(const Transformer& network, const Parameters& params) {
  const auto classes = [](const std::vector<int64_t>& given, int64_t size) {
    return given.empty() ? channel_maps::whole(size) : given;
  };
  const auto token_class = classes(network.token_class, network.vocabulary);
  Gauge gauge;
  gauge.name = "embedding.weight:exchange";
  gauge.kind = "embedding exchange";
  gauge.action = Action::shift;
  gauge.channels = *std::max_element(token_class.begin(), token_class.end()) + 1;
  gauge.legs = {{.tensor = params["embedding.weight"].name,
                 .axis = 0,
                 .exponent = 1,
                 .channel_of = token_class},
                {.tensor = params["positions.weight"].name,
                 .axis = 0,
                 .exponent = -1,
                 .channel_of = classes(network.position_class, network.sequence)}};
  return gauge;
}

void add_attention_gauges(const Transformer& network, const Parameters& params,
                          const std::string& attention, std::vector<Gauge>& gauges) {
  gauges.push_back(
      qk_scale({.query = params[attention + "query.weight"],
                .query_bias = find(params, attention + "query.bias"),
                .key = params[attention + "key.weight"],
                .key_bias = find(params, attention + "key.bias"),
                .heads = network.heads,
                .kv_heads = network.kv_heads,
                .pairing = network.learned_positions ? channel_maps::Pairing::none
                                                     : channel_maps::Pairing::half_split}));
  gauges.push_back(vo_scale({.value = params[attention + "value.weight"],
                             .value_bias = find(params, attention + "value.bias"),
                             .output = params[attention + "output.weight"],
                             .heads = network.heads,
                             .kv_heads = network.kv_heads}));
  // Rotary attention turns the key bias differently at every position; it is seen then.
  const auto key_bias = find(params, attention + "key.bias");
  if (key_bias && network.learned_positions) gauges.push_back(null_shift(*key_bias));
}

std::vector<Gauge> gauges(const Transformer& network, const Parameters& params) {
  std::vector<Gauge> result;
  const auto add_norm_gauge = [&](const std::string& norm,
                                  const std::vector<std::string>& readers) {
    NormScale spec;
    spec.gain = params[norm + ".weight"];
    spec.shift = find(params, norm + ".bias");
    for (const auto& reader : readers) spec.readers.push_back(params[reader + ".weight"]);
    spec.gain_is_offset = network.gain_is_offset;
    result.push_back(norm_scale(spec));
  };
  // A tensor that writes to the residual stream is free in its mean only if every reader is a
  // LayerNorm: without a final norm the unembedding sees it.
  const bool mean_is_free =
      network.residual_shifts && network.norm == Norm::layer && network.final_norm;
  const auto add_mean_shifts = [&](const std::string& writer) {
    if (!mean_is_free) return;
    result.push_back(residual_mean_shift(params[writer + ".weight"], /*channel_axis=*/0));
    if (const auto bias = find(params, writer + ".bias")) {
      result.push_back(residual_mean_shift(*bias, /*channel_axis=*/0));
    }
  };

  for (const auto* table : {"embedding.weight", "positions.weight"}) {
    const auto embedding = find(params, table);
    if (mean_is_free && embedding) {
      result.push_back(residual_mean_shift(*embedding, /*channel_axis=*/1));
    }
  }
  if (network.residual_shifts && network.learned_positions) {
    result.push_back(embedding_exchange(network, params));
  }
  for (int64_t l = 0; l < network.layers; ++l) {
    const auto layer = layer_name(l);
    const auto attention = layer + "attention.";
    add_norm_gauge(layer + "attention_norm",
                   {attention + "query", attention + "key", attention + "value"});
    add_attention_gauges(network, params, attention, result);
    add_mean_shifts(attention + "output");
    for (const auto& part : network.feed_forwards) {
      const auto name = layer + part.name;
      const auto& up = params[name + ".up.weight"];
      const auto up_bias = find(params, name + ".up.bias");
      const auto& down = params[name + ".down.weight"];
      if (part.kind == Kind::swiglu) {
        add_norm_gauge(name + "_norm", {name + ".gate", name + ".up"});
        result.push_back(glu_rescale({.up = up, .up_bias = up_bias, .down = {down}}));
      } else {
        add_norm_gauge(name + "_norm", {name + ".up"});
        result.push_back(relu_rescale({.in = up,
                                       .in_bias = up_bias,
                                       .out = {down},
                                       .degree = static_cast<double>(relu_degree(part.kind))}));
      }
      add_mean_shifts(name + ".down");
    }
  }
  if (network.final_norm) add_norm_gauge("final_norm", {"unembedding"});
  result.push_back(cross_entropy_shift(params["unembedding.weight"]));
  if (const auto bias = find(params, "unembedding.bias")) {
    result.push_back(cross_entropy_shift(*bias));
  }
  return result;
}

}  // namespace

Testbed transformer_testbed(const Transformer& network) {
  check(network);
  Testbed bed;
  bed.init = [network](uint64_t seed, at::ScalarType dtype) { return init(network, seed, dtype); };
  bed.outputs = [network](const Parameters& params, const at::Tensor& inputs) {
    return logits(network, params, inputs);
  };
  bed.loss = cross_entropy(bed.outputs);
  bed.gauges = [network](const Parameters& params) { return gauges(network, params); };
  return bed;
}

}  // namespace ddc::testbeds
