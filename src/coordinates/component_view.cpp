#include "coordinates/component_view.h"

#include <algorithm>

namespace ddc {

ComponentView::ComponentView(const Plan& whole, const Component& part,
                             const std::vector<GaugeState>& of_gauges,
                             const std::vector<bool>& with_gradient)
    : plan(whole),
      component(part),
      states(of_gauges),
      has_gradient(with_gradient),
      active(*this),
      passive(*this) {
  // A vector is absorbed only if all biases that it adds to can take it up.
  std::ranges::copy_if(component.drains, std::back_inserter(absorbed), [&](size_t d) {
    return std::ranges::all_of(component.drains, [&](size_t other) {
      return plan.drains[other].source != plan.drains[d].source ||
             has_gradient[plan.drains[other].sink];
    });
  });
  const auto is_absorbed_through = [&](size_t matrix) {
    return std::ranges::all_of(component.drains, [&](size_t d) {
      return plan.drains[d].matrix != matrix || std::ranges::count(absorbed, d) > 0;
    });
  };
  for (const size_t k : component.gauges) {
    const auto& gauge = plan.gauges[k];
    active[k] = std::ranges::all_of(gauge.legs, [&](const BoundLeg& leg) {
      const bool moves = gauge.gauge.action != Action::exchange || !leg.bias;
      return (!moves || has_gradient[leg.tensor]) &&
             (!leg.bias || (has_gradient[*leg.bias] && is_absorbed_through(leg.tensor)));
    });
  }
  for (const size_t t : component.tensors) {
    passive[t] = std::ranges::any_of(plan.tensors[t].read_by, [&](size_t k) { return active[k]; });
  }
}

}  // namespace ddc
