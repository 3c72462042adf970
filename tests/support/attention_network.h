#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "ddc/gauge/attention.h"
#include "support/matrices.h"
#include "support/training.h"

// One layer of attention, written out head by head and row by row, that reads its projections from
// tensors packed in any of the ways that attention.h knows. It shares no code with the library, so
// that the gauges' maps are compared with a network and not with themselves.

namespace ddc::tests {

using channel_maps::Pairing;

struct AttentionNetwork {
  std::string name;
  int64_t heads = 2;
  int64_t kv_heads = 2;
  int64_t head_size = 4;
  Packing packing = Packing::separate;
  Layout layout = Layout::out_in;
  Pairing pairing = Pairing::none;
  /// Coordinates of a head that the rotary embedding turns.
  int64_t turned = 0;

  int64_t d_model = 6;
  int64_t vocabulary = 7;
  int64_t sequence = 5;
  int64_t batch_size = 6;
  int64_t classes = 3;

  bool fused() const { return packing != Packing::separate; }
  Testbed testbed() const;
  QueryKey query_key(const Parameters& params) const;
  ValueOutput value_output(const Parameters& params) const;
};

inline void PrintTo(const AttentionNetwork& network, std::ostream* out) { *out << network.name; }

/// Turns plane (a, b) of x, [..., time, head_size], by an angle per position.
inline at::Tensor rotary_embedding(const AttentionNetwork& network, const at::Tensor& x) {
  auto columns = x.unbind(-1);
  const int64_t planes = network.turned / 2;
  const auto time = at::arange(x.size(-2), x.options().requires_grad(false));
  for (int64_t p = 0; p < planes; ++p) {
    const bool halves = network.pairing == Pairing::half_split;
    const int64_t i = halves ? p : 2 * p;
    const int64_t j = halves ? p + planes : 2 * p + 1;
    const auto angle = time * std::pow(0.3, static_cast<double>(p));
    const auto a = columns[i];
    const auto b = columns[j];
    columns[i] = a * angle.cos() - b * angle.sin();
    columns[j] = a * angle.sin() + b * angle.cos();
  }
  return at::stack(columns, -1);
}

inline at::Tensor attention_network_outputs(const AttentionNetwork& network,
                                            const Parameters& params, const at::Tensor& tokens) {
  const auto rows = [&](const std::string& name) {
    const auto& weight = params[name + ".weight"].tensor;
    return network.layout == Layout::out_in ? weight : weight.t();
  };
  const auto x = params["embedding"]
                     .tensor.index_select(0, tokens.flatten())
                     .view({tokens.size(0), tokens.size(1), network.d_model});
  const int64_t size = network.head_size;
  const int64_t shared = network.heads / network.kv_heads;
  // The projection on the n-th run of `head_size` rows of a tensor.
  const auto head = [&](const std::string& tensor, int64_t n) {
    return x.matmul(rows(tensor).narrow(0, n * size, size).t()) +
           params[tensor + ".bias"].tensor.narrow(0, n * size, size);
  };
  std::vector<at::Tensor> values_read;
  for (int64_t h = 0; h < network.heads; ++h) {
    const int64_t group = h / shared;
    at::Tensor query, key, value;
    if (network.packing == Packing::separate) {
      query = head("query", h);
      key = head("key", group);
      value = head("value", group);
    } else if (network.packing == Packing::stacked) {
      query = head("qkv", h);
      key = head("qkv", network.heads + group);
      value = head("qkv", network.heads + network.kv_heads + group);
    } else {
      const int64_t first = group * (shared + 2);
      query = head("qkv", first + h % shared);
      key = head("qkv", first + shared);
      value = head("qkv", first + shared + 1);
    }
    if (network.turned > 0) {
      query = rotary_embedding(network, query);
      key = rotary_embedding(network, key);
    }
    const auto scores = query.matmul(key.transpose(-1, -2)) / std::sqrt(static_cast<double>(size));
    const auto later = at::ones_like(scores, scores.options().dtype(at::kBool)).triu(1);
    values_read.push_back(scores.masked_fill(later, -INFINITY).softmax(-1).matmul(value));
  }
  const auto written =
      at::cat(values_read, -1).matmul(rows("output").t()) + params["output.bias"].tensor;
  return (x + written).matmul(params["readout"].tensor);
}

inline Testbed AttentionNetwork::testbed() const {
  Testbed bed;
  bed.name = name;
  const auto network = *this;
  bed.init = [network](uint64_t seed, at::ScalarType type) {
    Parameters params;
    const auto add = [&](const std::string& tensor, at::IntArrayRef shape, double size) {
      params.add(tensor,
                 (normal(shape, seed * 100 + params.size()) * size).to(type).requires_grad_());
    };
    const auto projection = [&](const std::string& tensor, int64_t out, int64_t in) {
      const double size = 1 / std::sqrt(static_cast<double>(in));
      const bool transposed = network.layout == Layout::in_out;
      const std::vector<int64_t> shape = transposed ? std::vector{in, out} : std::vector{out, in};
      add(tensor + ".weight", shape, size);
      // As large as what it is added to, so that forgetting one is noticed.
      add(tensor + ".bias", {out}, 0.5);
    };
    const int64_t q = network.heads * network.head_size;
    const int64_t kv = network.kv_heads * network.head_size;
    add("embedding", {network.vocabulary, network.d_model}, 1);
    if (network.fused()) {
      projection("qkv", q + 2 * kv, network.d_model);
    } else {
      projection("query", q, network.d_model);
      projection("key", kv, network.d_model);
      projection("value", kv, network.d_model);
    }
    projection("output", network.d_model, q);
    add("readout", {network.d_model, network.classes}, 0.5);
    return params;
  };
  bed.batch = [network](uint64_t seed, at::ScalarType type) {
    const std::vector<int64_t> shape{network.batch_size, network.sequence};
    return testbeds::Batch{
        at::randint(network.vocabulary, shape, generator(seed), at::kLong),
        normal({network.batch_size, network.sequence, network.classes}, seed + 1).to(type)};
  };
  bed.outputs = [network](const Parameters& params, const at::Tensor& inputs) {
    return attention_network_outputs(network, params, inputs);
  };
  bed.loss = [outputs = bed.outputs](const Parameters& params, const testbeds::Batch& batch) {
    return (outputs(params, batch.inputs) - batch.targets).square().mean();
  };
  bed.gauges = [network](const Parameters& params) {
    const auto qk = network.query_key(params);
    const auto vo = network.value_output(params);
    std::vector<Gauge> gauges{vo_linear(vo), value_bias_exchange(vo)};
    if (network.turned > 0) {
      gauges.push_back(qk_scale(qk));
      gauges.push_back(qk_torus(qk));
    }
    if (network.turned < network.head_size) {
      gauges.push_back(qk_linear(qk));
      gauges.push_back(key_bias_null(qk));
    }
    return gauges;
  };
  return bed;
}

inline QueryKey AttentionNetwork::query_key(const Parameters& params) const {
  const auto tensor = [&](const char* part, const char* end) {
    return params[(fused() ? std::string("qkv") : std::string(part)) + end];
  };
  QueryKey spec{.query = tensor("query", ".weight"),
                .query_bias = tensor("query", ".bias"),
                .key = tensor("key", ".weight"),
                .key_bias = tensor("key", ".bias"),
                .heads = heads,
                .kv_heads = kv_heads,
                .pairing = pairing,
                .packing = packing,
                .layout = layout};
  if (turned > 0) spec.rotary_size = turned;
  return spec;
}

inline ValueOutput AttentionNetwork::value_output(const Parameters& params) const {
  const std::string value = fused() ? "qkv" : "value";
  return {.value = params[value + ".weight"],
          .value_bias = params[value + ".bias"],
          .output = params["output.weight"],
          .output_bias = params["output.bias"],
          .heads = heads,
          .kv_heads = kv_heads,
          .packing = packing,
          .layout = layout};
}

}  // namespace ddc::tests
