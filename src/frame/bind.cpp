// Reads units, frames and held coordinates off the weights, at construction.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>

#include "frame/frame.h"
#include "frame/section.h"
#include "frame/shift.h"
#include "sweeps.h"

namespace ddc {
namespace {

double epsilon(const TensorPlan& tensor) {
  return tensor.compute_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                              : std::numeric_limits<float>::epsilon();
}

}  // namespace

Frame::Frame(const std::vector<GroupedParameter>& parameters, const std::vector<Gauge>& gauges,
             const Treatments& treatments)
    : plan_(compile(parameters, gauges, treatments)) {
  const at::NoGradGuard no_grad;
  gauge_states_.resize(plan_.gauges.size());
  radial_states_.resize(plan_.radial_modes.size());
  for (const auto& tensor : plan_.tensors) {
    if (!tensor.has_gauge()) continue;
    TORCH_CHECK(tensor.tensor.isfinite().all().item<bool>(), "parameter '", tensor.name,
                "' has NaN or Inf entries: its gauges cannot be bound");
  }
  bind_();
  const auto start = [](ScalarMoments& moments, const at::Tensor& like) {
    moments.first = at::zeros_like(like);
    moments.second = at::zeros_like(like);
  };
  for (size_t k = 0; k < plan_.gauges.size(); ++k) {
    if (plan_.gauges[k].treatment.vertical == Vertical::frozen) continue;
    start(gauge_states_[k].vertical, gauge_states_[k].held);
  }
  for (size_t m = 0; m < plan_.radial_modes.size(); ++m) {
    const auto& gauge = plan_.gauges[plan_.radial_modes[m].gauge].gauge;
    start(radial_states_[m], at::zeros({gauge.channels}, at::kDouble));
  }
}

void Frame::add(const GroupedParameter& parameter) {
  TensorPlan tensor;
  tensor.name = parameter.parameter.name;
  tensor.tensor = parameter.parameter.tensor;
  tensor.param_group = parameter.param_group;
  Component alone;
  alone.tensors = {plan_.tensors.size()};
  plan_.tensors.push_back(std::move(tensor));
  plan_.components.push_back(std::move(alone));
}

void Frame::bind_() {
  for (size_t k = 0; k < plan_.gauges.size(); ++k) {
    const auto& gauge = plan_.gauges[k];
    if (!gauge.is_scale()) continue;
    auto& state = gauge_states_[k];
    state.log_unit = at::zeros({gauge.gauge.channels}, at::kDouble);
    state.target = section_target(gauge);
  }
  for (const auto& component : plan_.components) {
    if (component.gauges.empty()) continue;
    auto chart = chart_of(component);
    auto x = centre_(chart);
    for (const size_t k : component.gauges) {
      const auto& gauge = plan_.gauges[k];
      if (!gauge.is_shift()) continue;
      auto& state = gauge_states_[k];
      state.held = chart.shift[k];
      state.bound = at::ones({gauge.gauge.channels}, at::kBool);
      state.known = state.bound.clone();
    }
    for (const size_t t : component.tensors) {
      const auto& tensor = plan_.tensors[t];
      if (tensor.shifts.empty()) continue;
      // What is left of a constant is rounding, and must not pass for a side that is not zero.
      const auto shifted = (tensor.tensor.detach() - x[t]).abs();
      x[t] = at::where(x[t].abs() > shifted * (8 * epsilon(tensor)), x[t], 0);
    }
    bind_sections_(component, x);
    Tensors in_frames(plan_.tensors.size());
    for (const size_t t : component.tensors) in_frames[t] = in_units(x, t).clone();
    // A Gram matrix is measured in the linear units of the other axes; rotations do not change it.
    for (const size_t k : component.gauges) {
      if (plan_.gauges[k].is_linear()) enter_frame_(plan_.gauges[k], gauge_states_[k], in_frames);
    }
    for (const size_t k : component.gauges) {
      const auto& gauge = plan_.gauges[k];
      if (gauge.gauge.action == Action::rotation) bind_frame_(gauge, in_frames, gauge_states_[k]);
      if (gauge.gauge.mixes()) align_frame_(gauge, gauge_states_[k], in_frames);
    }
  }
}

void Frame::bind_sections_(const Component& component, Tensors& x) {
  Squares squares(plan_.tensors.size());
  for (const size_t t : component.tensors) squares[t] = AxisSquares(in_units(x, t));
  for (int sweep = 0; sweep < sweeps::kMostToBind; ++sweep) {
    double largest = 0;
    for (const size_t k : component.gauges) {
      const auto& gauge = plan_.gauges[k];
      auto& state = gauge_states_[k];
      if (gauge.is_linear()) {
        Tensors now(plan_.tensors.size());
        for (const auto& leg : gauge.legs) now[leg.tensor] = in_units(x, leg.tensor).clone();
        bind_frame_(gauge, now, state);
        enter_frame_(gauge, state, now);
        for (const auto& leg : gauge.legs) {
          squares[leg.tensor] = AxisSquares(now[leg.tensor]);
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
    if (!component.coupled || largest <= sweeps::kTolerance) break;
  }
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
