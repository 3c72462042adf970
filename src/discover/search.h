#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ddc/discover/discover.h"
#include "ddc/gauge/channel_map.h"
#include "ddc/gauge/gauge.h"
#include "probe.h"
#include "stacks.h"

// The search, in the order in which it runs. Each stage reads charges, leaves candidates, and marks the
// axes it has explained, so that later stages look at what is left.
//
//     scales.cpp     relations between charges per channel
//     norms.cpp      gauges that act through a gain: kernel shifts
//     residual.cpp   the rotation of the residual stream
//     heads.cpp      relations between pieces of axes: attention heads, rotary planes
//     blocks.cpp     which of all these mix: linear groups, rotations, tori
//     shifts.cpp     what may be added to rows, to vectors, and exchanged
//     exchanges.cpp  vectors that biases behind a matrix make up for
//     expected.cpp   what similar models have, to be refused with a reason
//
// All of it proposes; the gate disposes.

namespace ddc {

/// How a run of `size` indices falls into channels: one each; or, on the first `rotary` ones, one for the
/// two coordinates of a plane.
struct View {
  int64_t size = 0;
  channel_maps::Pairing pairing = channel_maps::Pairing::none;
  int64_t rotary = 0;

  int64_t planes() const { return rotary / 2; }
  int64_t channels() const { return size - planes(); }
  int64_t channel(int64_t i) const;
  /// Which of the two axes of its plane coordinate i is.
  int64_t side(int64_t i) const;
};

/// A part of a slot that takes part in a relation: `view.size` channels of `run` consecutive indices.
struct Piece {
  size_t slot = 0;
  int64_t first = 0;
  int64_t run = 1;
  double exponent = 1;
  /// Constant that is added to the tensor: the charge is that of `tensor + offset`.
  double offset = 0;
};

/// A scale relation. Matches of the same slots with the same exponents belong to one gauge: the heads
/// of a layer.
struct ScaleMatch {
  View view;
  std::vector<std::vector<Piece>> matches;
};

/// A norm's gain, or a learned factor per channel, with all that it is multiplied with.
struct Gain {
  std::string gain;
  double offset = 0;
  std::string shift;
  struct Reader {
    std::string weight;
    int64_t axis = 0;
    std::string bias;  ///< empty: none, or not known
  };
  std::vector<Reader> readers;
  /// The readers are read *before* the gain: a factor on the output of a layer.
  bool on_output = false;
  /// Others than the readers see the norm's output too (the residual stream goes on from it), so it has
  /// no scale to give.
  bool seen_by_others = false;
  /// What is added next to the stream that goes on, if it is known: the bias of the next writer.
  std::string added_next = {};
};

/// The state of the search: what is known so far.
struct Search {
  /// `everything`: the parameters of the model, of which the probe may have those of some layers only.
  Search(Probe& probe_, const Parameters& everything_, const Stacks& stacks_, Hints hints_);

  Probe& probe;
  const Parameters& everything;
  const Stacks& stacks;
  Hints hints;
  /// Per slot and index: a scale or a matrix group acts there.
  std::vector<std::vector<bool>> used;
  std::vector<ScaleMatch> scales;
  std::vector<Gain> gains;
  /// Sizes of the blocks that were found: heads.
  std::vector<int64_t> head_sizes;
  std::vector<Gauge> gauges;

  const Slot& slot(size_t k) const { return probe.slots()[k]; }
  const NamedTensor& tensor_of(size_t k) const { return probe.parameter(slot(k).tensor); }
  bool is_vector(size_t k) const { return tensor_of(k).tensor.dim() == 1; }
  /// The loss is blind to the tensor altogether, up to rounding.
  bool is_null(size_t tensor) const { return null_[tensor]; }
  /// Whether two tensors are tried together where all pairs would be many: those of a small model, and
  /// neighbours in the table.
  bool are_near(size_t a, size_t b) const {
    constexpr size_t neighbourhood = 24;
    return probe.is_small() || (a < b + neighbourhood && b < a + neighbourhood);
  }
  /// Distance of a tensor's mean from one: small for gains, about one for biases.
  double distance_from_one(size_t slot) const;
  bool is_free(size_t slot, int64_t first, int64_t count) const;
  void mark(size_t slot, int64_t first, int64_t count);
  size_t slot_of(const std::string& tensor, int64_t axis) const;
  /// Adds the gauge if its charges vanish.
  bool add_if_conserved(Gauge gauge);

  void find_scales();
  void find_heads();
  void find_blocks();
  void find_plane_gauges();
  void find_rotations();
  void add_null_biases();
  void find_shifts();
  void find_gains();
  void find_gain_gauges();
  void find_exchanges();
  void find_residual_rotation();
  void find_lone_scales();
  void find_pairs_of_scales();

  /// What similar models have and this one, by its charges, has not: gauges for the list of what was
  /// refused. Of those that layers have in common the first. `classes`: the length of the outputs' last
  /// axis; 0 if not known.
  std::vector<Gauge> expected(int64_t classes) const;

 private:
  void find_rotation_of_stream(int64_t size);

  std::vector<bool> null_;
  /// Scales that `find_blocks` has looked at.
  size_t blocks_done_ = 0;
};

/// All that may turn with a residual stream of this size, a gauge of one leg each: what reads it
/// through a gain, and what nothing else explains.
std::vector<Gauge> legs_of_stream(const Search& search, int64_t size);
/// The gauge that all these are legs of.
Gauge stream_rotation(const std::vector<Gauge>& legs, const std::vector<size_t>& which);

/// The legs of a relation with other channels: what has coordinate i of a match gets channel(i), -1 for
/// none.
Gauge with_channels(const Search& search, const ScaleMatch& match, Action action, int64_t block,
                    int64_t per_match, const std::function<int64_t(int64_t)>& channel);

/// The gauge of a relation. Legs with a positive exponent come first, and a gain before all others.
Gauge scale_gauge(const Search& search, const ScaleMatch& match);

}  // namespace ddc
