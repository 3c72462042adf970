#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddc/gauge/action.h"
#include "ddc/gauge/gauge.h"
#include "ddc/parameters.h"
#include "ddc/treatment.h"

// # Canonical placement
//
// Moving weights along their orbits does not change the function. So one place on every orbit can be
// agreed upon: gains are folded into the weights that read them, both sides of a scale are equally
// large, Gram matrices are equal and diagonal, means are zero, exchanged vectors are empty. There, two
// copies of one function have *the same numbers*, and whatever an optimizer does with numbers it does to
// both alike: from its canonical place a network trains equivariantly under any deterministic optimizer,
// at no cost per step.
//
// No optimizer stays there by itself. After a step, `restore_` moves the weights back to the section
// along orbits: the function that the optimizer stepped to stays as it is, and no gauge coordinate
// drifts.
//
//     Placement placement(params, gauges);        // moves the weights
//     for (...) { loss.backward(); adam.step(); placement.restore_(); }
//     placement.to_original_();                   // where they were found, the same function

namespace ddc {

class CoordinateSystem;
namespace kernels {
struct Edges;
}

/// Move along orbits: one element for each of several gauges, which act in this order.
struct Move {
  std::vector<Gauge> gauges;
  std::vector<GroupElement> elements;

  /// Moves the parameters; computed in float64 whatever their type.
  void apply_(const Parameters& params) const;
  Move inverse() const;
};

/// Where the parameters of a new placement are.
enum class Start {
  anywhere,   ///< they are moved to their canonical place
  canonical,  ///< they are there already, and what is remembered of their way will be loaded
};

/// Tensor that a placement remembers.
struct PlacementState {
  /// The gauge that it belongs to; the first one has what is common to all.
  std::string gauge;
  std::string field;
  at::Tensor* tensor;
};

/// Canonical place of a set of parameters, and what it takes to stay there.
class Placement {
 public:
  /// Moves the parameters to their canonical place. Throws, naming what is wrong and changing nothing, if
  /// there is none: for parameters of 16 bits, where factors near one round to one, and for treatments
  /// whose coordinates are more than a place (polar coordinates, frames that follow the weights, gauge
  /// coordinates that move).
  /// `one_pass`: whoever makes steps opens them (`open_`).
  explicit Placement(const Parameters& params, std::vector<Gauge> gauges,
                     Treatments treatments = {}, Start start = Start::anywhere,
                     bool one_pass = false);
  /// Why there is no placement, in words; empty if there is one.
  static std::string refusal(const Parameters& params, const std::vector<Gauge>& gauges,
                             const Treatments& treatments);
  ~Placement();
  Placement(Placement&&) noexcept;
  Placement& operator=(Placement&&) noexcept;

  /// The move from the canonical place to where the weights were found.
  Move to_original() const;
  /// Moves the weights there, and back.
  void to_original_();
  void to_canonical_();
  bool is_original() const;

  /// Moves the weights back to the section after a step, along orbits.
  void restore_();

  // A step in one pass over memory. Moves are then found after a step and made on the way into the next
  // one; in between they are pending.

  /// Before a step, of tensors that have a gradient and can be stepped by a pass; in the parameters' order.
  /// Returns whether any of it goes in one pass.
  bool open_(const std::vector<bool>& can_step);
  /// Whether a tensor is stepped in one pass with its moves: a matrix goes through edges, a vector has none.
  bool is_open(size_t parameter) const;
  kernels::Edges* edges(size_t parameter);
  /// The gradient to step with, of a tensor that was moved before the step; undefined for the parameter's own.
  at::Tensor gradient(size_t parameter) const;
  /// Between the steps of vectors and of matrices.
  void fold_();
  /// Makes pending moves now, to weights and to the gradients that are there.
  void settle_();
  /// Forgets them: other weights were loaded, of which none are known.
  void forget_pending_();

  const std::vector<Gauge>& gauges() const;
  /// State to remember: tensors that are updated in place. "original" tells where the weights are.
  std::vector<PlacementState> state();
  /// To be called when state was loaded; where the weights are, if the state does not say so.
  void loaded(std::optional<bool> at_original = std::nullopt);
  /// By how much the weights miss the section: the largest log-ratio, mean, or relative difference of
  /// Gram matrices. Tells weights that are at their canonical place from others.
  double distance_to_section() const;
  /// The same gauge by gauge.
  std::vector<double> distances_to_sections() const;

  /// The coordinate system at the canonical place; for reports and tests of this library.
  const CoordinateSystem& coordinate_system() const;
  /// Coordinates of all gauges, in their order, with pending moves made.
  std::vector<at::Tensor> gauge_coordinates() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddc
