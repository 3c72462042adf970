#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace ddc {

/// What an optimizer has bound, and what the last step did to it.
struct GaugeReport {
  std::string name;
  std::string kind;
  std::string group;
  /// "folded", "balanced", "standard", "polar"; "centred" for shifts; the second moment's mode for blocks.
  std::string coordinates;
  std::vector<std::string> tensors;
  int64_t channels = 0;
  int64_t dimension = 0;
  /// Channels in a degenerate stratum (a side is zero): trained, but not held yet.
  int64_t degenerate_channels = 0;
  /// What the last step had to correct: the largest distance from the section, or the largest
  /// entry of a shift or of the generator of a rotation.
  double imbalance = 0;
  /// How many frames of blocks have been computed again since the start.
  int64_t frames_recomputed = 0;
};

struct Report {
  std::vector<GaugeReport> gauges;
  int64_t tensors = 0;
  int64_t gauged_tensors = 0;

  int64_t dimension() const;
  int64_t degenerate_channels() const;
  double largest_imbalance() const;
};

/// A table, one line per gauge.
std::ostream& operator<<(std::ostream& out, const Report& report);

}  // namespace ddc
