#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinates/coordinate_system.h"
#include "ddc/placement.h"
#include "placement/deferred.h"

// Weights at their canonical place as a step sees them: no coordinates, no units, no frames. Everything
// is a small move along an orbit, measured on the weights and applied to them.

namespace ddc {

/// The section of every gauge, and the moves that bring weights back to it.
class Held {
 public:
  /// `system` is bound to weights at their canonical place. `one_pass`: whoever steps them calls `open_`,
  /// and may leave moves pending.
  Held(CoordinateSystem system, bool one_pass);

  // A step in one pass: of the sets of gauges whose tensors all have a gradient and can be stepped so.
  // Elsewhere pending moves are made before the step, and `restore_` makes its own after it.

  void open_(const std::vector<bool>& can_step);
  /// (Tensors that were added to the optimizer later are in no gauge.)
  bool is_open(size_t tensor) const {
    return tensor < open_of_.size() && open_of_[tensor] != nullptr;
  }
  bool is_open() const;
  /// What a matrix goes through; null for vectors, whose gradient is given here.
  kernels::Edges* edges(size_t tensor) { return open_of_[tensor]->edges(tensor); }
  /// The gradient of a tensor that pending moves have been made of; undefined where it is as it was.
  at::Tensor gradient(size_t tensor) const;
  /// Vectors have been stepped, matrices not yet.
  void fold_();

  /// Brings the weights back after a step, or finds what does: then that is pending.
  void restore_();
  /// Makes what is pending, also to gradients.
  void settle_();
  /// The coordinate system with pending moves made.
  CoordinateSystem settled() const;
  /// By how much weights miss the section of a gauge.
  double distance(size_t gauge) const;
  /// Weights as they are now are the anchors from here on, of gauges that have been turned back or of all.
  void anchor_(bool all);
  /// What depends on state alone, which was loaded.
  void refresh_();
  /// Forgets pending moves: other weights were loaded, of which none are known.
  void forget_();
  /// Pending moves, by place in the plan.
  std::vector<std::pair<size_t, at::Tensor*>> pending();

  CoordinateSystem& coordinate_system() { return system_; }
  const CoordinateSystem& coordinate_system() const { return system_; }
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
    /// Several of them turn the same entries.
    bool overlapping = false;
    /// Where plain loops will do: scales, and with them what else they can.
    std::optional<Deferred> deferred;
    /// A step is under way in one pass.
    bool open = false;
  };
  /// Sums over a gauge's plus and minus side, [blocks, block, block].
  struct Sides {
    at::Tensor plus;
    at::Tensor minus;
    void add_(const BoundLeg& leg, const at::Tensor& value);
  };

  bool is_held(size_t gauge) const;
  /// Whether the step under way brings the gauge back.
  bool is_due(size_t gauge) const;
  bool turns(size_t gauge) const;
  /// Whether a channel of a scale among them is in a degenerate stratum.
  bool is_degenerate(const Set& set) const;
  /// Whether a pass turns the gauge, which then needs no anchors.
  bool turns_in_pass(size_t gauge) const;

  /// The values that a gauge acts on: with offset, and seen through a gain.
  at::Tensor value(size_t tensor) const;
  at::Tensor seen(size_t tensor) const;
  /// Writes what is seen of a leg's tensor; the bias beside it takes up what a norm's shift adds.
  void write_seen_(size_t gauge, size_t leg, const at::Tensor& seen);

  void find_sets_();
  void close_(Set& set);
  void restore_(Set& set);
  /// The same of sets that one pass measures and another one moves.
  void restore_(const std::vector<Set*>& sets);
  bool fits_a_pass(const Set& set) const;
  /// Turns and balances what mixes channels. `scale` brings scales back that this disturbs.
  void mix_(Set& set, const std::vector<size_t>& mixing,
            const std::function<double(bool first)>& scale);
  void empty_(size_t gauge);
  void centre_(size_t gauge);
  /// Returns the logs of the moves.
  std::vector<at::Tensor> scale_(const std::vector<size_t>& gauges);
  /// Makes both sides of a linear gauge equal, and undoes what the steps have turned, if that is given.
  void balance_(size_t gauge, const Sides& turned);
  /// The same block by block, in loops over raw memory.
  void balance_heads_(size_t gauge, const Sides& turned);
  /// Multiplies the plus side by one matrix per block, the minus side by another.
  void multiply_(size_t gauge, const at::Tensor& plus, const at::Tensor& minus);
  /// Throws, naming the gauge, unless what moves its tensors is finite. Nothing has been moved yet.
  void check_finite(bool is_finite, size_t gauge) const;
  at::Tensor shift(size_t gauge) const;
  Squares squares_of(const std::vector<size_t>& gauges) const;
  SectionValue section_of(size_t gauge, const Squares& squares) const;
  Sides grams(size_t gauge) const;
  /// Gram matrices of a linear gauge, which is held where these are equal.
  static Sides at_target(const at::Tensor& target, const Sides& sides);
  /// What the steps since the last time have turned: per side the sum over legs of x_then x_now^T.
  Sides turned(size_t gauge) const;
  at::Tensor gain_before(size_t tensor, const at::Tensor& like) const;

  CoordinateSystem system_;
  at::Tensor count_;
  std::map<std::pair<size_t, int64_t>, at::Tensor> anchors_;
  /// Gains that weights are seen through, as they were before the step.
  std::map<size_t, at::Tensor> gains_;
  /// Per gauge: some of its channels are in a degenerate stratum, and may leave it.
  std::vector<bool> degenerate_;
  /// Per gauge: its blocks are small matrices on the CPU, held where both Gram matrices are equal.
  std::vector<bool> small_;
  bool one_pass_;
  std::vector<Set> sets_;
  /// Per tensor: where its moves may be pending; and the same while a step is under way in one pass.
  std::vector<Deferred*> deferred_of_;
  std::vector<Deferred*> open_of_;
  /// Weights before the step of planes whose step is not made in one pass.
  std::map<size_t, at::Tensor> before_;
  /// Gradients of weights whose pending moves were made before the step.
  std::map<size_t, at::Tensor> gradients_;
};

}  // namespace ddc
