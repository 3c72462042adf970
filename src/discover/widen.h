#pragma once

#include <string>
#include <vector>

#include "ddc/discover/symmetry_group.h"
#include "ddc/parameters.h"

namespace ddc {

/// What one gauge, and others of the same pattern at other layers, may be.
struct Choices {
  std::string name;
  /// [gauge][choice]: as many choices of each.
  std::vector<std::vector<Gauge>> gauges;
};

/// All that the gauges of a narrow model may be on a wide one. What cannot be said is noted.
std::vector<Choices> widened(const SymmetryGroup& narrow, const Parameters& wide,
                             std::vector<std::string>& notes);

}  // namespace ddc
