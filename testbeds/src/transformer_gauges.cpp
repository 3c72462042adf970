#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "ddc/gauge/attention_scale.h"
#include "ddc/gauge/channel_map.h"
#include "ddc/gauge/norm_scale.h"
#include "ddc/gauge/rescale.h"
#include "ddc/gauge/shift.h"
#include "transformer.h"

namespace ddc::testbeds {
namespace {

using channel_maps::Pairing;
using Kind = FeedForward::Kind;

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

/// A stretch of coordinates that is the same in every head.
struct PartOfHead {
  int64_t first = 0;
  int64_t size = 0;
  Pairing pairing = Pairing::none;
};

/// The QK scale of the whole heads, restricted to a part of each.
Gauge restricted(Gauge gauge, const Parameters& params, const Transformer& network,
                 const PartOfHead& part, const std::string& suffix) {
  const int64_t head_size = network.d_model / network.heads;
  gauge.name += suffix;
  gauge.channels = network.kv_heads * (part.pairing == Pairing::none ? 1 : part.size / 2);
  if (part.pairing != Pairing::none) gauge.kind = "QK plane scale";
  for (auto& leg : gauge.legs) {
    const int64_t heads = params[leg.tensor].tensor.size(leg.axis) / head_size;
    const auto map = channel_maps::heads(heads, part.size, network.kv_heads, part.pairing);
    leg.channel_of.assign(heads * head_size, -1);
    for (int64_t h = 0; h < heads; ++h) {
      std::copy_n(map.begin() + h * part.size, part.size,
                  leg.channel_of.begin() + h * head_size + part.first);
    }
  }
  return gauge;
}

void add_qk_gauges(const Transformer& network, const Parameters& params,
                   const std::string& attention, std::vector<Gauge>& gauges) {
  const auto key_bias = find(params, attention + ".key.bias");
  QKScale spec{.query = params[attention + ".query.weight"],
               .query_bias = find(params, attention + ".query.bias"),
               .key = params[attention + ".key.weight"],
               .key_bias = key_bias,
               .heads = network.heads,
               .kv_heads = network.kv_heads};
  const int64_t head_size = network.d_model / network.heads;
  const int64_t turned = network.rotary.on() ? network.rotary.size.value_or(head_size) : 0;
  if (turned > 0 && turned < head_size) {
    const auto whole = qk_scale(spec);
    gauges.push_back(restricted(whole, params, network,
                                {.first = 0, .size = turned, .pairing = network.rotary.pairing},
                                ":rotary"));
    gauges.push_back(restricted(whole, params, network,
                                {.first = turned, .size = head_size - turned}, ":pass_through"));
  } else {
    spec.pairing = network.rotary.pairing;
    gauges.push_back(qk_scale(spec));
  }
}

void add_attention_gauges(const Transformer& network, const Parameters& params,
                          const std::string& attention, std::vector<Gauge>& gauges) {
  add_qk_gauges(network, params, attention, gauges);
  gauges.push_back(vo_scale({.value = params[attention + ".value.weight"],
                             .value_bias = find(params, attention + ".value.bias"),
                             .output = params[attention + ".output.weight"],
                             .heads = network.heads,
                             .kv_heads = network.kv_heads}));
  // Rotary attention turns the key bias differently at every position; it is seen then.
  const auto key_bias = find(params, attention + ".key.bias");
  if (key_bias && !network.rotary.on()) gauges.push_back(null_shift(*key_bias));
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

Gauge norm_gauge(const Transformer& network, const Parameters& params, const std::string& norm,
                 const std::vector<std::string>& readers) {
  NormScale spec;
  spec.gain = params[norm + ".weight"];
  spec.shift = find(params, norm + ".bias");
  for (const auto& reader : readers) spec.readers.push_back(params[reader + ".weight"]);
  spec.gain_is_offset = network.gain_is_offset;
  return norm_scale(spec);
}

}  // namespace

std::vector<Gauge> transformer_gauges(const Transformer& network, const Parameters& params) {
  std::vector<Gauge> result;
  // A tensor that writes to the residual stream is free in its mean only if every reader is a
  // LayerNorm: without a final norm the unembedding sees it.
  const bool mean_is_free =
      network.residual_shifts && network.norm == Norm::layer && network.final_norm;
  const auto add_mean_shift = [&](const std::string& writer, int64_t channel_axis) {
    const auto tensor = find(params, writer);
    if (mean_is_free && tensor) result.push_back(residual_mean_shift(*tensor, channel_axis));
  };

  // Those that are fixed are not in the table.
  for (const auto& [table, channel_axis] : {std::pair{"embedding.weight", 1},
                                            {"patch_embedding.weight", 0},
                                            {"patch_embedding.bias", 1},
                                            {"class_token.weight", 1},
                                            {"positions.weight", 1}}) {
    add_mean_shift(table, channel_axis);
  }
  if (const auto exchange = embedding_exchange(network, params);
      exchange && network.residual_shifts) {
    result.push_back(*exchange);
  }
  for (int64_t l = 0; l < network.layers; ++l) {
    for (const auto& step : residual_steps(network, l)) {
      std::vector<std::string> readers;
      for (const auto& branch : step.branches) {
        for (const auto& reader : branch.readers()) readers.push_back(reader);
      }
      result.push_back(norm_gauge(network, params, step.norm, readers));
      for (const auto& branch : step.branches) {
        if (branch.feed_forward) {
          result.push_back(feed_forward_gauge(params, branch.name, *branch.feed_forward));
        } else {
          add_attention_gauges(network, params, branch.name, result);
        }
        add_mean_shift(branch.writer() + ".weight", /*channel_axis=*/0);
        add_mean_shift(branch.writer() + ".bias", /*channel_axis=*/0);
      }
    }
  }
  if (network.final_norm) {
    result.push_back(norm_gauge(network, params, "final_norm", {"unembedding"}));
  }
  result.push_back(cross_entropy_shift(params["unembedding.weight"]));
  if (const auto bias = find(params, "unembedding.bias")) {
    result.push_back(cross_entropy_shift(*bias));
  }
  return result;
}

}  // namespace ddc::testbeds
