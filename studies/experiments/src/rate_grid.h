#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ddc/experiments/experiment.h"

namespace ddc::experiments {

/// The rates at which observables vanish on the way to a minimum, cell by cell: a cell is a place in the network
/// and an observable there, as meters name them ("activations[stream.layers.0.mlp].sigma_min"). Of runs with the
/// meter `arc`.
struct RateGrid {
  /// Panels are arms, `z` the median slope over seeds of the cells that most seeds can read.
  HeatMap map;
  /// How many cells an arm has, and of these those that most of its seeds can read, and that ascend in most.
  struct Cells {
    std::string arm;
    int64_t all = 0;
    int64_t readable = 0;
    int64_t ascending = 0;
  };
  std::vector<Cells> cells;
};
RateGrid rate_grid(const std::vector<FinishedRun>& runs,
                   const std::vector<std::string>& observables);

}  // namespace ddc::experiments
