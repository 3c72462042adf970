#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "ddc/gauge/attention.h"
#include "ddc/gauge/channel_map.h"
#include "ddc/gauge/norm.h"
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

/// How many coordinates of a head are turned.
int64_t rotary_size(const Transformer& network) {
  return network.rotary.on() ? network.rotary.size.value_or(network.d_model / network.heads) : 0;
}

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

/// The gains of two norms, of queries and of keys, are only read as a product; where a rotary embedding
/// mixes coordinates, those of a plane have one factor.
Gauge qk_gain_scale(const Transformer& network, const Parameters& params,
                    const std::string& attention, int64_t head_size, int64_t turned) {
  Gauge gauge = diagonal_linear(
      {.u = params[attention + ".query_norm.weight"], .v = params[attention + ".key_norm.weight"]});
  if (turned == 0) return gauge;
  auto map = channel_maps::heads(1, turned, 1, network.rotary.pairing);
  for (int64_t i = turned; i < head_size; ++i) map.push_back(i - turned / 2);
  gauge.channels = head_size - turned / 2;
  for (auto& leg : gauge.legs) leg.channel_of = map;
  return gauge;
}

void add_qk_gauges(const Transformer& network, const QueryKey& spec, const Parameters& params,
                   const std::string& attention, std::vector<Gauge>& gauges) {
  const int64_t head_size = network.d_model / network.heads;
  const int64_t turned = rotary_size(network);
  // A norm sees scales; with a gain it sees the coordinates too, and only the gains are free.
  if (network.qk_norm == QkNorm::with_gain) {
    gauges.push_back(qk_gain_scale(network, params, attention, head_size, turned));
    return;
  }
  const bool scales = network.qk_norm == QkNorm::none;
  if (turned > 0) {
    if (scales) gauges.push_back(qk_scale(spec));
    if (has(network, GaugeSet::rotations)) gauges.push_back(qk_torus(spec));
  }
  if (turned == head_size) return;
  if (scales && has(network, GaugeSet::full)) {
    gauges.push_back(qk_linear(spec));
    return;
  }
  if (scales) {
    gauges.push_back(turned == 0 ? qk_scale(spec)
                                 : pass_through_scale(spec, params, head_size, turned));
  }
  if (has(network, GaugeSet::rotations) && head_size - turned > 1) {
    gauges.push_back(qk_rotation(spec));
  }
}

void add_attention_gauges(const Transformer& network, const Parameters& params,
                          const std::string& attention, std::vector<Gauge>& gauges) {
  const auto layer = [&](const char* part) {
    return attention + (network.packing == Packing::separate ? part : ".qkv");
  };
  const QueryKey query_key{.query = params[layer(".query") + ".weight"],
                           .query_bias = find(params, layer(".query") + ".bias"),
                           .key = params[layer(".key") + ".weight"],
                           .key_bias = find(params, layer(".key") + ".bias"),
                           .heads = network.heads,
                           .kv_heads = network.kv_heads,
                           .pairing = network.rotary.pairing,
                           .rotary_size = network.rotary.on() ? network.rotary.size : std::nullopt,
                           .packing = network.packing};
  add_qk_gauges(network, query_key, params, attention, gauges);
  const ValueOutput value_output{.value = params[layer(".value") + ".weight"],
                                 .value_bias = find(params, layer(".value") + ".bias"),
                                 .output = params[attention + ".output.weight"],
                                 .output_bias = find(params, attention + ".output.bias"),
                                 .heads = network.heads,
                                 .kv_heads = network.kv_heads,
                                 .packing = network.packing};
  if (has(network, GaugeSet::full)) {
    gauges.push_back(vo_linear(value_output));
    if (value_output.value_bias && value_output.output_bias) {
      gauges.push_back(value_bias_exchange(value_output));
    }
  } else {
    gauges.push_back(vo_scale(value_output));
    if (has(network, GaugeSet::rotations)) gauges.push_back(vo_rotation(value_output));
  }
  // Rotary attention turns the key bias differently at every position, and a norm divides by what it
  // adds; it is seen then.
  if (query_key.key_bias && rotary_size(network) < network.d_model / network.heads &&
      network.qk_norm == QkNorm::none) {
    gauges.push_back(key_bias_null(query_key));
  }
}

/// The rescale gauge of a gated part whose gate and up projection are one tensor, the gate first.
Gauge fused_glu_rescale(const Parameters& params, const std::string& name) {
  const auto& down = params[name + ".down.weight"];
  const int64_t units = down.tensor.size(1);
  const auto upper_half = [&](const NamedTensor& both) {
    return NamedTensor{both.name, both.tensor.narrow(0, units, units)};
  };
  const auto bias = find(params, name + ".gate_up.bias");
  Gauge gauge = glu_rescale({.up = upper_half(params[name + ".gate_up.weight"]),
                             .up_bias = bias ? std::optional(upper_half(*bias)) : std::nullopt,
                             .down = {down}});
  for (auto& leg : gauge.legs) {
    if (leg.tensor == down.name) continue;
    leg.channel_of.assign(2 * units, -1);
    std::iota(leg.channel_of.begin() + units, leg.channel_of.end(), 0);
  }
  return gauge;
}

