#include "ddc/frame/frame.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ddc/frame/polar.h"
#include "ddc/frame/scalar_rule.h"
#include "ddc/frame/section.h"
#include "ddc/frame/shift.h"

namespace ddc {
namespace {

/// Chains of balanced gauges converge linearly; these bounds reach rounding on chains of dozens of
/// layers. A set of units that has no fixed point (weights with a zero block can have none) is
/// taken as it is after the last sweep, and held there.
constexpr int kMostBindingSweeps = 10000;
constexpr int kMostStepSweeps = 200;
constexpr double kSweepTolerance = 1e-14;

/// Gauges with two legs on one tensor over-correct by up to a factor of two in one sweep.
double damping(const GaugePlan& gauge) { return gauge.self_coupled ? 0.5 : 1; }

double epsilon(const TensorPlan& tensor) {
  return tensor.compute_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                              : std::numeric_limits<float>::epsilon();
}

at::Tensor leg_factor(const BoundLeg& leg, const at::Tensor& log_unit, double sign,
                      const at::TensorOptions& options) {
  return leg.map.gather_vector((log_unit * (sign * leg.exponent)).exp().to(options), 1);
}

}  // namespace

Frame::Frame(const std::vector<GroupedParameter>& parameters, const std::vector<Gauge>& gauges)
    : plan_(compile(parameters, gauges)) {
  const at::NoGradGuard no_grad;
  gauge_states_.resize(plan_.gauges.size());
  radial_states_.resize(plan_.radial_modes.size());
  for (const auto& tensor : plan_.tensors) {
    if (tensor.scales.empty() && tensor.shifts.empty()) continue;
    TORCH_CHECK(tensor.tensor.isfinite().all().item<bool>(), "parameter '", tensor.name,
                "' has NaN or Inf entries: its gauges cannot be bound");
  }
  bind_();
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
    std::vector<at::Tensor> residual(plan_.tensors.size());
    for (const size_t t : component.tensors) {
      residual[t] = plan_.tensors[t].tensor.detach().to(at::kDouble) + plan_.tensors[t].offset;
    }
    for (const size_t k : component.gauges) {
      const auto& gauge = plan_.gauges[k];
      if (gauge.is_scale()) continue;
      gauge_states_[k].held = shift_part(gauge, residual);
      gauge_states_[k].bound = at::ones({gauge.gauge.channels}, at::kBool);
      gauge_states_[k].known = gauge_states_[k].bound.clone();
      for (const auto& leg : gauge.legs) {
        residual[leg.tensor] = residual[leg.tensor] - shift_of_leg(leg, gauge_states_[k].held);
      }
    }
    Squares squares(plan_.tensors.size());
    for (const size_t t : component.tensors) {
      const auto& tensor = plan_.tensors[t];
      if (!tensor.shifts.empty()) {
        // What is left of a constant is rounding, and must not pass for a side that is not zero.
        const auto shifted = (tensor.tensor.detach() - residual[t]).abs();
        residual[t] =
            at::where(residual[t].abs() > shifted * (8 * epsilon(tensor)), residual[t], 0);
      }
      squares[t] = residual[t].square();
    }

    for (int sweep = 0; sweep < kMostBindingSweeps; ++sweep) {
      double largest = 0;
      for (const size_t k : component.gauges) {
        const auto& gauge = plan_.gauges[k];
        if (!gauge.is_scale()) continue;
        auto& state = gauge_states_[k];
        const double smallest = smallest_norm(plan_, gauge);
        const auto now = section(gauge, squares, smallest);
        const auto change = at::where(now.alive, (now.value - state.target) / section_weight(gauge),
                                      one_sided_log_unit(gauge, squares, smallest)) *
                            damping(gauge);
        state.bound = now.alive;
        state.log_unit += change;
        move_squares_(gauge, -change, squares);
        largest = std::max(largest, change.abs().max().item<double>());
      }
      if (!component.coupled || largest <= kSweepTolerance) break;
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
}

std::vector<at::Tensor> Frame::coordinates(const Component& component,
                                           std::vector<at::Tensor>& shifts) const {
  shifts.resize(plan_.gauges.size());
  std::vector<at::Tensor> x(plan_.tensors.size());
  for (const size_t t : component.tensors) {
    const auto& tensor = plan_.tensors[t];
    // A tensor without gauges is stepped in place. All others are worked on in a float64 copy: in
    // float32 a factor and its inverse do not multiply to one, and that error, the same in every
    // step, would make weights grow or shrink.
    x[t] = component.gauges.empty() ? tensor.tensor.detach().to(tensor.compute_type())
                                    : tensor.tensor.detach().to(at::kDouble) + tensor.offset;
  }
  for (const size_t k : component.gauges) {
    const auto& gauge = plan_.gauges[k];
    if (gauge.is_scale()) continue;
    shifts[k] = shift_part(gauge, x);
    for (const auto& leg : gauge.legs) {
      x[leg.tensor] -= shift_of_leg(leg, shifts[k]);
    }
  }
  for (const size_t t : component.tensors) {
    for (const auto& use : plan_.tensors[t].scales) {
      const auto& leg = plan_.gauges[use.gauge].legs[use.leg];
      x[t].mul_(leg_factor(leg, gauge_states_[use.gauge].log_unit, -1, x[t].options()));
    }
  }
  return x;
}

Chart Frame::open(const Component& component, const std::vector<bool>& has_gradient,
                  const std::vector<StepSettings>& settings) const {
  Chart chart;
  chart.component = &component;
  chart.g.resize(plan_.tensors.size());
  chart.squares.resize(plan_.tensors.size());
  chart.active.assign(plan_.gauges.size(), false);
  chart.charge.resize(plan_.gauges.size());
  chart.charge_scale.resize(plan_.gauges.size());
  chart.log_move.resize(plan_.gauges.size());
  chart.projected.resize(plan_.gauges.size());
  chart.nodes.resize(plan_.nodes.size());
  chart.x = coordinates(component, chart.shift);

  for (const size_t k : component.gauges) {
    const auto& legs = plan_.gauges[k].legs;
    chart.active[k] = std::all_of(legs.begin(), legs.end(),
                                  [&](const BoundLeg& leg) { return has_gradient[leg.tensor]; });
  }
  for (const size_t t : component.tensors) {
    if (!has_gradient[t]) continue;
    const auto& tensor = plan_.tensors[t];
    const auto& gradient = tensor.tensor.grad();
    auto g = gradient.to(tensor.compute_type());
    if (settings[tensor.param_group].maximize) {
      g = g.neg();
    } else if (!component.gauges.empty() && g.is_same(gradient)) {
      g = g.clone();  // the caller's gradient is not ours to change
    }
    for (const auto& use : tensor.scales) {
      const auto& leg = plan_.gauges[use.gauge].legs[use.leg];
      g.mul_(leg_factor(leg, gauge_states_[use.gauge].log_unit, +1, g.options()));
    }
    chart.g[t] = g;
  }
  measure_charges_(chart);
  if (!component.nodes.empty()) open_polar_(plan_, gauge_states_, chart);
  return chart;
}

void Frame::measure_charges_(Chart& chart) const {
  for (const size_t k : chart.component->gauges) {
    const auto& gauge = plan_.gauges[k];
    if (!chart.active[k] || gauge.gauge.vertical == Vertical::frozen) continue;
    if (!gauge.is_scale()) {
      std::vector<at::Tensor> sizes(plan_.tensors.size());
      for (const auto& leg : gauge.legs) sizes[leg.tensor] = chart.g[leg.tensor].abs();
      chart.charge[k] = shift_part(gauge, chart.g);
      // Where a channel is a single entry, there is nothing to tell a gradient from rounding by.
      const auto alone = shift_counts(gauge) < 2;
      chart.charge_scale[k] =
          at::where(alone, std::numeric_limits<double>::infinity(), shift_part(gauge, sizes).abs());
      continue;
    }
    chart.charge[k] = at::zeros({gauge.gauge.channels}, at::kDouble);
    chart.charge_scale[k] = at::zeros({gauge.gauge.channels}, at::kDouble);
    for (const auto& leg : gauge.legs) {
      const auto along = chart.g[leg.tensor].to(at::kDouble) * chart.x[leg.tensor];
      chart.charge[k] += leg.map.scatter_all(along).to(at::kCPU) * leg.exponent;
      chart.charge_scale[k] +=
          leg.map.scatter_all(along.abs()).to(at::kCPU) * std::abs(leg.exponent);
    }
  }
}

void Frame::project_(Chart& chart, std::vector<at::Tensor>& vectors) const {
  for (const size_t k : chart.component->gauges) {
    const auto& gauge = plan_.gauges[k];
    if (gauge.is_scale() || !chart.active[k]) continue;
    const auto shift = shift_part(gauge, vectors);
    chart.projected[k] = shift.abs().max().item<double>();
    for (const auto& leg : gauge.legs) {
      // Out of place: a rule may have handed out a tensor of its state.
      auto& vector = vectors[leg.tensor];
      vector = vector - shift_of_leg(leg, shift).to(vector.scalar_type());
    }
  }
  if (!chart.component->nodes.empty()) project_polar_(plan_, chart, vectors);
}

void Frame::advance_(Chart& chart, const std::vector<at::Tensor>& steps,
                     const std::vector<StepSettings>& settings) const {
  for (const size_t t : chart.component->tensors) {
    if (!steps[t].defined()) continue;
    const auto& group = settings[plan_.tensors[t].param_group];
    if (group.weight_decay != 0) {
      const double kept = 1 - group.lr * group.weight_decay;
      const auto outside = outside_nodes(plan_, chart, t);
      if (outside.defined()) {
        chart.x[t].mul_(1 - outside * (1 - kept));
      } else {
        chart.x[t].mul_(kept);
      }
    }
    chart.x[t].add_(steps[t]);
  }
}

const StepSettings& Frame::settings_of(size_t gauge,
                                       const std::vector<StepSettings>& settings) const {
  return settings[plan_.tensors[plan_.gauges[gauge].legs.front().tensor].param_group];
}

void Frame::update_binding_(const Chart& chart, size_t k) {
  const auto& gauge = plan_.gauges[k];
  auto& state = gauge_states_[k];
  const double smallest = smallest_norm(plan_, gauge);
  const auto now = section(gauge, chart.squares, smallest);
  const auto entering = state.bound.logical_not() & comparable(gauge, chart.squares, smallest);
  // A channel that was bound before goes back to the place where it was held.
  const auto first_time = entering & state.known.logical_not();
  const auto r = ratio(gauge, chart.squares, smallest).value;
  state.bound = (state.bound & now.alive) | entering;
  state.known = state.known | entering;
  state.target = at::where(first_time, now.value, state.target);
  state.held = at::where(first_time, r + state.log_unit * gauge.ratio_weight(), state.held);
  state.imbalance =
      at::where(state.bound, now.value - state.target, 0.0).abs().max().item<double>();
}

void Frame::move_vertical_(const Chart& chart, size_t k, const StepSettings& settings) {
  const auto& gauge = plan_.gauges[k];
  auto& state = gauge_states_[k];
  if (gauge.gauge.vertical == Vertical::frozen) return;
  // Along the orbit of an invariant loss there is nothing but rounding, which Adam would blow up to
  // steps of full size. What is smaller than the root of the precision, relative to the terms that
  // were added up, is not taken for a gradient. Both numbers are invariant.
  bool narrow = false;
  for (const auto& leg : gauge.legs) {
    narrow = narrow || plan_.tensors[leg.tensor].compute_type() != at::kDouble;
  }
  const double precision =
      narrow ? std::numeric_limits<float>::epsilon() : std::numeric_limits<double>::epsilon();
  auto gradient = chart.charge[k];
  gradient =
      at::where(gradient.abs() > chart.charge_scale[k] * std::sqrt(precision), gradient, 0.0);
  const bool divide = gauge.gauge.vertical == Vertical::adam;
  if (gauge.is_scale()) {
    gradient = at::where(state.bound, gradient / gauge.exponent_norm, 0.0);
    const auto log_c =
        scalar_step(state.vertical, gradient, settings, divide) / gauge.exponent_norm;
    state.held += log_c * gauge.ratio_weight();
    state.log_unit += log_c;
  } else {
    auto shift = scalar_step(state.vertical, gradient, settings, divide);
    // The step was made in coordinates; the held mean is one of weights.
    const auto& map = gauge.legs.front().map;
    for (const auto& use : plan_.tensors[gauge.legs.front().tensor].scales) {
      const auto& leg = plan_.gauges[use.gauge].legs[use.leg];
      auto factor = leg_factor(leg, gauge_states_[use.gauge].log_unit, +1, shift.options());
      // Along the shift's own axis the factor is the same for all that is shifted together.
      if (leg.map.axis() == map.axis()) factor = map.mean(factor);
      shift = shift * factor;
    }
    state.held += shift;
  }
}

void Frame::rebalance_(Chart& chart, const std::vector<StepSettings>& settings) {
  const auto& component = *chart.component;
  std::vector<size_t> scales;
  for (const size_t k : component.gauges) {
    if (!chart.active[k]) continue;
    if (plan_.gauges[k].is_scale()) {
      scales.push_back(k);
    } else {
      gauge_states_[k].imbalance = chart.projected[k];
      move_vertical_(chart, k, settings_of(k, settings));
    }
  }
  if (scales.empty()) return;

  for (const size_t t : component.tensors) {
    chart.squares[t] = chart.x[t].square();
  }
  if (!component.nodes.empty()) {
    restore_and_move_radius_(plan_, chart, radial_states_, settings);
  }
  for (const size_t k : scales) {
    update_binding_(chart, k);
    chart.log_move[k] = at::zeros_like(gauge_states_[k].log_unit);
  }
  for (int sweep = 0; sweep < kMostStepSweeps; ++sweep) {
    double largest = 0;
    for (const size_t k : scales) {
      const auto& gauge = plan_.gauges[k];
      const auto& state = gauge_states_[k];
      const auto now = section(gauge, chart.squares, smallest_norm(plan_, gauge));
      const auto log_c = at::where(state.bound & now.alive,
                                   (state.target - now.value) / section_weight(gauge), 0.0) *
                         damping(gauge);
      move_squares_(gauge, log_c, chart.squares);
      chart.log_move[k] += log_c;
      largest = std::max(largest, log_c.abs().max().item<double>());
    }
    if (!component.coupled || largest <= kSweepTolerance) break;
  }
  for (const size_t k : scales) {
    const auto& gauge = plan_.gauges[k];
    auto& state = gauge_states_[k];
    move_vertical_(chart, k, settings_of(k, settings));
    // In balanced and polar coordinates a unit that is left alone is an r that is left alone.
    if (gauge.coordinates != Coordinates::folded) continue;
    const auto r = ratio(gauge, chart.squares, smallest_norm(plan_, gauge));
    if (gauge.gauge.hold == Hold::ratio) {
      state.log_unit = at::where(state.bound & r.alive,
                                 (state.held - r.value) / gauge.ratio_weight(), state.log_unit);
    } else {
      state.held =
          at::where(state.bound, r.value + state.log_unit * gauge.ratio_weight(), state.held);
    }
  }
}

void Frame::lift_(const Chart& chart) {
  for (const size_t t : chart.component->tensors) {
    if (!chart.g[t].defined()) continue;
    const auto& tensor = plan_.tensors[t];
    at::Tensor weights = tensor.tensor;
    auto x = chart.x[t];
    if (x.is_alias_of(weights)) continue;  // stepped in place
    for (size_t n = 0; n < tensor.nodes.size(); ++n) {
      const auto& use = tensor.nodes[n];
      const auto factor = node_log_factor(plan_, chart, t, n).exp().to(x.options());
      x.mul_(plan_.nodes[use.node].members[use.member].map.gather_vector(factor, 1));
    }
    for (const auto& use : tensor.scales) {
      const auto& leg = plan_.gauges[use.gauge].legs[use.leg];
      const auto& move = chart.log_move[use.gauge];
      const auto& log_unit = gauge_states_[use.gauge].log_unit;
      x.mul_(leg_factor(leg, move.defined() ? log_unit + move : log_unit, +1, x.options()));
    }
    for (const auto& use : tensor.shifts) {
      const auto& leg = plan_.gauges[use.gauge].legs[use.leg];
      x.add_(shift_of_leg(
          leg, chart.active[use.gauge] ? gauge_states_[use.gauge].held : chart.shift[use.gauge]));
    }
    if (tensor.offset != 0) x.sub_(tensor.offset);
    weights.copy_(x);
  }
}

at::Tensor Frame::gauge_coordinate(size_t k) const {
  const at::NoGradGuard no_grad;
  const auto& gauge = plan_.gauges.at(k);
  for (const auto& component : plan_.components) {
    if (std::count(component.gauges.begin(), component.gauges.end(), k) == 0) continue;
    if (!gauge.is_scale()) {
      std::vector<at::Tensor> weights(plan_.tensors.size());
      for (const size_t t : component.tensors) weights[t] = plan_.tensors[t].tensor.detach();
      return shift_part(gauge, weights);
    }
    std::vector<at::Tensor> shifts;
    const auto x = coordinates(component, shifts);
    Squares squares(plan_.tensors.size());
    for (const size_t t : component.tensors) squares[t] = x[t].square();
    const auto r = ratio(gauge, squares, smallest_norm(plan_, gauge));
    const auto& state = gauge_states_[k];
    return at::where(state.bound & r.alive, r.value + state.log_unit * gauge.ratio_weight(),
                     std::numeric_limits<double>::quiet_NaN());
  }
  TORCH_INTERNAL_ASSERT(false, "gauge ", k, " is in no component");
}

int64_t Frame::degenerate_channels(size_t k) const {
  return gauge_states_.at(k).bound.logical_not().sum().item<int64_t>();
}

}  // namespace ddc
