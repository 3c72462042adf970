#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "ddc/treatment.h"

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
  /// In place, what the last step had to correct: the largest distance from the section, or the largest
  /// entry of a shift or of the generator of a rotation. At the canonical place, what weights miss the
  /// section by now, as since the last move back; 0 for rotations and what is not held.
  double imbalance = 0;
  /// How many frames of blocks have been computed again since the start.
  int64_t frames_recomputed = 0;
};

struct Report {
  std::vector<GaugeReport> gauges;
  int64_t tensors = 0;
  int64_t gauged_tensors = 0;
  /// Where the weights are trained; and why in place, if nobody said so.
  Place place = Place::in_place;
  std::string why_in_place;

  int64_t dimension() const;
  int64_t degenerate_channels() const;
  double largest_imbalance() const;
};

/// A table, one line per gauge.
std::ostream& operator<<(std::ostream& out, const Report& report);

}  // namespace ddc
