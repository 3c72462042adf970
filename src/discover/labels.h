#pragma once

#include "ddc/gauge/gauge.h"
#include "search.h"

namespace ddc {

/// Names a gauge by what it is, as the ready-made gauges are named. Where charges alone do not tell (a
/// ReLU from a gated layer) the shapes of what is left over do.
void label_(const Search& search, Gauge& gauge);

/// For a shift of one tensor: whether it moves the logits is known only once it has been tried.
void label_shift_(const Parameters& params, Gauge& gauge, bool shifts_logits);

}  // namespace ddc
