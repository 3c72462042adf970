#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "frame/gauge_state.h"
#include "frame/plan.h"

// Scale gauges of weights at their canonical place, on the CPU: what Held::scale_ does with operations of
// ATen, in plain loops. Factors are collected per row and column, and written in one pass over each
// tensor.

namespace ddc {

class Scales {
 public:
  /// The scale gauges among `gauges`. None if one of them needs more than loops: both sides on one tensor,
  /// exponents that differ within a side, tensors of more than two axes.
  static std::optional<Scales> make(const Plan& plan, const std::vector<size_t>& gauges);

  /// Whether the tensors are where loops can reach them.
  bool fits() const;
  /// Collects the factors that bring gauges back to the section, one gauge after the other, each measured
  /// with all that was collected before. No channel may be in a degenerate stratum. Returns the largest
  /// log of a move.
  double collect_(const std::vector<size_t>& gauges, const std::vector<GaugeState>& states);
  /// Writes what was collected.
  void write_();

 private:
  struct Leg {
    size_t tensor;  ///< index into tensors_
    size_t axis;
    double exponent;
    /// Channel of each index along the axis, -1 for none.
    std::vector<int64_t> channel_of;
  };
  struct Member {
    size_t gauge;
    std::vector<Leg> legs;
    /// Only the first leg is measured.
    bool folded;
    /// By how much the section moves under log c = 1.
    double weight;
    double smallest;
  };
  /// A matrix, or a vector as a matrix of one column.
  struct Entry {
    at::Tensor tensor;
    double offset = 0;
    /// Index into tensors_ of the gain through which the tensor is seen, and the axis along which it is.
    std::optional<size_t> gain;
    size_t gain_axis = 0;
    /// Per row and per column; empty for 1.
    std::array<std::vector<double>, 2> factors;
  };

  double collect_(const Member& member, const GaugeState& state);
  /// Sums of squares per channel, of what is seen with all factors.
  void add_squares(const Leg& leg, std::vector<double>& sums) const;
  double value(const Entry& vector, size_t index) const;

  std::vector<Entry> tensors_;
  std::vector<Member> members_;
};

}  // namespace ddc