std::optional<Gauge> feed_forward_gauge(const Parameters& params, const Branch& branch) {
  const auto& name = branch.name;
  const Kind kind = *branch.feed_forward;
  if (kind == Kind::gelu) return std::nullopt;
  if (branch.fused) return fused_glu_rescale(params, name);
  const auto& up = params[name + ".up.weight"];
  const auto up_bias = find(params, name + ".up.bias");
  const auto& down = params[name + ".down.weight"];
  if (is_gated(kind)) return glu_rescale({.up = up, .up_bias = up_bias, .down = {down}});
  return relu_rescale({.in = up,
                       .in_bias = up_bias,
                       .out = {down},
                       .degree = static_cast<double>(relu_degree(kind))});
}

bool all_readers_have_biases(const NormReaders& norm) {
  return std::all_of(norm.readers.begin(), norm.readers.end(),
                     [](const NormReaders::Reader& reader) { return reader.bias.has_value(); });
}

/// The gauges of a norm that nothing but its readers reads. Where they are not free to move (an
/// unembedding that is tied), what is left is the exchange of shift and biases.
void add_norm_gauges(const Transformer& network, const NormReaders& norm, bool readers_move,
                     std::vector<Gauge>& gauges) {
  NormScale scale{
      .gain = norm.gain, .shift = norm.shift, .readers = {}, .gain_is_offset = norm.gain_is_offset};
  for (const auto& reader : norm.readers) scale.readers.push_back(reader.weight);
  if (readers_move) gauges.push_back(norm_scale(scale));
  if (!has(network, GaugeSet::full) || network.norm != Norm::layer) return;
  if (readers_move) {
    for (auto& gauge : norm_kernel_shifts(norm)) gauges.push_back(std::move(gauge));
  }
  if (norm.shift && all_readers_have_biases(norm)) gauges.push_back(norm_shift_exchange(norm));
}

/// The same if the residual stream goes on from the norm's output.
void add_inner_norm_gauges(const Transformer& network, const NormReaders& norm,
                           std::vector<Gauge>& gauges) {
  if (!has(network, GaugeSet::full) || network.norm != Norm::layer) return;
  for (auto& gauge : norm_kernel_shifts(norm)) gauges.push_back(std::move(gauge));
  if (norm.shift && norm.added_next && all_readers_have_biases(norm)) {
    gauges.push_back(norm_shift_exchange(norm));
  }
}

/// A tensor that writes to the residual stream, or to the norm after a branch.
struct StreamWriter {
  Writer writer;
  bool branch = false;
  /// The vector by which a branch is multiplied; empty: none.
  std::string scale = {};
};

/// Fixed embeddings are not in the table.
std::vector<StreamWriter> stream_writers(const Transformer& network, const Parameters& params) {
  std::vector<StreamWriter> writers;
  for (const auto& [table, channel_axis] : {std::pair{"embedding.weight", 1},
                                            {"patch_embedding.weight", 0},
                                            {"patch_embedding.bias", 1},
                                            {"class_token.weight", 1},
                                            {"positions.weight", 1}}) {
    if (const auto tensor = find(params, table)) writers.push_back({{*tensor, channel_axis}});
  }
  for (int64_t l = 0; l < network.layers; ++l) {
    for (const auto& step : residual_steps(network, l)) {
      for (const auto& branch : step.branches) {
        const auto scale = network.layer_scale ? branch.name + "_scale.weight" : std::string();
        for (const auto* part : {".weight", ".bias"}) {
          const auto tensor = find(params, branch.writer() + part);
          if (tensor) writers.push_back({{*tensor, 0}, /*branch=*/true, scale});
        }
        const auto shift = find(params, branch.name + "_post_norm.bias");
        if (shift && network.norm_place == NormPlace::around) writers.push_back({{*shift, 0}});
      }
    }
  }
  return writers;
}

/// A writer is free in its mean if every reader is a LayerNorm: without a final norm the unembedding
/// sees it.
bool mean_is_free(const Transformer& network, const StreamWriter& writer) {
  if (!network.residual_shifts || network.norm != Norm::layer) return false;
  if (network.tied && writer.writer.tensor.name == "embedding.weight") return false;
  return network.final_norm || network.norm_place == NormPlace::after ||
         (writer.branch && network.norm_place == NormPlace::around);
}

