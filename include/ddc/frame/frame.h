#pragma once

#include <vector>

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
/// Nesting, from outside in: a shift is subtracted, then the scale units are divided out. Norms
/// that an inner gauge uses are measured inside the outer ones.
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

  /// In place on one tensor per entry (gradients or steps), indexed by tensor.
  void project_(Chart& chart, std::vector<at::Tensor>& vectors) const;

  /// x <- decay(x) + step. Decoupled weight decay acts here, once, on the coordinates; the joint
  /// scales of polar coordinates have their own.
  void advance_(Chart& chart, const std::vector<at::Tensor>& steps,
                const std::vector<StepSettings>& settings) const;

  void rebalance_(Chart& chart, const std::vector<StepSettings>& settings);
  void lift_(const Chart& chart);

  /// The gauge coordinate of every channel as measured on the weights now: r, or a shift's mean.
  /// NaN where a channel is in a degenerate stratum.
  at::Tensor gauge_coordinate(size_t gauge) const;
  int64_t degenerate_channels(size_t gauge) const;

  std::vector<GaugeState>& gauge_states() { return gauge_states_; }
  const std::vector<GaugeState>& gauge_states() const { return gauge_states_; }
  std::vector<ScalarMoments>& radial_states() { return radial_states_; }
  const std::vector<ScalarMoments>& radial_states() const { return radial_states_; }

 private:
  void bind_();
  /// Weights of the component in coordinates, before polar factors; indexed by tensor. `shifts` gets
  /// what was subtracted, by gauge.
  std::vector<at::Tensor> coordinates(const Component& component,
                                      std::vector<at::Tensor>& shifts) const;
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
