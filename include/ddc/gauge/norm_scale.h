#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ddc/gauge/rescale.h"

namespace ddc {

/// The gain of a normalisation layer and everything that reads its output:
///
///     y_k = W_k (gamma * norm(x) + beta)     for every reader k
///
/// Acts: `gain` +1, `shift` +1, the input axis of *every* reader -1. Group (R+)^d. LayerNorm has a
/// shift, RMSNorm has none; set `gain_is_offset` for norms that store the gain as (1 + w) (Gemma).
///
/// Broken by: a reader that is left out; a tied unembedding (its other use is not divided);
/// a residual connection that takes the normalised value; an elementwise nonlinearity before the
/// reader.
struct NormScale {
  NamedTensor gain;
  std::optional<NamedTensor> shift = {};
  std::vector<NamedTensor> readers;
  bool gain_is_offset = false;
  Layout layout = Layout::out_in;
  std::string name = {};
};
Gauge norm_scale(const NormScale& spec);

}  // namespace ddc
