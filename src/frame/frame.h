#pragma once

#include <vector>

#include "frame/blocks.h"
#include "frame/chart.h"
#include "frame/plan.h"

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
  Frame(const std::vector<GroupedParameter>& parameters, const std::vector<Gauge>& gauges,
        const Treatments& treatments = {});

  const Plan& plan() const { return plan_; }
  /// Names of the gauges with their treatments, resolved.
  std::vector<std::pair<std::string, Treatment>> treatments() const;

  /// A further tensor on which no gauge acts.
  void add(const GroupedParameter& parameter);

  /// Gradients of one component, and what coordinates are computed with. `has_gradient` is indexed
  /// by tensor.
  Chart open(const Component& component, const std::vector<bool>& has_gradient,
             const std::vector<StepSettings>& settings) const;
  /// X of one tensor, as long as the weights are those that were opened.
  at::Tensor coordinates_of(const Chart& chart, size_t tensor) const;

  /// Takes out of gradients, and of the steps that a base rule made of them, what points along an
  /// orbit or a radius; in place, indexed by tensor. (What a rotation makes of a step is found
  /// here, and taken out in `advance_`.)
  void project_gradients_(Chart& chart) const;
  void project_steps_(Chart& chart, Tensors& steps) const;
  /// The same of momenta, for gauges whose treatment asks for it (Projection::momentum).
  bool projects_momenta(const Component& component) const;
  void project_momenta_(Chart& chart, Tensors& momenta) const;

  /// x = decay(X) + step; each step is freed. Decoupled weight decay acts here, once, on the
  /// coordinates; the joint scales of polar coordinates have their own.
  void advance_(Chart& chart, Tensors steps, const std::vector<StepSettings>& settings) const;

  void rebalance_(Chart& chart, const std::vector<StepSettings>& settings);

  /// A frame that is to be turned after a step: coordinates of the gauge's legs become those times the
  /// transposed of `basis`, per block.
  struct Turn {
    size_t gauge;
    at::Tensor basis;
  };
  /// How the body frames follow the weights, unless `follow` is false: then a frame is only computed
  /// where there was none. What a base rule remembers in coordinates has to turn with them.
  std::vector<Turn> follow_(const Chart& chart, bool follow);
  /// Writes the weights, tensor by tensor. Uses up the chart's coordinates.
  void lift_(Chart& chart);
  void turn_(const std::vector<Turn>& turns);

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
  /// An empty chart in which all drains are to be made.
  Chart chart_of(const Component& component) const;
  /// Weights with their offsets, drained and centred; what that took is noted in the chart.
  Tensors centre_(Chart& chart) const;
  /// The same of one tensor, from the notes; centred by the gauges before `until` only.
  at::Tensor centred(const Chart& chart, size_t tensor, size_t until) const;
  /// Notes all that coordinates are computed with, but for polar factors.
  void open_weights_(Chart& chart) const;
  /// x in scale units, and seen through gains.
  at::Tensor in_units(const Tensors& x, size_t tensor) const;
  void find_active_(Chart& chart) const;
  void open_gradients_(Chart& chart, const std::vector<StepSettings>& settings) const;
  void project_shifts_(Chart& chart, Tensors& vectors, bool ignore_rounding) const;
  /// Finds the chart's angles. `take_out_` subtracts from a step what they make of its tensor.
  void find_angles_(Chart& chart, const Tensors& steps, Projection when) const;
  void take_out_(const Chart& chart, size_t tensor, const at::Tensor& x, at::Tensor& step) const;
  void sweep_(Chart& chart, const std::vector<size_t>& gauges);
  void measure_charges_(Chart& chart) const;
  /// Lets channels leave and enter degenerate strata, on the squares of the stepped coordinates.
  void update_binding_(const Chart& chart, size_t gauge);
  /// The weights of one tensor, but for shifts and drains. Takes the coordinates out of the chart.
  at::Tensor out_of_units_(Chart& chart, size_t tensor) const;
  /// Adds the shifts of the gauges `from` on to lifted weights. `unshifted`: the gains.
  void add_shifts_(const Chart& chart, const Tensors& unshifted, size_t from, size_t tensor,
                   at::Tensor& x) const;
  void move_vertical_(const Chart& chart, size_t gauge, const StepSettings& settings);
  const StepSettings& settings_of(size_t gauge, const std::vector<StepSettings>& settings) const;

  Plan plan_;
  std::vector<GaugeState> gauge_states_;
  std::vector<ScalarMoments> radial_states_;
};

}  // namespace ddc
