#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "ddc/gauge/attention.h"
#include "ddc/gauge/channel_map.h"
#include "ddc/gauge/norm_scale.h"
#include "ddc/gauge/norm_shift.h"
#include "ddc/gauge/rescale.h"
#include "ddc/gauge/residual.h"
#include "ddc/gauge/shift.h"
#include "transformer.h"

namespace ddc::testbeds {
namespace {

using channel_maps::Pairing;
using Kind = FeedForward::Kind;

/// What embeds an input and its position are only read as a sum: what all inputs of a class gain,
/// the positions at which they stand may lose. The class token is a class of its own. (One gauge for
/// all classes: no two may shift the same axis of the positions.)
std::optional<Gauge> embedding_exchange(const Transformer& network, const Parameters& params) {
  const auto positions = find(params, "positions.weight");
  if (!positions) return std::nullopt;
  const auto classes = [](const std::vector<int64_t>& given, int64_t size) {
    return given.empty() ? channel_maps::whole(size) : given;
  };
  const auto& inputs = params[network.d_patch ? "patch_embedding.bias" : "embedding.weight"];
  const auto input_class = classes(network.token_class, inputs.tensor.size(0));
  auto position_class = classes(network.position_class, network.sequence);
  Gauge gauge;
  gauge.name = inputs.name + ":exchange";
  gauge.kind = "embedding exchange";
  gauge.action = Action::shift;
  gauge.channels = *std::max_element(input_class.begin(), input_class.end()) + 1;
  gauge.legs = {{.tensor = inputs.name, .axis = 0, .exponent = 1, .channel_of = input_class}};
  if (const auto class_token = find(params, "class_token.weight")) {
    const int64_t own_class = gauge.channels++;
    position_class.insert(position_class.begin(), own_class);
    gauge.legs.push_back(
        {.tensor = class_token->name, .axis = 0, .exponent = 1, .channel_of = {own_class}});
  }
  gauge.legs.push_back(
      {.tensor = positions->name, .axis = 0, .exponent = -1, .channel_of = position_class});
  return gauge;
}

bool has(const Transformer& network, GaugeSet set) { return network.gauges >= set; }

/// The QK scale of whole heads, restricted to the coordinates from `first` on, which no rotary
/// embedding turns.
Gauge pass_through_scale(const QueryKey& spec, const Parameters& params, int64_t head_size,
                         int64_t first) {
  auto whole = spec;
  whole.pairing = Pairing::none;
  whole.rotary_size = {};
  Gauge gauge = qk_scale(whole);
  gauge.name += ":pass_through";
  for (auto& leg : gauge.legs) {
    for (int64_t i = 0; i < params[leg.tensor].tensor.size(leg.axis); ++i) {
      if (i % head_size < first) leg.channel_of[i] = -1;
    }
  }
  return gauge;
}

void add_qk_gauges(const Transformer& network, const QueryKey& spec, const Parameters& params,
                   std::vector<Gauge>& gauges) {
  const int64_t head_size = network.d_model / network.heads;
  const int64_t turned = network.rotary.on() ? network.rotary.size.value_or(head_size) : 0;
  if (turned > 0) {
    gauges.push_back(qk_scale(spec));
    if (has(network, GaugeSet::rotations)) gauges.push_back(qk_torus(spec));
  }
  if (turned == head_size) return;
  if (has(network, GaugeSet::full)) {
    gauges.push_back(qk_linear(spec));
    return;
  }
  gauges.push_back(turned == 0 ? qk_scale(spec)
                               : pass_through_scale(spec, params, head_size, turned));
  if (has(network, GaugeSet::rotations)) gauges.push_back(qk_rotation(spec));
}

void add_attention_gauges(const Transformer& network, const Parameters& params,
                          const std::string& attention, std::vector<Gauge>& gauges) {
  const QueryKey query_key{.query = params[attention + ".query.weight"],
                           .query_bias = find(params, attention + ".query.bias"),
                           .key = params[attention + ".key.weight"],
                           .key_bias = find(params, attention + ".key.bias"),
                           .heads = network.heads,
                           .kv_heads = network.kv_heads,
                           .pairing = network.rotary.pairing,
                           .rotary_size = network.rotary.on() ? network.rotary.size : std::nullopt};
  add_qk_gauges(network, query_key, params, gauges);
  const ValueOutput value_output{.value = params[attention + ".value.weight"],
                                 .value_bias = find(params, attention + ".value.bias"),
                                 .output = params[attention + ".output.weight"],
                                 .output_bias = find(params, attention + ".output.bias"),
                                 .heads = network.heads,
                                 .kv_heads = network.kv_heads};
  if (has(network, GaugeSet::full)) {
    gauges.push_back(vo_linear(value_output));
    if (value_output.value_bias && value_output.output_bias) {
      gauges.push_back(value_bias_exchange(value_output));
    }
  } else {
    gauges.push_back(vo_scale(value_output));
    if (has(network, GaugeSet::rotations)) gauges.push_back(vo_rotation(value_output));
  }
  // Rotary attention turns the key bias differently at every position; it is seen then.
  if (query_key.key_bias && !network.rotary.on()) gauges.push_back(key_bias_null(query_key));
}

Gauge feed_forward_gauge(const Parameters& params, const std::string& name, Kind kind) {
  const auto& up = params[name + ".up.weight"];
  const auto up_bias = find(params, name + ".up.bias");
  const auto& down = params[name + ".down.weight"];
  if (kind == Kind::swiglu) return glu_rescale({.up = up, .up_bias = up_bias, .down = {down}});
  return relu_rescale({.in = up,
                       .in_bias = up_bias,
                       .out = {down},
                       .degree = static_cast<double>(relu_degree(kind))});
}

NormReaders norm_readers(const Transformer& network, const Parameters& params,
                         const std::string& norm, const std::vector<std::string>& readers) {
  NormReaders spec;
  spec.gain = params[norm + ".weight"];
  spec.shift = find(params, norm + ".bias");
  for (const auto& reader : readers) {
    spec.readers.push_back({params[reader + ".weight"], find(params, reader + ".bias")});
  }
  spec.gain_is_offset = network.gain_is_offset;
  return spec;
}

bool all_readers_have_biases(const NormReaders& norm) {
  return std::all_of(norm.readers.begin(), norm.readers.end(),
                     [](const NormReaders::Reader& reader) { return reader.bias.has_value(); });
}

void add_norm_gauges(const Transformer& network, const NormReaders& norm,
                     std::vector<Gauge>& gauges) {
  NormScale scale{
      .gain = norm.gain, .shift = norm.shift, .readers = {}, .gain_is_offset = norm.gain_is_offset};
  for (const auto& reader : norm.readers) scale.readers.push_back(reader.weight);
  gauges.push_back(norm_scale(scale));
  if (!has(network, GaugeSet::full) || network.norm != Norm::layer) return;
  for (auto& gauge : norm_kernel_shifts(norm)) gauges.push_back(std::move(gauge));
  if (all_readers_have_biases(norm)) gauges.push_back(norm_shift_exchange(norm));
}

}  // namespace

std::vector<Gauge> transformer_gauges(const Transformer& network, const Parameters& params) {
  std::vector<Gauge> result;
  // What writes to the residual stream and what reads it; fixed embeddings are not in the table.
  std::vector<Writer> writers;
  for (const auto& [table, channel_axis] : {std::pair{"embedding.weight", 1},
                                            {"patch_embedding.weight", 0},
                                            {"patch_embedding.bias", 1},
                                            {"class_token.weight", 1},
                                            {"positions.weight", 1}}) {
    if (const auto tensor = find(params, table)) writers.push_back({*tensor, channel_axis});
  }
  std::vector<NormReaders> norms;
  for (int64_t l = 0; l < network.layers; ++l) {
    for (const auto& step : residual_steps(network, l)) {
      std::vector<std::string> readers;
      for (const auto& branch : step.branches) {
        for (const auto& reader : branch.readers()) readers.push_back(reader);
        for (const auto* part : {".weight", ".bias"}) {
          const auto tensor = find(params, branch.writer() + part);
          if (tensor) writers.push_back({*tensor, 0});
        }
      }
      norms.push_back(norm_readers(network, params, step.norm, readers));
    }
  }
  if (network.final_norm) {
    norms.push_back(norm_readers(network, params, "final_norm", {"unembedding"}));
  }
  const bool turned = has(network, GaugeSet::with_residual_rotation) && network.final_norm &&
                      !network.fixed_embedding &&
                      std::all_of(norms.begin(), norms.end(), [](const NormReaders& norm) {
                        return !norm.shift || all_readers_have_biases(norm);
                      });

  // A tensor that writes to the residual stream is free in its mean only if every reader is a
  // LayerNorm: without a final norm the unembedding sees it.
  const bool mean_is_free =
      network.residual_shifts && network.norm == Norm::layer && network.final_norm;
  if (mean_is_free) {
    for (const auto& writer : writers) result.push_back(residual_mean_shift(writer));
  }
  if (const auto exchange = embedding_exchange(network, params);
      exchange && network.residual_shifts) {
    result.push_back(*exchange);
  }
  for (const auto& norm : norms) add_norm_gauges(network, norm, result);
  for (int64_t l = 0; l < network.layers; ++l) {
    for (const auto& step : residual_steps(network, l)) {
      for (const auto& branch : step.branches) {
        if (branch.feed_forward) {
          result.push_back(feed_forward_gauge(params, branch.name, *branch.feed_forward));
        } else {
          add_attention_gauges(network, params, branch.name, result);
        }
      }
    }
  }
  if (turned) {
    result.push_back(residual_rotation(
        {.writers = writers, .norms = norms, .layer_norm = network.norm == Norm::layer}));
  }
  result.push_back(cross_entropy_shift(params["unembedding.weight"]));
  if (const auto bias = find(params, "unembedding.bias")) {
    result.push_back(cross_entropy_shift(*bias));
  }
  return result;
}

}  // namespace ddc::testbeds
