#pragma once

#include <optional>

#include "ddc/testbeds/testbed.h"

// Small transformers in the usual dialects. Between them they have every gauge the library makes for
// transformers, all bound to tensors that other gauges act on too.
//
// Two options are common to all. With `fixed_embedding` what embeds the inputs (positions and class
// token too) is the same for all seeds and not a parameter: the data then fix the basis of the
// residual stream. `norm_eps` is what each norm adds to the variance; the residual stream's scale
// is seen through it alone, and therefore almost not at all unless it is large.
//
// The task of those that read tokens: target[t] = (multiplier * token[t] + token[t - 1]) mod
// vocabulary, per position, with token[-1] = 0. Tokens are drawn afresh for every batch seed.

namespace ddc::testbeds {

/// Pre-LayerNorm, with biases everywhere and learned positions. Per layer:
///
///     x += attention(norm(x));   x += W relu(V norm(x) + b) + c;   x += W relu(V norm(x) + b)^2 + c
///
/// then a final norm and an unembedding with bias. Gains, shifts and biases start away from 1 and
/// 0, so that a gauge that forgets one is noticed.
struct LayerNormBlockOptions {
  int64_t vocabulary = 11;
  int64_t d_model = 16;
  int64_t heads = 4;
  int64_t d_ff = 24;
  int64_t sequence = 6;
  int64_t batch_size = 8;
  int64_t layers = 1;
  /// Standard deviation of gains (about 1) and of shifts and biases (about 0).
  double gain_spread = 0.2;
  double bias_spread = 0.2;
  int64_t multiplier = 3;
  /// Whether the part with the plain ReLU is there. Its gradient jumps where a unit switches on, so
  /// that rounding, once it decides about that, is not small any more.
  bool relu_part = true;
  /// Also list the shifts of the residual stream: the mean over channels, which every LayerNorm
  /// removes, of each tensor that writes to it; and what token and position embedding can hand to
  /// each other.
  bool residual_shifts = true;
  bool fixed_embedding = false;
  double norm_eps = 1e-5;
  GaugeSet gauges = GaugeSet::abelian;
};
Testbed layer_norm_block(const LayerNormBlockOptions& options = {});

/// Pre-RMSNorm, grouped-query attention with rotary embedding (half-split pairs), SwiGLU, no
/// biases.
struct RmsNormBlockOptions {
  int64_t vocabulary = 11;
  int64_t d_model = 16;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t d_ff = 24;
  int64_t sequence = 6;
  int64_t batch_size = 8;
  int64_t layers = 1;
  double gain_spread = 0.2;
  /// Store gains as w with (1 + w) applied, as Gemma does.
  bool gain_is_offset = false;
  int64_t multiplier = 3;
  bool fixed_embedding = false;
  double norm_eps = 1e-5;
  GaugeSet gauges = GaugeSet::abelian;
};
Testbed rms_norm_block(const RmsNormBlockOptions& options = {});

/// Attention and feed-forward side by side on one LayerNorm (GPT-J):
///
///     n = norm(x);   x += attention(n) + W relu(V n + b)^2 + c
///
/// Rotary attention without biases on the first `rotary_size` coordinates of each head, in
/// interleaved pairs; a final norm and an unembedding with bias. GPT-J has a GELU, which is not
/// homogeneous, in place of the squared ReLU.
struct GptJBlockOptions {
  int64_t vocabulary = 11;
  int64_t d_model = 16;
  int64_t heads = 2;
  /// Unset: all coordinates of a head.
  std::optional<int64_t> rotary_size = 4;
  int64_t d_ff = 24;
  int64_t sequence = 6;
  int64_t batch_size = 8;
  int64_t layers = 1;
  double gain_spread = 0.2;
  double bias_spread = 0.2;
  int64_t multiplier = 3;
  bool fixed_embedding = false;
  double norm_eps = 1e-5;
  GaugeSet gauges = GaugeSet::abelian;
};
Testbed gpt_j_block(const GptJBlockOptions& options = {});

/// A vision transformer: patches [batch, patches, d_patch] are embedded linearly, a class token is
/// put before them and positions are added; pre-LayerNorm layers with biases everywhere, attention
/// that is not causal and a squared ReLU; the logits are read from the class token after a final
/// norm.
///
/// The task: the class whose fixed random direction the mean of the patches has the largest inner
/// product with. Patches are standard normal, drawn afresh for every batch seed.
struct VitBlockOptions {
  int64_t d_patch = 6;
  int64_t patches = 4;
  int64_t classes = 10;
  int64_t d_model = 16;
  int64_t heads = 2;
  int64_t d_ff = 24;
  int64_t batch_size = 16;
  /// With one layer the class token would ask the same query whatever the patches are, and most of
  /// the query projection would not matter.
  int64_t layers = 2;
  double gain_spread = 0.2;
  double bias_spread = 0.2;
  uint64_t teacher_seed = 0;
  bool fixed_embedding = false;
  double norm_eps = 1e-5;
  GaugeSet gauges = GaugeSet::abelian;
};
Testbed vit_block(const VitBlockOptions& options = {});

}  // namespace ddc::testbeds
