#pragma once

#include <vector>

#include "ddc/frame/blocks.h"
#include "ddc/frame/chart.h"
#include "ddc/frame/plan.h"

namespace ddc {

/// The construction, for a set of gauges on a set of tensors:
///
///     open      weights -> coordinates X that no gauge can change, gradients -> dL/dX
///     project   removes from a gradient or a step what points along an orbit or a radius
///     rebalance brings the stepped X back to its section, by moving along orbits only
///     lift      X -> weights, at the place on the orbit where they are held
///
/// Between the two projections a base rule turns gradients into steps; it sees X and dL/dX only,
/// so the whole step commutes with every gauge whatever the rule (docs/construction.md).
///
/// Nesting, from outside in: vectors that exchange with biases are emptied into them, shifts are
/// subtracted, scale units divided out, readers of a norm seen through its gain, and blocks turned into
/// their frames. Norms that an inner gauge uses are measured inside the outer ones.
class Frame {
 public:
  Frame() = default;
  /// Compiles the gauges and reads units and held coordinates off the current weights.
  Frame(const std::vector<GroupedParameter>& parameters, const std::vector<Gauge>& gauges);

  const Plan& plan() const { return plan_; }

  /// A further tensor on which no gauge acts.
  void add(const GroupedParameter& parameter);

  /// Coordinates and gradients of one component. `has_gradient` is indexed by tensor.
  Chart open(const Component& component, const std::vector<bool>& has_gradient,
             const std::vector<StepSettings>& settings) const;

  /// Takes out of gradients, and of the steps that a base rule made of them, what points along an orbit
  /// or a radius; in place, indexed by tensor.
  void project_gradients_(Chart& chart) const;
  void project_steps_(Chart& chart, Tensors& steps) const;

  /// x <- decay(x) + step. Decoupled weight decay acts here, once, on the coordinates; the joint
  /// scales of polar coordinates have their own.
  void advance_(Chart& chart, const Tensors& steps,
                const std::vector<StepSettings>& settings) const;

  void rebalance_(Chart& chart, const std::vector<StepSettings>& settings);
  void lift_(const Chart& chart);

  /// A frame that was computed again after a step: coordinates of the gauge's legs are turned by the
  /// transposed of `basis`, per block.
  struct Turn {
    size_t gauge;
    at::Tensor basis;
  };
  /// Lets the body frames follow the weights, unless `follow` is false: then a frame is only computed
  /// where there was none. What a base rule remembers in coordinates has to turn with them.
  std::vector<Turn> follow_(const Chart& chart, bool follow);

  /// The gauge coordinate as measured on the weights now: r per channel, a shift's mean, log S per
  /// block of a linear gauge; empty for a rotation. NaN in a degenerate stratum.
  at::Tensor gauge_coordinate(size_t gauge) const;
  int64_t degenerate_channels(size_t gauge) const;

  std::vector<GaugeState>& gauge_states() { return gauge_states_; }
  const std::vector<GaugeState>& gauge_states() const { return gauge_states_; }
  std::vector<ScalarMoments>& radial_states() { return radial_states_; }
  const std::vector<ScalarMoments>& radial_states() const { return radial_states_; }

 private:
  void bind_();
  void bind_sections_(const Component& component, Tensors& x);
  /// A shift of several tensors is not orthogonal to one along another axis of one of them. What one
  /// puts back of the other is subtracted until nothing is left.
  void subtract_overlaps_(const Component& component, Tensors& shifts, Tensors& x) const;
  /// Weights with their offsets, drained and centred; `shifts` gets what was subtracted, by gauge, and
  /// `emptied` what was read of each drain's source.
  Tensors centred(const Component& component, const std::vector<bool>& drained, Tensors& shifts,
                  Tensors& emptied) const;
  /// x in scale units, and seen through gains.
  at::Tensor in_units(const Tensors& x, size_t tensor) const;
  /// Weights of the component in coordinates, before polar factors.
  Tensors coordinates(const Component& component, const std::vector<bool>& drained, Tensors& shifts,
                      Tensors& emptied) const;
  void find_active_(Chart& chart, const std::vector<bool>& has_gradient) const;
  void open_gradients_(Chart& chart, const std::vector<bool>& has_gradient, const Tensors& emptied,
                       const std::vector<StepSettings>& settings) const;
  void project_shifts_(Chart& chart, Tensors& vectors, bool ignore_rounding) const;
  void project_orbits_(Chart& chart, Tensors& vectors) const;
  void sweep_(Chart& chart, const std::vector<size_t>& gauges);
  void measure_charges_(Chart& chart) const;
  /// Lets channels leave and enter degenerate strata, on the squares of the stepped coordinates.
  void update_binding_(const Chart& chart, size_t gauge);
  void move_vertical_(const Chart& chart, size_t gauge, const StepSettings& settings);
  const StepSettings& settings_of(size_t gauge, const std::vector<StepSettings>& settings) const;

  Plan plan_;
  std::vector<GaugeState> gauge_states_;
  std::vector<ScalarMoments> radial_states_;
};

}  // namespace ddc
