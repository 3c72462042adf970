#pragma once

#include <set>
#include <utility>
#include <vector>

#include "coordinates/gauge_state.h"
#include "ddc/optim/lifted.h"

namespace ddc {

/// Weights and state as they are now, to put back if a step fails half way.
class LiftedOptimizer::Snapshot {
 public:
  explicit Snapshot(LiftedOptimizer& optimizer);
  void put_back() const;

 private:
  struct Slot {
    at::Tensor* place;
    at::Tensor tensor;
    at::Tensor value;
  };

  LiftedOptimizer& optimizer_;
  std::vector<std::pair<at::Tensor, at::Tensor>> weights_;
  std::vector<Slot> slots_;
  std::set<void*> states_;
  std::vector<GaugeState> gauges_;
};

}  // namespace ddc
