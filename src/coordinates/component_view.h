#pragma once

#include <vector>

#include "coordinates/gauge_state.h"
#include "coordinates/plan.h"

namespace ddc {

/// One component of a plan: the state of its gauges, and which of its parts a step moves.
struct ComponentView {
  ComponentView(const Plan& whole, const Component& part, const std::vector<GaugeState>& of_gauges,
                const std::vector<bool>& with_gradient);

  const Plan& plan;
  const Component& component;
  const std::vector<GaugeState>& states;
  /// Whether there is a gradient, for all tensors of the plan.
  const std::vector<bool>& has_gradient;
  /// Every leg has a gradient. Otherwise the units are used and nothing of the gauge is moved: the orbit of a
  /// tensor that is not being trained is not ours to move along.
  PerGauge<bool> active;
  /// Takes no step of its own, because weights read through it and take them instead.
  PerTensor<bool> passive;
  /// Drains whose vector is absorbed.
  std::vector<size_t> absorbed;

  /// Whether the gauge's part of a step is taken out and its coordinate held.
  bool is_held(size_t gauge) const {
    return active[gauge] && !plan.gauges[gauge].projects(Projection::never);
  }
};

template <class T, std::vector<size_t> Items::*Kind>
Dense<T, Kind>::Dense(const ComponentView& of)
    : places_(&(of.plan.places.*Kind)), values_((of.component.*Kind).size()) {}

}  // namespace ddc
