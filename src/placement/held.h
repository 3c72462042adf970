#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddc/placement.h"
#include "frame/frame.h"
#include "placement/scales.h"

// Weights at their canonical place as a step sees them: no coordinates, no units, no frames. Everything
// is a small move along an orbit, measured on the weights and applied to them.

namespace ddc {

/// The section of every gauge, and the moves that bring weights back to it.
class Held {
 public:
  /// `frame` is bound to weights at their canonical place.
  explicit Held(Frame frame);

  void restore_();
  /// By how much weights miss the section of a gauge.
  double distance(size_t gauge) const;
  /// Weights as they are now are the anchors from here on.
  void anchor_();
  /// What depends on state alone.
  void refresh_();

  Frame& frame() { return frame_; }
  const Frame& frame() const { return frame_; }
  at::Tensor& count() { return count_; }
  /// Tensors as they were at the last turn, by place in the plan and number of steps between turns.
  std::map<std::pair<size_t, int64_t>, at::Tensor>& anchors() { return anchors_; }

 private:
  /// Gauges that are held and tied together by tensors, which no other set touches.
  struct Set {
    /// In the order of their component.
    std::vector<size_t> gauges;
    /// In the order in which they empty their vectors.
    std::vector<size_t> exchanges;
    bool coupled = false;
    /// Several of them turn one tensor.
    bool overlapping = false;
    /// The scale gauges, where plain loops will do.
    std::optional<Scales> scales;
  };
  /// Sums over a gauge's plus and minus side, [blocks, block, block].
  struct Sides {
    at::Tensor plus;
    at::Tensor minus;
    void add_(const BoundLeg& leg, const at::Tensor& value);
  };

  bool is_held(size_t gauge) const;
  bool is_due(size_t gauge) const;
  bool turns(size_t gauge) const;

  /// The values that a gauge acts on: with offset, and seen through a gain.
  at::Tensor value(size_t tensor) const;
  at::Tensor seen(size_t tensor) const;
  /// Writes what is seen of a leg's tensor; the bias beside it takes up what a norm's shift adds.
  void write_seen_(size_t gauge, size_t leg, const at::Tensor& seen);

  void find_sets_();
  void restore_(Set& set);
  void empty_(size_t gauge);
  void centre_(size_t gauge);
  /// Returns the logs of the moves.
  std::vector<at::Tensor> scale_(const std::vector<size_t>& gauges);
  /// Makes both sides of a linear gauge equal, and undoes what the steps have turned, if that is given.
  void balance_(size_t gauge, const Sides& turned);
  void multiply_(size_t gauge, const at::Tensor& factor);
  at::Tensor shift(size_t gauge) const;
  Squares squares_of(const std::vector<size_t>& gauges) const;
  SectionValue section_of(size_t gauge, const Squares& squares) const;
  Sides grams(size_t gauge) const;
  /// Gram matrices of a linear gauge, which is held where these are equal.
  static Sides at_target(const at::Tensor& target, const Sides& sides);
  /// What the steps since the last time have turned: per side the sum over legs of x_then x_now^T.
  Sides turned(size_t gauge) const;
  at::Tensor gain_before(size_t tensor, const at::Tensor& like) const;

  Frame frame_;
  at::Tensor count_;
  std::map<std::pair<size_t, int64_t>, at::Tensor> anchors_;
  /// Gains that weights are seen through, as they were before the step.
  std::map<size_t, at::Tensor> gains_;
  /// Per gauge: some of its channels are in a degenerate stratum, and may leave it.
  std::vector<bool> degenerate_;
  std::vector<Set> sets_;
};

}  // namespace ddc
