#pragma once

#include <vector>

#include "coordinates/coordinate_maps.h"

namespace ddc {

class CoordinateSystem;

/// Step of one component:
///
///     open      weights -> coordinates X that no gauge can change, gradients -> dL/dX
///     project   removes from a gradient or a step what points along an orbit or a radius
///     advance   x = decay(X) + step
///     rebalance brings x back to its section, by moving along orbits only
///     lift      x -> weights, at the place on the orbit where they are held
///
/// Between the two projections a base rule turns gradients into steps; it sees X and dL/dX only,
/// so the whole step commutes with every gauge whatever the rule (docs/explanation/construction.md).
///
/// Nothing of the size of a tensor is kept longer than it is needed: before the step, coordinates are
/// computed from the weights where they are wanted; gradients turn into steps one by one, steps into stepped
/// coordinates, and these into weights.
class ComponentStep {
 public:
  /// Opens the component, and projects its gradients. `has_gradient` and `settings` are those of all tensors.
  ComponentStep(CoordinateSystem& system, const Component& component,
                const std::vector<bool>& has_gradient, const std::vector<StepSettings>& settings);

  /// Whether a base rule is to make a step of the tensor's gradient.
  bool is_stepped(size_t tensor) const {
    return maps_.view.has_gradient[tensor] && !maps_.view.passive[tensor];
  }
  /// dL/dX. The caller takes them as they are turned into steps.
  Tensors& gradients() { return g_; }
  /// None yet, for each tensor of the component.
  Tensors tensors() const { return Tensors(maps_.view); }

  /// Takes out of momenta what points along orbits, for gauges whose treatment asks for it
  /// (Projection::momentum).
  bool projects_momenta() const;
  void project_momenta_(Tensors& momenta);

  /// A frame that was turned: coordinates of the gauge's legs became those times the transposed of `basis`,
  /// per block. What a base rule remembers in coordinates has to turn with them.
  struct Turn {
    size_t gauge;
    at::Tensor basis;
  };
  /// Makes the steps and writes the weights. Body frames follow these, unless `follow` is false: then a frame
  /// is only computed where there was none.
  std::vector<Turn> make_(Tensors steps, bool follow);

 private:
  void open_gradients_();
  void measure_charges_();
  /// Takes the orbit part out of each step, and frees it. Decoupled weight decay acts here, once, on the
  /// coordinates; the joint scales of polar coordinates have their own.
  void advance_(Tensors steps);
  void rebalance_();
  void sweep_(const std::vector<size_t>& gauges, Squares& squares);
  double sweep_linear_(size_t gauge, Squares& squares);
  void move_vertical_(size_t gauge);
  void lift_();

  const StepSettings& settings_of(size_t gauge) const {
    return settings_[plan_.gauges[gauge].legs.front().tensor];
  }

  const Plan& plan_;
  const Component& component_;
  const std::vector<StepSettings>& settings_;
  std::vector<GaugeState>& states_;
  std::vector<ScalarMoments>& radial_states_;
  CoordinateMaps maps_;
  const ComponentView& view_ = maps_.view;
  /// X of one tensor, before the step.
  const ValueOf coordinates_ = [this](size_t t) { return maps_.coordinates(t); };
  /// dL/dX, freed once the base rule has seen it.
  Tensors g_{view_};
  /// Stepped coordinates, freed tensor by tensor as they are lifted; and X before, where a gauge asks for it.
  Tensors x_{view_};
  Tensors before_{view_};
  /// Derivative of the loss along the orbit, and the sum of its absolute terms.
  PerGauge<at::Tensor> charge_{view_};
  PerGauge<at::Tensor> charge_scale_{view_};
};

}  // namespace ddc
