#pragma once

#include <optional>
#include <string>

#include "ddc/gauge/channel_map.h"
#include "ddc/gauge/rescale.h"

// The gauges inside attention. Scores are bilinear in queries and keys and outputs are bilinear in
// values and output projection, so each head may change the basis of either pair:
//
//     linear GL(d_head)  =  a symmetric positive part  x  rotation O(d_head)
//                           (of which `scale` is the multiples of the identity)
//
// A rotary embedding turns the planes of queries and keys by angles that depend on the position. What
// commutes with it is a rotation and a scale per plane: `qk_torus` and `qk_scale`. With a partial one
// the coordinates that pass through keep their full group. Nothing rotary happens to values.
//
// Per key head, which the query heads of its group share under grouped-query attention.

namespace ddc {

/// How the projections are stored along their output axis.
enum class Packing {
  separate,  ///< a tensor each
  stacked,   ///< one tensor: all query heads, all key heads, all value heads
  per_head,  ///< one tensor: per key head its query heads, then key, then value (GPT-NeoX)
};

/// Queries and keys of one attention layer. With a fused projection both name the same tensor.
struct QueryKey {
  NamedTensor query;
  std::optional<NamedTensor> query_bias = {};
  NamedTensor key;
  std::optional<NamedTensor> key_bias = {};
  int64_t heads = 1;
  /// Number of key heads; unset: as many as query heads.
  std::optional<int64_t> kv_heads = {};
  /// How rotary embedding pairs coordinates into planes, if there is one.
  channel_maps::Pairing pairing = channel_maps::Pairing::none;
  /// The rotary embedding turns this many leading coordinates of each head; unset: all.
  std::optional<int64_t> rotary_size = {};
  Packing packing = Packing::separate;
  Layout layout = Layout::out_in;
  std::string name = {};
};

/// Acts: query rows and bias +1, key rows and bias -1; one channel per key head, or per rotary plane.
///
/// Broken by: qk-norm with a gain (the norm undoes the scale); a pairing that is not the model's.
Gauge qk_scale(const QueryKey& spec);
/// SO(2) per key head and rotary plane.
///
/// Broken by: qk-norm with a gain; a pairing that is not the model's.
Gauge qk_torus(const QueryKey& spec);
/// O(d_head) per key head, on the coordinates that no rotary embedding turns.
///
/// Broken by: rotary embedding of coordinates that are not declared as such; qk-norm with a gain.
Gauge qk_rotation(const QueryKey& spec);
/// GL(d_head) per key head, on the coordinates that no rotary embedding turns. Contains `qk_rotation`
/// and, on them, `qk_scale`: bind either it or them.
Gauge qk_linear(const QueryKey& spec);
/// On coordinates that no rotary embedding turns, a key bias adds the same number to all scores of a
/// query, which softmax does not see.
///
/// Broken by: rotary embedding of coordinates that are not declared as such; qk-norm.
Gauge key_bias_null(const QueryKey& spec);

/// Values and the output projection of one attention layer. The output projection is acted on along
/// its *input* axis.
struct ValueOutput {
  NamedTensor value;
  std::optional<NamedTensor> value_bias = {};
  NamedTensor output;
  std::optional<NamedTensor> output_bias = {};
  int64_t heads = 1;
  std::optional<int64_t> kv_heads = {};
  Packing packing = Packing::separate;
  Layout layout = Layout::out_in;
  std::string name = {};
};

/// Acts: value rows and bias +1, columns of the output projection -1; one channel per value head.
///
/// Broken by: a norm between the heads and the output projection. (So are the next two.)
Gauge vo_scale(const ValueOutput& spec);
/// O(d_head) per value head.
Gauge vo_rotation(const ValueOutput& spec);
/// GL(d_head) per value head. Contains `vo_scale` and `vo_rotation`: bind either it or them.
Gauge vo_linear(const ValueOutput& spec);
/// Attention weights sum to one, so a value bias reaches the output as a constant: what it gains, the
/// output projection's bias may lose. Needs both biases.
///
/// Broken by: attention weights that do not sum to one (dropout on them, sink tokens without value).
Gauge value_bias_exchange(const ValueOutput& spec);

}  // namespace ddc
