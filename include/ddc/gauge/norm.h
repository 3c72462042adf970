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

/// A normalisation layer and everything that reads its output, with biases:
///
///     y_k = W_k (gamma * n + beta) + b_k     for every reader k, n the normalised vector
struct NormReaders {
  struct Reader {
    NamedTensor weight;
    std::optional<NamedTensor> bias = {};
  };
  NamedTensor gain;
  std::optional<NamedTensor> shift = {};
  std::vector<Reader> readers;
  bool gain_is_offset = false;
  Layout layout = Layout::out_in;
  /// Where a residual stream goes on from the norm's output: the bias that is added to it next.
  std::optional<NamedTensor> added_next = {};
};

/// LayerNorm's n has zero mean, so the same number may be added to all of a row of W_k diag(gamma). One
/// gauge per reader, R^rows. With a shift the bias takes up what the row then reads of it, so a reader
/// needs one; those without are left out.
///
/// Broken by: RMSNorm (its n has a mean); a reader that is tied to something else.
std::vector<Gauge> norm_kernel_shifts(const NormReaders& spec);

/// Exchange of a norm's beta with what comes after it: beta gains s, the readers' biases lose W_k s, and
/// `added_next` loses s. Group R^d; every reader must have a bias.
///
/// Broken by: a reader that is left out or has no bias; a residual stream that goes on from the norm's
/// output, if what is added to it next has no bias.
Gauge norm_shift_exchange(const NormReaders& spec);

}  // namespace ddc
