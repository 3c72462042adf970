#pragma once

#include <cstdint>
#include <vector>

namespace ddc {

struct Rank {
  int64_t rank = 0;
  double gap = 0;
};

/// The number of singular values, largest first, that count: down to the largest gap among those below
/// `small`. Those below `rounding` are noise, and the gaps between them mean nothing.
Rank rank_of(const std::vector<double>& values, double small, double rounding);

}  // namespace ddc
