#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "coordinates/gauge_state.h"
#include "coordinates/plan.h"
#include "kernels/pass.h"

// Moves along orbits that are sums and factors of rows and columns: scales, shifts, exchanges and rotary
// planes, of weights at their canonical place on the CPU. They are found from sums that the pass of a step
// gathers on its way out, and made on the way in of the next one: to the weights, and inversely to the
// gradients, which were taken where the weights were. So a step is one pass over memory, and the same
// algorithm as with a second pass. Until then the moves are *pending*.

namespace ddc {

class Deferred {
 public:
  using IsDue = std::function<bool(size_t)>;

  /// Takes what it can of `gauges`; `exchanges` are those among them in the order in which they are emptied;
  /// `planes`: rotary planes too, if nothing else turns their tensors.
  /// None if there is nothing to take, or a scale that is no matter of rows and columns: both sides on one
  /// tensor, exponents that differ within a side, tensors of more than two axes.
  static std::optional<Deferred> make(const Plan& plan, const std::vector<size_t>& gauges,
                                      const std::vector<size_t>& exchanges, bool planes);

  /// Whether all scales, shifts and exchanges are taken, and whether a step can be made in one pass with them.
  bool is_complete() const { return complete_; }
  bool can_step() const { return can_step_; }
  /// Whether the gauge turns rotary planes that a pass can turn.
  bool turns(size_t gauge) const;
  /// Places in the plan.
  std::vector<size_t> tensors() const;
  /// Whether the tensors are where loops can reach them.
  bool fits() const;
  /// Whether gains that weights are seen through are +-1, as they are between steps.
  bool gains_are_one() const;

  // ---- A step in one pass. No channel may be in a degenerate stratum.

  /// Makes the pending moves of vectors.
  void open_();
  /// What a matrix goes through in the pass; null for vectors.
  kernels::Edges* edges(size_t tensor);
  /// The gradient of a vector where it is now.
  at::Tensor gradient(size_t tensor) const;
  /// The gradient of a tensor as it is after its pending moves; undefined if there are none.
  at::Tensor moved_gradient(size_t tensor) const;
  /// After vectors have been stepped: folds gains, and empties vectors.
  void fold_(const std::vector<GaugeState>& states, const IsDue& is_due);
  /// After matrices have been stepped: finds the moves that bring all back to the section. `empty_` is
  /// called for exchanges whose vector is filled by another one, which a pass cannot empty.
  void close_(const std::vector<GaugeState>& states, const IsDue& is_due,
              const std::function<void(size_t)>& empty_);

  // ---- Without a step

  // Several may share a pass over memory, which is made in between.

  using Pass = std::vector<kernels::PassEntry>;
  /// Folds gains, and adds what gathers the sums of all but exchanges; nothing else is pending.
  void measure_(const std::vector<GaugeState>& states, const IsDue& is_due, Pass& pass);
  /// Finds the moves, of which the sums have been gathered.
  void find_(const std::vector<GaugeState>& states, const IsDue& is_due);
  /// The same of these scales, one after the other; gathers sums anew. Returns the largest log of a move.
  double collect_(const std::vector<size_t>& gauges, const std::vector<GaugeState>& states);

  // ---- Pending moves

  /// Makes them, also to the gradients that are there (`gradients`).
  void settle_(bool gradients);
  /// The same in two parts: makes those of vectors, and adds what makes the others; then none is pending.
  void settle_(bool gradients, Pass& pass);
  void forget_moves_();
  /// Numbers of its weights.
  int64_t size() const;
  /// A tensor as it is after its pending moves: a copy, or the tensor itself if there are none.
  at::Tensor settled(size_t tensor) const;
  /// What is pending as tensors, by place in the plan: made once, updated by `publish_`, read by `resume_`.
  std::map<size_t, at::Tensor>& published() { return published_; }
  void make_published_();
  void publish_();
  void resume_();
  /// Nothing is pending.
  void forget_();
  /// Whether what is pending is finite: sums of squares of huge weights are not.
  bool is_finite();

 private:
  struct Entry {
    size_t tensor;
    /// The parameter.
    at::Tensor weights;
    double offset = 0;
    /// Gain through which it is seen, as a place in entries_, and along which axis.
    std::optional<size_t> gain = std::nullopt;
    size_t gain_axis = 0;
    /// A vector's factors are those of rows; its shift, as one row of a table, that of columns.
    kernels::Edges edges = {};
    /// Factors of rows and columns as they were when sums were gathered, and means that these sums do not
    /// know of.
    std::array<std::vector<double>, 2> measured = {};
    std::array<std::vector<double>, 2> means = {};
    /// What the pass of a step has gathered of planes.
    std::vector<std::array<double, 2>> overlaps = {};
    /// Moves that act on rows (0) and columns (1), which can be pending.
    std::array<bool, 2> scaled = {};
    std::array<bool, 2> shifted = {};
    bool turned = false;
    /// Gradient of a vector where it is now, and its values before the step.
    at::Tensor gradient = {};
    std::vector<double> before = {};

