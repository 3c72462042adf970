#pragma once

#include <optional>
#include <string>

#include "ddc/gauge/channel_map.h"
#include "ddc/gauge/rescale.h"

// The abelian part of the attention gauges. (The rotations and the full linear group contain it.)

namespace ddc {

/// Attention scores are bilinear in queries and keys, so each head's queries may be multiplied by
/// what its keys are divided by. Acts: `query` rows and bias +1, `key` rows and bias -1; one channel
/// per key head, which the query heads of its group share. With rotary embeddings also one channel
/// per plane (`pairing`): a plane's two coordinates must move together.
///
/// Broken by: qk-norm with a gain (the norm undoes the scale); a pairing that is not the model's.
struct QKScale {
  NamedTensor query;
  std::optional<NamedTensor> query_bias = {};
  NamedTensor key;
  std::optional<NamedTensor> key_bias = {};
  int64_t heads = 1;
  /// Number of key heads; unset: as many as query heads.
  std::optional<int64_t> kv_heads = {};
  channel_maps::Pairing pairing = channel_maps::Pairing::none;
  Layout layout = Layout::out_in;
  std::string name = {};
};
Gauge qk_scale(const QKScale& spec);

/// Attention is linear in the values. Acts: `value` rows and bias +1, the *input* axis of `output`
/// -1; one channel per value head.
///
/// Broken by: a norm between the heads and the output projection.
struct VOScale {
  NamedTensor value;
  std::optional<NamedTensor> value_bias = {};
  NamedTensor output;
  int64_t heads = 1;
  std::optional<int64_t> kv_heads = {};
  Layout layout = Layout::out_in;
  std::string name = {};
};
Gauge vo_scale(const VOScale& spec);

}  // namespace ddc