std::optional<Gauge> stream_rotation(const Transformer& network, const Parameters& params,
                                     const std::vector<StreamWriter>& writers) {
  auto norms = norms_with_readers(network, params);
  if (!has(network, GaugeSet::with_residual_rotation) || network.norm_place != NormPlace::before ||
      !network.final_norm || network.fixed_embedding || network.tied ||
      !std::all_of(norms.begin(), norms.end(), [](const NormReaders& norm) {
        return !norm.shift || all_readers_have_biases(norm);
      })) {
    return std::nullopt;
  }
  ResidualRotation spec{.layer_norm = network.norm == Norm::layer};
  for (const auto& writer : writers) spec.writers.push_back(writer.writer);
  for (const auto& norm : norms) {
    // Where an unembedding is tied after all, a gauge that overlooks it is still to be had.
    if (norm.readers.front().weight.name != "embedding.weight") spec.norms.push_back(norm);
  }
  Gauge gauge = residual_rotation(spec);
  for (size_t w = 0; w < writers.size(); ++w) gauge.legs[w].through.gain = writers[w].scale;
  return gauge;
}

/// lambda * (W h + b): what lambda gains, the rows may lose.
Gauge layer_scale(const Parameters& params, const Branch& branch) {
  NormScale spec{.gain = params[branch.name + "_scale.weight"],
                 .readers = {params[branch.writer() + ".weight"]},
                 .layout = Layout::in_out};
  if (const auto bias = find(params, branch.writer() + ".bias")) spec.readers.push_back(*bias);
  Gauge gauge = norm_scale(spec);
  gauge.kind = "layer scale";
  return gauge;
}

}  // namespace

std::vector<NormReaders> norms_with_readers(const Transformer& network, const Parameters& params) {
  std::vector<NormReaders> norms;
  const auto add_norm = [&](const std::string& name) {
    NormReaders spec;
    spec.gain = params[name + ".weight"];
    spec.shift = find(params, name + ".bias");
    spec.gain_is_offset = network.gain_is_offset;
    norms.push_back(std::move(spec));
  };
  const bool after = network.norm_place == NormPlace::after;
  if (after) add_norm("embedding_norm");
  for (int64_t l = 0; l < network.layers; ++l) {
    for (const auto& step : residual_steps(network, l)) {
      if (!after) add_norm(step.norm);
      for (const auto& branch : step.branches) {
        for (const auto& reader : branch.readers()) {
          norms.back().readers.push_back(
              {params[reader + ".weight"], find(params, reader + ".bias")});
        }
        if (after) norms.back().added_next = find(params, branch.writer() + ".bias");
      }
      if (after) add_norm(step.norm);
    }
  }
  if (network.final_norm) add_norm("final_norm");
  if (network.final_norm || after) {
    const auto own = find(params, "unembedding.weight");
    norms.back().readers.push_back(
        {own ? *own : params["embedding.weight"], find(params, "unembedding.bias")});
  }
  return norms;
}

std::vector<Gauge> transformer_gauges(const Transformer& network, const Parameters& params) {
  std::vector<Gauge> result;
  const auto writers = stream_writers(network, params);
  for (const auto& writer : writers) {
    if (!mean_is_free(network, writer)) continue;
    result.push_back(residual_mean_shift(writer.writer));
    result.back().legs.front().through.gain = writer.scale;
  }
  if (const auto exchange = embedding_exchange(network, params);
      exchange && network.residual_shifts) {
    result.push_back(*exchange);
  }
  const auto norms = norms_with_readers(network, params);
  for (size_t k = 0; k < norms.size(); ++k) {
    const bool last = k + 1 == norms.size();
    if (network.norm_place == NormPlace::after && !last) {
      add_inner_norm_gauges(network, norms[k], result);
    } else {
      const bool after = network.norm_place == NormPlace::after;
      const bool read_by_tied = network.tied && last && (network.final_norm || after);
      add_norm_gauges(network, norms[k], /*readers_move=*/!read_by_tied, result);
    }
  }
  for (int64_t l = 0; l < network.layers; ++l) {
    for (const auto& step : residual_steps(network, l)) {
      for (const auto& branch : step.branches) {
        if (network.layer_scale) result.push_back(layer_scale(params, branch));
        if (!branch.feed_forward) {
          add_attention_gauges(network, params, branch.name, result);
        } else if (const auto gauge = feed_forward_gauge(params, branch)) {
          result.push_back(*gauge);
        }
      }
    }
  }
  if (const auto rotation = stream_rotation(network, params, writers)) result.push_back(*rotation);
  // A constant in all logits is seen by a soft cap and by a z-loss.
  if (network.softcap || network.z_loss != 0) return result;
  if (!network.tied) {
    const auto own = find(params, "unembedding.weight");
    result.push_back(cross_entropy_shift(own ? *own : params["embedding.weight"]));
  }
  if (const auto bias = find(params, "unembedding.bias")) {
    result.push_back(cross_entropy_shift(*bias));
  }
  return result;
}

}  // namespace ddc::testbeds
