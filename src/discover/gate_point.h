#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "ddc/discover/gate.h"
#include "discover/restore.h"

namespace ddc {

/// A batch at some point: the loss, and the outputs if there are any.
struct Outcome {
  double loss = 0;
  at::Tensor outputs;
};

/// Where the parameters are while one gauge after the other is tried: what batches give there is evaluated
/// once.
class GatePoint {
 public:
  /// `place`: the values of the parameters, if somebody can tell them, so that no gate keeps a copy.
  explicit GatePoint(const Evaluate& evaluate, ValuesAt place = {})
      : evaluate_(evaluate), place_(std::move(place)) {}

  const Outcome& outcome(int64_t batch);
  /// By how much the loss of batch 0 differs where it is evaluated again.
  double difference();
  const Evaluate& evaluate() const { return evaluate_; }
  const ValuesAt& place() const { return place_; }

 private:
  const Evaluate& evaluate_;
  ValuesAt place_;
  std::vector<Outcome> outcomes_;
  double difference_ = -1;
};

Verdict gate(const std::vector<Gauge>& gauges, const Parameters& params, GatePoint& point,
             const GateOptions& options = {});

}  // namespace ddc
