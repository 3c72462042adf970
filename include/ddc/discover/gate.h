#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ddc/discover/evaluate.h"
#include "ddc/gauge/gauge.h"

// The gate that a gauge has to pass before an optimizer binds it: random elements of its group, small
// and large, must leave loss and outputs of several batches where they are, at the precision of the
// model. Nothing is believed because of a name.

namespace ddc {

struct GateOptions {
  uint64_t seed = 0;
  /// Batches that every element is tried on.
  int64_t batches = 2;
  /// Sizes of the random elements (see `random_element`). The last one of a rotation is a reflection
  /// too; that of a scale is shrunk and grown by exp(6) on top, which finds what holds nearly: a norm
  /// whose eps is small beside the variance it is added to.
  std::vector<double> sizes = {0.1, 1.5};
  /// Whether scales are shrunk and grown so. Unset: those of a single gauge; in a list the factors of
  /// gauges that share tensors would multiply, and drown in rounding.
  std::optional<bool> shrink = {};
};

/// Verdict of the gate on a gauge, with its measurements.
struct Verdict {
  bool passed = false;
  /// The change of loss or outputs under an element, relative to the change that a move of the same
  /// tensors by as much, but at random, makes; at most to loss or outputs themselves. About one for
  /// what is no symmetry at all, infinite where the element leads to NaN. Of all that was measured, the
  /// one that is the largest beside its tolerance.
  double residual = 0;
  /// Up to which the residual passes: 20 times what rounding does at these parameters and at the
  /// moved ones, measured. What rounding drowns (above 0.1) is not judged by.
  double tolerance = 0;
  /// Which of the two it was: "loss" or "outputs".
  std::string worst;
  /// The loss is unchanged and the outputs change by a constant over their last axis: a shift of
  /// logits, which cross-entropy does not see. Counts as unchanged.
  bool shifts_logits = false;
};

/// Tries one gauge, or all of `gauges` at once (by random elements of their product; each should have
/// passed alone). Throws where a batch has no finite loss, or not twice the same. The parameters are moved
/// and brought back, bit for bit, whatever happens.
Verdict gate(const Gauge& gauge, const Parameters& params, const Evaluate& evaluate,
             const GateOptions& options = {});
Verdict gate(const std::vector<Gauge>& gauges, const Parameters& params, const Evaluate& evaluate,
             const GateOptions& options = {});

}  // namespace ddc
