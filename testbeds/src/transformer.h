#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ddc/testbeds/testbed.h"

namespace ddc::testbeds {

enum class Norm { layer, rms };

/// One feed-forward part of a layer, `x += f(norm(x))`.
struct FeedForward {
  enum class Kind { relu, squared_relu, swiglu };
  /// Its tensors are "layers.<l>.<name>_norm.weight", "layers.<l>.<name>.up.weight", ...
  std::string name;
  Kind kind = Kind::relu;
};

/// The causal transformer of which `layer_norm_block`, `rms_norm_block` and `modular_addition` are
/// three settings: embedding, layers of attention and feed-forward parts with a norm before each,
/// unembedding.
struct Transformer {
  int64_t vocabulary = 0;
  int64_t classes = 0;
  int64_t d_model = 0;
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t d_ff = 0;
  int64_t sequence = 0;
  int64_t layers = 1;
  std::vector<FeedForward> feed_forwards;
  Norm norm = Norm::layer;
  bool gain_is_offset = false;
  /// Learned positions, or else rotary attention.
  bool learned_positions = true;
  bool attention_biases = true;
  bool feed_forward_biases = true;
  bool final_norm = true;
  bool unembedding_bias = true;
  /// Logits of the last position only: [batch, classes] instead of [batch, time, classes].
  bool last_position_only = false;
  double embedding_spread = 1;
  double gain_spread = 0;
  double bias_spread = 0;
  /// Whether `gauges` lists the shifts of the residual stream (see `LayerNormBlockOptions`).
  bool residual_shifts = true;
  /// Tokens of class k stand only at positions of class k. Empty: any token at any position.
  std::vector<int64_t> token_class = {};
  std::vector<int64_t> position_class = {};
};

/// A testbed with this network and cross-entropy loss; `batch` is left to the task.
Testbed transformer_testbed(const Transformer& network);

}  // namespace ddc::testbeds
