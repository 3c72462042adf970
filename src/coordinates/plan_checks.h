#pragma once

#include "coordinates/plan.h"

namespace ddc {

/// Throws, naming them, if gauges that share a tensor do not form the group that they describe.
void check_sharing(const Plan& plan);

/// Decides what folded gauges hold, and refuses what cannot be held.
void choose_hold_(Plan& plan);

}  // namespace ddc
