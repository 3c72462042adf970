#pragma once

#include "ddc/testbeds/testbed.h"

namespace ddc::testbeds {

/// Which rotations of queries and keys a rotary testbed lists; those of values and outputs come with them.
enum class Rotation {
  none,
  /// One angle per rotary plane: what commutes with the rotary embedding.
  torus,
  /// O(d_head), as if nothing were rotary. The paper's ablation, and no symmetry of the network.
  full,
};

enum class Activation { relu, squared_relu, gelu };

/// The paper's deep rotary grokking transformer (appendix "Matching the rotation gauge to the rotary
/// architecture", where it has 8 or 24 layers and sequences of 128). The paper says neither how sums
/// become sequences nor which norm it uses. Here a sequence holds equations one after the other,
///
///     a b = c   a b = c   a b = c   ...        c = (a + b) mod p
///
/// and only what is predicted at the equals signs counts. All equations of a sequence are for training,
/// or all are held out. Norms are RMSNorms, before attention, feed-forward part and unembedding; no layer has
/// biases.
struct RopeGrokkingOptions {
  int64_t modulus = 59;
  double train_fraction = 0.3;
  /// Which pairs are for training.
  uint64_t split_seed = 0;
  /// Tokens per sequence, four for each equation.
  int64_t sequence = 16;
  /// Sequences per batch, of training pairs in a new order each time; 0: as many as they fill.
  int64_t batch_size = 64;
  int64_t d_model = 64;
  int64_t heads = 4;
  int64_t d_ff = 256;
  int64_t layers = 4;
  Activation activation = Activation::squared_relu;
  Rotation rotation = Rotation::torus;
  /// Whether `gauges` lists the scales and shifts of the network beside the rotations. The paper's arms
  /// bind rotations alone.
  bool scales_and_shifts = false;
};

/// Observes accuracies, "test_bits" (the loss on held-out pairs in bits) and, of the residual stream that
/// the last norm reads, at the equals signs of held-out equations, a matrix [equations, d_model]:
/// "sigma_min", its smallest singular value, and "effective_rank", the exponential of the entropy of its
/// singular values.
Testbed rope_grokking(const RopeGrokkingOptions& options = {});

/// All training pairs and all held-out pairs, packed into sequences, but for what does not fill one.
struct RopeGrokkingSplit {
  Batch train;
  Batch test;
};
RopeGrokkingSplit rope_grokking_split(const RopeGrokkingOptions& options = {});

}  // namespace ddc::testbeds

template <>
inline constexpr std::array ddc::EnumNames<ddc::testbeds::Rotation> = {"none", "torus", "full"};
template <>
inline constexpr std::array ddc::EnumNames<ddc::testbeds::Activation> = {"relu", "squared_relu",
                                                                         "gelu"};
