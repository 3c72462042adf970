// Reads units, frames and held coordinates off the weights, at construction.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "coordinates/coordinate_system.h"
#include "coordinates/sweeps.h"

namespace ddc {
namespace {

/// From centred tensors inwards, as far as units and frames are known.
at::Tensor inside(CoordinateMaps& maps, const Tensors& centred, size_t t) {
  const auto until = [&](size_t tensor, const CoordinateMap& level) {
    auto x = centred[tensor].clone();
    for (const auto* map : maps.between(&maps.scale, &level)) map->to_coordinates_(tensor, x);
    return x;
  };
  maps.effective_weight.read_one(t,
                                 [&](size_t gain) { return until(gain, maps.effective_weight); });
  return until(t, maps.polar);
}

}  // namespace

CoordinateSystem::CoordinateSystem(const std::vector<GroupedParameter>& parameters,
                                   const std::vector<Gauge>& gauges, const Treatments& treatments)
    : plan_(compile(parameters, gauges, treatments)) {
  const at::NoGradGuard no_grad;
  gauge_states_.resize(plan_.gauges.size());
  radial_states_.resize(plan_.radial_modes.size());
  for (const auto& tensor : plan_.tensors) {
    if (!tensor.has_gauge()) continue;
    TORCH_CHECK(tensor.tensor.isfinite().all().item<bool>(), "parameter '", tensor.name,
                "' has NaN or Inf entries: its gauges cannot be bound");
  }
  const std::vector<bool> all(plan_.tensors.size(), true);
  for (const auto& component : plan_.components) {
    if (!component.gauges.empty()) bind_(component, all);
  }
  for (size_t k = 0; k < plan_.gauges.size(); ++k) {
    auto& state = gauge_states_[k];
    if (plan_.gauges[k].treatment.vertical != Vertical::frozen) state.vertical.start(state.held);
  }
  for (size_t m = 0; m < plan_.radial_modes.size(); ++m) {
    const auto& gauge = plan_.gauges[plan_.radial_modes[m].gauge];
    radial_states_[m].start(at::zeros({gauge.gauge.channels}, gauge.options()));
  }
}

void CoordinateSystem::bind_(const Component& component, const std::vector<bool>& all) {
  for (const size_t k : component.gauges) {
    const auto& gauge = plan_.gauges[k];
    if (!gauge.is_scale()) continue;
    gauge_states_[k].log_unit = at::zeros({gauge.gauge.channels}, gauge.options());
    gauge_states_[k].target = section_target(gauge);
  }
  CoordinateMaps maps(ComponentView(plan_, component, gauge_states_, all));
  Tensors x(maps.view);
  maps.read_(&maps.scale);
  for (const size_t t : component.tensors) x[t] = maps.coordinates(t, &maps.scale);
  maps.centre.bind_(gauge_states_, x);
  bind_sections_(maps, x);
  // A Gram matrix is measured in the linear frames of the other axes; rotations do not change it.
  Tensors in_frames(maps.view);
  for (const size_t t : component.tensors) in_frames[t] = inside(maps, x, t);
  for (const size_t k : component.gauges) {
    const auto& gauge = plan_.gauges[k];
    if (gauge.gauge.action == Action::rotation) bind_frame_(gauge, in_frames, gauge_states_[k]);
    if (gauge.gauge.mixes()) align_frame_(gauge, gauge_states_[k], in_frames);
  }
}

void CoordinateSystem::bind_sections_(CoordinateMaps& maps, const Tensors& x) {
  const auto& component = maps.view.component;
  Squares squares(maps.view);
  for (const size_t t : component.tensors) squares[t] = AxisSquares(inside(maps, x, t));
  std::string linear;
  for (const size_t k : component.gauges) {
    if (plan_.gauges[k].is_linear()) linear += " '" + plan_.gauges[k].gauge.name + "'";
  }
  const int most = linear.empty() ? sweeps::kMostToBind : sweeps::kMostLinearToBind;
  double largest = 0;
  for (int sweep = 0; sweep < most; ++sweep) {
    largest = 0;
    for (const size_t k : component.gauges) {
      const auto& gauge = plan_.gauges[k];
      auto& state = gauge_states_[k];
      if (gauge.is_linear()) {
        // Measured in the frames of the linear gauges on the tensors' other axes, and in its own.
        Tensors now(maps.view);
        for (const auto& leg : gauge.legs) now[leg.tensor] = inside(maps, x, leg.tensor);
        if (sweep == 0) {
          bind_frame_(gauge, now, state);
        } else {
          largest = std::max(largest, refine_frame_(gauge, now, sweeps::damping(gauge), state));
        }
        for (const auto& leg : gauge.legs) {
          squares[leg.tensor] = AxisSquares(inside(maps, x, leg.tensor));
        }
      }
      if (!gauge.is_scale()) continue;
      const double smallest = smallest_norm(plan_, gauge);
      const auto now = section(gauge, squares, smallest);
      const auto change = at::where(now.alive, (now.value - state.target) / section_weight(gauge),
                                    one_sided_log_unit(gauge, squares, smallest)) *
                          sweeps::damping(gauge);
      state.bound = now.alive;
      state.log_unit += change;
      move_squares_(gauge, -change, squares);
      largest = std::max(largest, change.abs().max().item<double>());
    }
    if (!component.coupled || (sweep > 0 && largest <= sweeps::kTolerance)) break;
  }
  TORCH_CHECK_VALUE(!component.coupled || linear.empty() || largest <= sweeps::kLinearTolerance,
                    "the linear gauges", linear,
                    " share tensors with others, and have no common place "
                    "at these weights (after ",
                    most, " sweeps they still move by ", largest,
                    "): they cannot be held exactly together; leave one of them out");
  for (const size_t k : component.gauges) {
    const auto& gauge = plan_.gauges[k];
    if (!gauge.is_scale()) continue;
    auto& state = gauge_states_[k];
    const double smallest = smallest_norm(plan_, gauge);
    state.target = at::where(state.bound, section(gauge, squares, smallest).value, state.target);
    state.held = ratio(gauge, squares, smallest).value + state.log_unit * gauge.ratio_weight();
    state.known = state.bound.clone();
  }
}

}  // namespace ddc
