#pragma once

#include <string>
#include <vector>

#include "ddc/gauge/norm.h"
#include "ddc/gauge/rescale.h"

// The gauges of a residual stream: its mean, which LayerNorm does not read, and its basis, which no
// tensor singles out but those that write to the stream and those that read it through a norm.

namespace ddc {

/// A tensor that writes to the residual stream, and which of its axes is the stream's.
struct Writer {
  NamedTensor tensor;
  int64_t axis = 0;
};

/// LayerNorm subtracts the mean over channels, so what writes to a stream that is only read through
/// LayerNorms may add the same to every channel: a constant per token, per position, per column of an
/// output projection, and one for a bias.
///
/// Broken by: a reader without a LayerNorm before it (an unembedding without final norm); RMSNorm.
Gauge residual_mean_shift(const Writer& writer);

/// A rotation of the stream: every writer turns, and every reader turns back what it reads, seen through
/// its norm's gain. Group O(d), or with LayerNorm O(d - 1): the rotations that leave the vector of
/// ones alone. The norms' gains take no steps of their own then; the weights that read through
/// them do.
///
/// Broken by: an embedding that is tied to the unembedding, a reader without norm, an elementwise
/// function on the stream; norms with a shift that are read without a bias.
struct ResidualRotation {
  std::vector<Writer> writers;
  std::vector<NormReaders> norms;
  /// The norms subtract the mean.
  bool layer_norm = true;
  std::string name = "residual:rotation";
};
Gauge residual_rotation(const ResidualRotation& spec);

}  // namespace ddc
