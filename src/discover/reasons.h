#pragma once

#include <string>
#include <vector>

#include "ddc/discover/evaluate.h"
#include "ddc/gauge/gauge.h"

namespace ddc {

/// Says in words why a gauge that fails the gate is none, as far as the operations between its tensors
/// tell: they are read off the graph that autograd keeps of one evaluation. Where they do not tell,
/// the sentence says only what was measured.
std::string reason_of_failure(const Gauge& gauge, const Parameters& params,
                              const Evaluate& evaluate);

}  // namespace ddc
