#pragma once

#include "ddc/testbeds/testbed.h"

namespace ddc::testbeds {

/// The paper's grokking task (appendix "The grokking-transformer testbed"): predict (a + b) mod p
/// at the last of the tokens [a, b] (or [a, b, =]), from a fixed share of all p^2 pairs. The network is that of
/// `layer_norm_block` with one feed-forward part per layer, without final norm and without bias on
/// the unembedding, as in the paper.
struct ModularAdditionOptions {
  int64_t modulus = 113;
  double train_fraction = 0.3;
  /// Which pairs are for training.
  uint64_t split_seed = 0;
  /// Training pairs per batch, drawn without replacement; 0: all of them.
  int64_t batch_size = 0;
  int64_t d_model = 128;
  int64_t heads = 4;
  int64_t d_ff = 512;
  int64_t layers = 1;
  /// 1 for ReLU, 2 for squared ReLU.
  int64_t degree = 2;
  /// The paper has none, and keeps a place for it in the vocabulary.
  bool equals_sign = true;
  /// Times the mean square of the logits' logsumexp, added to the loss. It breaks the shift of logits.
  double z_loss = 0;
  GaugeSet gauges = GaugeSet::abelian;
  bool attention_biases = false;
  bool final_norm = false;
  /// Embeddings, linear maps and their biases start as torch::nn draws them. Else they are normal, embeddings with
  /// spread 1 / sqrt(d_model), linear maps with 1 / sqrt(inputs). The paper does not say; torch's embeddings are
  /// 11 times as large.
  bool torch_init = false;
  /// Standard deviation of gains (about 1) and of shifts and biases (about 0) at the start.
  double gain_spread = 0;
  double bias_spread = 0;
  /// As in `LayerNormBlockOptions`.
  bool residual_shifts = true;
};
Testbed modular_addition(const ModularAdditionOptions& options = {});

/// All training pairs and all held-out pairs.
struct ModularAdditionSplit {
  Batch train;
  Batch test;
};
ModularAdditionSplit modular_addition_split(const ModularAdditionOptions& options = {});

}  // namespace ddc::testbeds
