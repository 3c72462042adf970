#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ddc/gauge/norm.h"
#include "ddc/testbeds/testbed.h"
#include "layers.h"

namespace ddc::testbeds {

enum class Norm { layer, rms };

/// Where the norms of a layer stand.
enum class NormPlace {
  before,  ///< x += branch(norm(x))
  around,  ///< x += post_norm(branch(norm(x))), as in Gemma 2
  /// x = norm(x + branch(x)), as in BERT. A norm of the embedding comes first, and there is no final one.
  after,
};

/// What queries and keys go through, head by head, before they meet.
enum class QkNorm {
  none,
  plain,      ///< an RMSNorm without gain
  with_gain,  ///< and with one, that all heads share
};

/// Which positions the logits are read from.
enum class Readout {
  every_position,
  last_position,
  /// A learned vector that is put before the others.
  class_token,
};

/// One feed-forward part of a layer.
struct FeedForward {
  enum class Kind { relu, squared_relu, gelu, swiglu, geglu };
  /// Its tensors are "layers.<l>.<name>.up.weight", ...
  std::string name;
  Kind kind = Kind::relu;
};

/// The transformer of which the blocks and `modular_addition` are settings: embedding, layers of
/// attention and feed-forward parts that read the residual stream through norms, unembedding.
struct Transformer {
  int64_t vocabulary = 0;
  /// The inputs are vectors of this size, mapped linearly to the residual stream, instead of
  /// tokens.
  std::optional<int64_t> d_patch = {};
  int64_t classes = 0;
  int64_t d_model = 0;
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t d_ff = 0;
  /// Number of tokens or vectors, without the class token.
  int64_t sequence = 0;
  int64_t layers = 1;
  std::vector<FeedForward> feed_forwards;
  /// Attention and feed-forward parts read one norm and are added together, x += attention(n(x)) +
  /// feed_forward(n(x)). Else they come one after the other, each with a norm of its own.
  bool parallel = false;
  Norm norm = Norm::layer;
  NormPlace norm_place = NormPlace::before;
  /// Whether a LayerNorm adds a vector; an RMSNorm never does.
  bool norm_shifts = true;
  bool gain_is_offset = false;
  /// Every branch is multiplied by a learned vector before it is added.
  bool layer_scale = false;
  /// The smaller, the more nearly the norms forget the scale of the residual stream.
  double norm_eps = default_norm_eps;
  /// If it is not on, positions are learned.
  Rotary rotary = {};
  QkNorm qk_norm = QkNorm::none;
  Packing packing = Packing::separate;
  /// Gate and up projection are one tensor.
  bool fused_gate_up = false;
  bool causal = true;
  bool attention_biases = true;
  bool feed_forward_biases = true;
  bool final_norm = true;
  bool unembedding_bias = true;
  /// The embedding is also the unembedding: one parameter, "embedding.weight".
  bool tied = false;
  /// logits -> softcap * tanh(logits / softcap).
  std::optional<double> softcap = {};
  /// What the loss has of the mean square of logsumexp(logits).
  double z_loss = 0;
  /// Logits are [batch, time, classes], or [batch, classes] if one position is read.
  Readout readout = Readout::every_position;
  double embedding_spread = 1;
  /// Linear maps and their biases as torch::nn::Linear draws them, uniformly within 1 / sqrt(inputs). Else
  /// normally with spread 1 / sqrt(inputs), and biases with `bias_spread`.
  bool torch_init = false;
  double gain_spread = 0;
  double bias_spread = 0;
  /// What embeds the inputs (positions and class token too) is the same for all seeds and not a
  /// parameter. The data then fix the basis of the residual stream.
  bool fixed_embedding = false;
  /// Whether `gauges` lists the shifts of the residual stream (see `LayerNormBlockOptions`).
  bool residual_shifts = true;
  GaugeSet gauges = GaugeSet::abelian;
  /// Tokens of class k stand only at positions of class k. Empty: any token at any position.
  std::vector<int64_t> token_class = {};
  std::vector<int64_t> position_class = {};
};

/// A testbed with this network and cross-entropy loss; `batch` is left to the task.
Testbed transformer_testbed(const Transformer& network);

/// The outputs of the testbed of this network.
at::Tensor traced_outputs(const Transformer& network, const Parameters& params,
                          const at::Tensor& inputs, const Trace& trace);

// What the network and its list of gauges share.

/// A function that is added to the residual stream.
struct Branch {
  std::string name;
  /// Unset: attention.
  std::optional<FeedForward::Kind> feed_forward = {};
  /// Its readers are one layer.
  bool fused = false;

  /// The layers that read the norm, and the one that writes to the residual stream.
  std::vector<std::string> readers() const;
  std::string writer() const;
};

/// x += the sum over branches of branch(norm(x)), or as `NormPlace` says.
struct ResidualStep {
  std::string norm;
  /// Attention, if it is there, comes first.
  std::vector<Branch> branches;
};
std::vector<ResidualStep> residual_steps(const Transformer& network, int64_t layer);

inline bool is_gated(FeedForward::Kind kind) {
  return kind == FeedForward::Kind::swiglu || kind == FeedForward::Kind::geglu;
}

inline int64_t relu_degree(FeedForward::Kind kind) {
  return kind == FeedForward::Kind::squared_relu ? 2 : 1;
}

/// The norms with what reads them, in the order in which they are applied; of NormPlace::around those
/// that stand before branches.
std::vector<NormReaders> norms_with_readers(const Transformer& network, const Parameters& params);

/// The gauges of the network: the one place where the list is put together.
std::vector<Gauge> transformer_gauges(const Transformer& network, const Parameters& params);

}  // namespace ddc::testbeds
