#pragma once

#include "ddc/testbeds/testbed.h"

// Two small causal transformers in the two usual dialects. Between them they have every abelian
// gauge the library makes, all bound to tensors that other gauges act on too.
//
// The task: target[t] = (multiplier * token[t] + token[t - 1]) mod vocabulary, per position, with
// token[-1] = 0. Tokens are drawn afresh for every batch seed.

namespace ddc::testbeds {

/// Pre-LayerNorm, with biases everywhere and learned positions. Per layer:
///
///     x += attention(norm(x));   x += W relu(V norm(x) + b) + c;   x += W relu(V norm(x) + b)^2 +
///     c
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
  /// Also list the shifts of the residual stream: the mean over channels, which every LayerNorm
  /// removes, of each tensor that writes to it; and what token and position embedding can hand to
  /// each other.
  bool residual_shifts = true;
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
};
Testbed rms_norm_block(const RmsNormBlockOptions& options = {});

}  // namespace ddc::testbeds
