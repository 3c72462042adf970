#pragma once

#include "ddc/experiments/experiment.h"

// The experiments, one file each.

namespace ddc::experiments {

Experiment containment();
Experiment diagonal();
Experiment row_shift();
Experiment parity();
Experiment grokking();
Experiment rope();
Experiment over_training();
Experiment compression();

}  // namespace ddc::experiments