    bool is_matrix() const { return weights.dim() == 2; }
    size_t size(size_t axis) const {
      return static_cast<size_t>(weights.size(static_cast<int64_t>(axis)));
    }
    std::vector<double>& factors(size_t axis) { return axis == 0 ? edges.rows : edges.columns; }
    const std::vector<double>& factors(size_t axis) const {
      return axis == 0 ? edges.rows : edges.columns;
    }
    bool is_pending() const;
  };
  struct Leg {
    size_t entry;
    size_t axis;
    double exponent;
    /// Channel of each index along the axis, -1 for none.
    std::vector<int64_t> channel_of;
  };
  struct Scale {
    size_t gauge;
    std::vector<Leg> legs;
    /// Only the first leg is measured, a vector.
    bool folded;
    /// By how much the section moves under log c = 1.
    double weight;
    double smallest;
    /// Another one acts on the other axis of a matrix of this one.
    bool coupled = false;
  };
  /// Whole rows or columns of the tensors of its legs, or entries of one vector.
  struct Shift {
    size_t gauge;
    std::vector<Leg> legs;
    /// Whether it shifts entries of one vector.
    bool of_vector = false;
    std::optional<size_t> gain = std::nullopt;

    /// A pass takes the mean off a row as soon as it is stepped. A mean seen through a gain must not stay
    /// pending: the gain's own gradient depends on it.
    bool is_made_in_pass() const { return gain.has_value() && legs.front().axis == 1; }
  };
  struct Exchange {
    size_t gauge;
    size_t source;
    struct Sink {
      /// None: the vector itself is added.
      std::optional<size_t> matrix;
      size_t axis;
      size_t bias;
      std::vector<int64_t> channel_of;
    };
    std::vector<Sink> sinks;
    /// Channel of each index of the source.
    std::vector<int64_t> channel_of;
  };
  struct Planes {
    size_t gauge;
    struct Pair {
      size_t entry;
      size_t item;
    };
    /// Per plane.
    std::vector<std::vector<Pair>> pairs;
  };

  size_t entry_of(const Plan& plan, size_t tensor);
  bool take_scale(const Plan& plan, size_t gauge);
  bool take_shift(const Plan& plan, size_t gauge);
  bool take_exchange(const Plan& plan, size_t gauge);
  bool take_planes(const Plan& plan, size_t gauge);
  void find_coupling();
  /// Whether sums of squares can be told from what is gathered: shifts are along the same axis, gains are
  /// folded.
  bool can_measure(const Plan& plan, const std::vector<size_t>& gauges) const;
  /// Whether all are brought back in the same steps.
  static bool have_one_rhythm(const Plan& plan, const std::vector<size_t>& gauges);

  static std::vector<double> values(const Entry& vector);
  static void write_(Entry& vector, const std::vector<double>& values);
  /// Values of a vector after its pending moves.
  static std::vector<double> moved(const Entry& vector, std::vector<double> values);
  static std::vector<double> current(const Entry& vector);
  static void gather_nothing_(kernels::Edges& edges);
  /// Vectors of what can be pending of an entry, each with its size and what it is if nothing is.
  struct Part {
    std::vector<double>* values;
    size_t size;
    double nothing;
  };
  static std::vector<Part> parts_of(Entry& entry);
  static at::Tensor moved_gradient(const Entry& entry, const at::Tensor& gradient);

  double collect_(Scale& scale, const GaugeState& state, bool on_the_way_out);
  std::vector<double> squares(const Leg& leg) const;
  void want_(const IsDue& is_due, bool in_step);
  void shift_(const IsDue& is_due, bool in_step);
  void balance_(const std::vector<GaugeState>& states, const IsDue& is_due);
  void turn_(const IsDue& is_due);
  /// Gathers sums of what is there with all that is pending.
  void measure_(const std::vector<size_t>& entries);
  /// Notes with which factors sums of a matrix are gathered, and returns whether there are any.
  static bool wants_sums_(Entry& entry);
  static void forget_(Entry& entry);

  std::vector<Entry> entries_;
  std::map<size_t, size_t> index_;
  std::vector<Scale> scales_;
  std::vector<Shift> shifts_;
  std::vector<Exchange> exchanges_;
  std::vector<Planes> planes_;
  std::vector<size_t> chained_;
  /// Gains that must be +-1.
  std::set<size_t> gains_;
  bool complete_ = false;
  bool can_step_ = false;
  std::map<size_t, at::Tensor> published_;
};

}  // namespace ddc
