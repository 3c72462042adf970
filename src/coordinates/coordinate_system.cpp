#include "coordinates/coordinate_system.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>

namespace ddc {

std::vector<std::pair<std::string, Treatment>> CoordinateSystem::treatments() const {
  std::vector<std::pair<std::string, Treatment>> result;
  for (const auto& gauge : plan_.gauges) result.emplace_back(gauge.gauge.name, gauge.treatment);
  return result;
}

void CoordinateSystem::add(const GroupedParameter& parameter) {
  const auto& [named, param_group] = parameter;
  Component alone;
  alone.tensors = {plan_.tensors.size()};
  plan_.tensors.push_back({.name = named.name, .tensor = named.tensor, .param_group = param_group});
  plan_.add(std::move(alone));
}

at::Tensor CoordinateSystem::gauge_coordinate(size_t k) const {
  const at::NoGradGuard no_grad;
  const auto& gauge = plan_.gauges.at(k);
  if (gauge.gauge.action == Action::rotation) return at::empty({0}, at::kDouble);
  const auto component = std::ranges::find_if(plan_.components, [&](const Component& each) {
    return std::ranges::count(each.gauges, k) > 0;
  });
  const std::vector<bool> all(plan_.tensors.size(), true);
  CoordinateMaps maps(ComponentView(plan_, *component, gauge_states_, all));
  maps.read_(&maps.polar);
  if (gauge.is_shift()) return maps.centre.shift(k);
  const auto& state = gauge_states_[k];
  Tensors x(maps.view);
  for (const auto& leg : gauge.legs) x[leg.tensor] = maps.coordinates(leg.tensor, &maps.polar);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  if (gauge.is_linear()) {
    for (const auto& leg : gauge.legs) {
      multiply_(leg, leg_matrix(leg, state.frame), x[leg.tensor]);
    }
    return at::where(state.bound.view({-1, 1, 1}), linear_coordinate(gauge, x), nan);
  }
  Squares squares(maps.view);
  for (const auto& leg : gauge.legs) squares[leg.tensor] = AxisSquares(x[leg.tensor]);
  const bool holds_unit = gauge.is_folded() && gauge.treatment.hold == Hold::unit;
  const auto held = holds_unit ? section(gauge, squares, smallest_norm(plan_, gauge))
                               : ratio(gauge, squares, smallest_norm(plan_, gauge));
  const double weight = holds_unit ? section_weight(gauge) : gauge.ratio_weight();
  return at::where(state.bound & held.alive, held.value + state.log_unit * weight, nan);
}

CoordinateSystem CoordinateSystem::at(const std::function<at::Tensor(size_t)>& tensor) const {
  auto result = *this;
  for (size_t t = 0; t < plan_.tensors.size(); ++t) result.plan_.tensors[t].tensor = tensor(t);
  return result;
}

int64_t CoordinateSystem::degenerate_channels(size_t k) const {
  return gauge_states_.at(k).bound.logical_not().sum().item<int64_t>() *
         plan_.gauges[k].gauge.block;
}

}  // namespace ddc
