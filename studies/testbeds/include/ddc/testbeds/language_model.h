#pragma once

#include <string>

#include "ddc/testbeds/testbed.h"

namespace ddc::testbeds {

/// Where `scripts/setup.sh data` writes the King James text.
inline constexpr const char* king_james_file = "out/data/king_james.txt";

/// The network of the paper's over-training study (appendix "Over-training and rate-readability on a
/// depth-12 language model"), small: pre-RMSNorm, rotary grouped-query attention, SwiGLU, no biases. It
/// predicts the next byte of a text; its vocabulary are the bytes that the text has, in their order.
///
/// The last part of the text is held out. Training sees a slice before it; where that is far below what
/// the network can hold, the run enters the regime of the study: it memorises the slice while the
/// validation loss rises.
struct LanguageModelOptions {
  /// A file. Empty: the King James text (`king_james_file`).
  std::string text = "";
  /// The slice to train on, in bytes from the start of the text; 0: all that is not held out.
  int64_t train_characters = 0;
  /// The share of the text, its end, that is held out.
  double validation_fraction = 0.1;
  /// Bytes that a window of the text has, and windows that a batch has.
  int64_t sequence = 64;
  int64_t batch_size = 16;
  int64_t d_model = 64;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t d_ff = 160;
  int64_t layers = 3;
  /// How many windows, spread evenly, of the slice and of what is held out `observe` looks at.
  int64_t observed_windows = 32;
  /// Standard deviation of gains about 1 at the start.
  double gain_spread = 0;
  GaugeSet gauges = GaugeSet::rotations;
};

/// Batches are windows at random places of the slice. Observed: "train_loss", "train_accuracy",
/// "validation_loss", "validation_accuracy", "gap" (of the losses, validation less train), and of the
/// residual stream after the last layer, on the training windows, "sigma_min" and "effective_rank".
/// Throws, saying what to install, if there is no text.
Testbed language_model(const LanguageModelOptions& options = {});

/// Throws, saying what to install, unless there is a file that `language_model` can open.
void check_text(const LanguageModelOptions& options);

/// All of the slice and all that is held out, as numbers of bytes of the vocabulary: uint8.
struct LanguageModelSplit {
  at::Tensor train;
  at::Tensor validation;
  /// The bytes, in order.
  std::string vocabulary;
};
LanguageModelSplit language_model_split(const LanguageModelOptions& options = {});

}  // namespace ddc::testbeds
