#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ddc/discover/evaluate.h"
#include "ddc/discover/symmetry_group.h"
#include "ddc/parameters.h"

namespace ddc {

/// Hints of a caller who knows the model. Nothing here is believed: the gate verifies it.
struct Hints {
  /// Sizes of attention heads. They are tried also where the search would not look without a hint:
  /// very small heads of large models, which need more batches.
  std::vector<int64_t> head_sizes = {};
};

struct DiscoverOptions {
  uint64_t seed = 0;
  Hints hints = {};
  /// Steps of AdamW and DDCAdam over which engagement is measured; 0: it is not.
  int64_t engagement_steps = 0;
  /// Whether to count the null space (see Completeness), where nothing is zero or one by
  /// initialisation. Exact up to so many parameters, a bound above.
  bool completeness = false;
  int64_t exact_up_to = 20000;
  /// Called with what is being done, for progress on a terminal: a stage, and how much of it is done, of
  /// how much; 0 of 0 where nobody knows.
  std::function<void(const std::string& stage, size_t done, size_t all)> progress = nullptr;
};

/// Finds the symmetries of a model from its gradients.
///
/// For an invariant loss the gradient is orthogonal to the orbit on every batch. The products of
/// weights and gradients, summed over the channels of an axis (Noether charges), therefore satisfy
/// linear relations that are the same for all batches, and these relations are the gauges. What is
/// found so is only a candidate; it belongs to the group once it has passed the gate (see gate.h).
///
/// Parameters that do not require gradients are held fixed. While it runs the parameters are moved to
/// where nothing is zero or one by initialisation; they are back, bit for bit, when it returns or
/// throws. Gradients (`.grad`) are not touched.
///
/// If `evaluate` throws Interrupted, what has passed the gate until then is returned, with a note; before
/// anything has, the exception goes on.
SymmetryGroup discover(const Parameters& params, const Evaluate& evaluate,
                       const DiscoverOptions& options = {});

/// The symmetries of a model, from those of a narrow twin: a model of the same code with the same names, and
/// smaller sizes. Nothing is searched for. Of each gauge of the twin all that it may be at the sizes of the
/// model is tried, the largest blocks first; what belongs to the group has passed the gate, as in `discover`.
/// A module whose number the twin does not have is taken for a layer like the twin's second one.
SymmetryGroup widen(const SymmetryGroup& narrow, const Parameters& params, const Evaluate& evaluate,
                    const DiscoverOptions& options = {});

}  // namespace ddc
