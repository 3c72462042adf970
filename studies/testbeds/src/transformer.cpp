#include "transformer.h"

#include <ATen/ATen.h>

#include <cmath>

#include "draw.h"
#include "options.h"

namespace ddc::testbeds {
namespace {

using Kind = FeedForward::Kind;

/// The seed of embeddings that are not parameters.
constexpr uint64_t fixed_embedding_seed = 0;

void check(const Transformer& network) {
  network.d_patch ? check_positive("d_patch", *network.d_patch)
                  : check_positive("vocabulary", network.vocabulary);
  check_positive("classes", network.classes);
  check_positive("d_model", network.d_model);
  check_positive("heads", network.heads);
  check_positive("kv_heads", network.kv_heads);
  check_positive("d_ff", network.d_ff);
  check_positive("sequence", network.sequence);
  check_positive("layers", network.layers);
  TORCH_CHECK(network.norm_eps >= 0, "testbed option norm_eps must be >= 0, got ",
              network.norm_eps);
  TORCH_CHECK(network.d_model % network.heads == 0, "testbed option heads must divide d_model (",
              network.d_model, "), got ", network.heads);
  TORCH_CHECK(network.heads % network.kv_heads == 0, "testbed option kv_heads must divide heads (",
              network.heads, "), got ", network.kv_heads);
  const int64_t head_size = network.d_model / network.heads;
  if (const auto size = network.rotary.size) {
    TORCH_CHECK(*size > 0 && *size % 2 == 0 && *size <= head_size,
                "testbed option rotary_size must be even and between 2 and the size of a head (",
                head_size, "), got ", *size);
  } else {
    TORCH_CHECK(!network.rotary.on() || head_size % 2 == 0,
                "rotary attention needs heads of even size, got ", network.d_model, " / ",
                network.heads);
  }
  TORCH_CHECK(!network.tied || (!network.d_patch && network.classes == network.vocabulary),
              "a tied unembedding needs tokens, and as many classes as tokens (",
              network.vocabulary, "), got ", network.classes, " classes");
  TORCH_CHECK(network.norm_place != NormPlace::after || !network.final_norm,
              "norms that stand after the branches leave nothing to a final norm");
  TORCH_CHECK(network.readout != Readout::class_token || !network.causal,
              "a class token stands first and sees nothing if attention is causal");
}

std::string layer_name(int64_t l) { return "layers." + std::to_string(l) + "."; }

/// What embeds the inputs. The bias of the patches is a row, as tokens, positions and the class
/// token are: a shift moves all its legs by the same vector, so only rows can be exchanged.
void add_embedding(const Transformer& network, Initializer& weights) {
  const auto add_rows = [&](const std::string& name, int64_t rows, double spread) {
    weights.add(name, {rows, network.d_model}, spread);
  };
  if (network.d_patch) {
    weights.add_linear("patch_embedding", network.d_model, *network.d_patch);
    add_rows("patch_embedding.bias", 1, network.bias_spread);
  } else {
    add_rows("embedding.weight", network.vocabulary, network.embedding_spread);
  }
  const bool class_token = network.readout == Readout::class_token;
  if (class_token) add_rows("class_token.weight", 1, network.embedding_spread);
  if (!network.rotary.on()) {
    add_rows("positions.weight", network.sequence + (class_token ? 1 : 0),
             network.embedding_spread);
  }
}

Parameters init(const Transformer& network, uint64_t seed, at::ScalarType dtype) {
  Initializer weights(seed, dtype);
  const int64_t head_size = network.d_model / network.heads;
  const int64_t d_kv = head_size * network.kv_heads;
  const auto add_gain = [&](const std::string& name, int64_t size) {
    weights.add(name + ".weight", {size}, network.gain_spread, network.gain_is_offset ? 0 : 1);
  };
  const auto add_norm = [&](const std::string& name) {
    add_gain(name, network.d_model);
    if (network.norm == Norm::layer && network.norm_shifts) {
      weights.add(name + ".bias", {network.d_model}, network.bias_spread);
    }
  };
  const auto add_linear = [&](const std::string& name, int64_t out, int64_t in, bool bias) {
    if (network.torch_init) {
      const double bound = 1 / std::sqrt(static_cast<double>(in));
      weights.add_uniform(name + ".weight", {out, in}, bound);
      if (bias) weights.add_uniform(name + ".bias", {out}, bound);
    } else if (bias) {
      weights.add_linear(name, out, in, network.bias_spread);
    } else {
      weights.add_linear(name, out, in);
    }
  };
  const auto add_branch = [&](const Branch& branch) {
    const bool biases =
        branch.feed_forward ? network.feed_forward_biases : network.attention_biases;
    for (const auto& reader : branch.readers()) {
      const int64_t rows = branch.feed_forward          ? (branch.fused ? 2 : 1) * network.d_ff
                           : branch.fused               ? network.d_model + 2 * d_kv
                           : reader.ends_with(".query") ? network.d_model
                                                        : d_kv;
      add_linear(reader, rows, network.d_model, biases);
    }
    if (!branch.feed_forward && network.qk_norm == QkNorm::with_gain) {
      add_gain(branch.name + ".query_norm", head_size);
      add_gain(branch.name + ".key_norm", head_size);
    }
    add_linear(branch.writer(), network.d_model,
               branch.feed_forward ? network.d_ff : network.d_model, biases);
    if (network.layer_scale) {
      weights.add(branch.name + "_scale.weight", {network.d_model}, network.gain_spread, 1);
    }
    if (network.norm_place == NormPlace::around) add_norm(branch.name + "_post_norm");
  };
  if (!network.fixed_embedding) add_embedding(network, weights);
  if (network.norm_place == NormPlace::after) add_norm("embedding_norm");
  for (int64_t l = 0; l < network.layers; ++l) {
    for (const auto& step : residual_steps(network, l)) {
      add_norm(step.norm);
      for (const auto& branch : step.branches) add_branch(branch);
    }
  }
  if (network.final_norm) add_norm("final_norm");
  if (network.tied) {
    if (network.unembedding_bias) {
      weights.add("unembedding.bias", {network.classes}, network.bias_spread);
    }
  } else {
    add_linear("unembedding", network.classes, network.d_model, network.unembedding_bias);
  }
  return weights.parameters();
}

/// The tables that are not parameters, in float64; empty if all are.
Parameters fixed_tables(const Transformer& network) {
  if (!network.fixed_embedding) return {};
  Initializer weights(fixed_embedding_seed, at::kDouble, Stream::embedding);
  add_embedding(network, weights);
  return weights.parameters();
}

Parameters detached(const Parameters& tables, at::ScalarType dtype) {
  Parameters result;
  for (const auto& [name, tensor] : tables) result.add(name, tensor.detach().to(dtype));
  return result;
}

at::Tensor embed(const Transformer& network, const Parameters& tables, const at::Tensor& inputs) {
  const auto table = [&](const char* name) { return tables[name].tensor; };
  auto x = network.d_patch
               ? at::linear(inputs, table("patch_embedding.weight")) + table("patch_embedding.bias")
               : at::embedding(table("embedding.weight"), inputs);
  if (network.readout == Readout::class_token) {
    x = at::cat({table("class_token.weight").expand({x.size(0), 1, network.d_model}), x}, 1);
  }
  return network.rotary.on() ? x : x + table("positions.weight");
}

std::optional<int64_t> read_position(const Transformer& network, int64_t time) {
  switch (network.readout) {
    case Readout::every_position:
      break;
    case Readout::last_position:
      return time - 1;
    case Readout::class_token:
      return 0;
  }
  return std::nullopt;
}

at::Tensor feed_forward(const Parameters& params, const std::string& name, Kind kind,
                        const at::Tensor& x, const Trace& trace) {
  const auto gelu = [](const at::Tensor& z) { return at::gelu(z); };
  if (kind == Kind::swiglu) {
    return gated(params, name, x, [](const at::Tensor& z) { return at::silu(z); });
  }
  if (kind == Kind::geglu) return gated(params, name, x, gelu);
  const auto z = linear(params, name + ".up", x);
  if (trace) trace(name + ".up", z);
  return linear(params, name + ".down",
                kind == Kind::gelu ? gelu(z) : relu_power(z, relu_degree(kind)));
}

at::Tensor logits(const Transformer& network, const Parameters& fixed, const Parameters& params,
                  const at::Tensor& inputs, const Trace& trace = {}) {
  const auto norm = [&](const std::string& name, const at::Tensor& x) {
    return network.norm == Norm::layer
               ? layer_norm(params, name, x, network.norm_eps)
               : rms_norm(params, name, x, network.gain_is_offset, network.norm_eps);
  };
  const auto& unembedding = params[network.tied ? "embedding.weight" : "unembedding.weight"].tensor;
  const auto dtype = unembedding.scalar_type();
  const auto qk_norm_eps =
      network.qk_norm == QkNorm::none ? std::nullopt : std::optional(network.norm_eps);
  auto x = embed(network, network.fixed_embedding ? detached(fixed, dtype) : params, inputs);
  const bool after = network.norm_place == NormPlace::after;
  if (after) x = norm("embedding_norm", x);
  if (trace) trace("stream.embedding", x);
  for (int64_t l = 0; l < network.layers; ++l) {
    for (const auto& step : residual_steps(network, l)) {
      // After the last attention positions do not meet any more: only the one asked for is
      // computed.
      const bool narrows = !step.branches.front().feed_forward && l + 1 == network.layers;
      const auto position = narrows ? read_position(network, x.size(1)) : std::nullopt;
      const auto keep = [&](const at::Tensor& all) {
        return position ? all.narrow(1, *position, 1) : all;
      };
      const auto read = after ? x : norm(step.norm, x);
      x = keep(x);
      for (const auto& branch : step.branches) {
        auto y = (branch.feed_forward
                      ? feed_forward(params, branch.name, *branch.feed_forward, keep(read), trace)
                      : attention(params, branch.name, read,
                                  {.heads = network.heads,
                                   .kv_heads = network.kv_heads,
                                   .rotary = network.rotary,
                                   .packing = network.packing,
                                   .qk_norm_eps = qk_norm_eps,
                                   .causal = network.causal,
                                   .only_position = position}));
        if (network.layer_scale) y = y * params[branch.name + "_scale.weight"].tensor;
        if (network.norm_place == NormPlace::around) y = norm(branch.name + "_post_norm", y);
        x = x + y;
      }
      if (after) x = norm(step.norm, x);
      if (trace) trace("stream." + step.branches.back().name, x);
    }
  }
  if (trace) trace("stream", x);
  if (network.final_norm) x = norm("final_norm", x);
  const auto bias = find(params, "unembedding.bias");
  auto result = at::linear(x, unembedding, bias ? std::optional(bias->tensor) : std::nullopt);
  if (network.softcap) result = (result / *network.softcap).tanh() * *network.softcap;
  return network.readout == Readout::every_position ? result : result.squeeze(1);
}

}  // namespace

std::vector<std::string> Branch::readers() const {
  if (!feed_forward) {
    if (fused) return {name + ".qkv"};
    return {name + ".query", name + ".key", name + ".value"};
  }
  if (!is_gated(*feed_forward)) return {name + ".up"};
  if (fused) return {name + ".gate_up"};
  return {name + ".gate", name + ".up"};
}

std::string Branch::writer() const { return name + (feed_forward ? ".down" : ".output"); }

std::vector<ResidualStep> residual_steps(const Transformer& network, int64_t layer) {
  const auto prefix = layer_name(layer);
  std::vector<Branch> branches = {
      {.name = prefix + "attention", .fused = network.packing != Packing::separate}};
  for (const auto& part : network.feed_forwards) {
    branches.push_back({.name = prefix + part.name,
                        .feed_forward = part.kind,
                        .fused = network.fused_gate_up && is_gated(part.kind)});
  }
  if (network.parallel) return {{.norm = prefix + "norm", .branches = branches}};
  std::vector<ResidualStep> steps;
  for (const auto& branch : branches) {
    steps.push_back({.norm = branch.name + "_norm", .branches = {branch}});
  }
  return steps;
}

Testbed transformer_testbed(const Transformer& network) {
  check(network);
  Testbed bed;
  bed.init = [network](uint64_t seed, at::ScalarType dtype) { return init(network, seed, dtype); };
  bed.outputs = [network, fixed = fixed_tables(network)](const Parameters& params,
                                                         const at::Tensor& inputs) {
    return logits(network, fixed, params, inputs);
  };
  bed.traced = [network, fixed = fixed_tables(network)](
                   const Parameters& params, const at::Tensor& inputs, const Trace& trace) {
    return logits(network, fixed, params, inputs, trace);
  };
  set_criterion(bed, network.z_loss == 0 ? Criterion(cross_entropy)
                                         : cross_entropy_with_z_loss(network.z_loss));
  bed.gauges = [network](const Parameters& params) { return transformer_gauges(network, params); };
  return bed;
}

at::Tensor traced_outputs(const Transformer& network, const Parameters& params,
                          const at::Tensor& inputs, const Trace& trace) {
  return logits(network, fixed_tables(network), params, inputs, trace);
}

}  // namespace ddc::testbeds
