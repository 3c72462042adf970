// Brings stepped coordinates back to their sections, along orbits only.

#include <algorithm>
#include <cmath>

#include "frame/frame.h"
#include "frame/polar.h"
#include "frame/scalar_rule.h"
#include "frame/section.h"
#include "legs.h"
#include "sweeps.h"

namespace ddc {

const StepSettings& Frame::settings_of(size_t gauge,
                                       const std::vector<StepSettings>& settings) const {
  return settings[plan_.gauges[gauge].legs.front().tensor];
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
  state.bound.logical_and_(now.alive).logical_or_(entering);
  state.known.logical_or_(entering);
  state.target.copy_(at::where(first_time, now.value, state.target));
  state.held.copy_(at::where(first_time, r + state.log_unit * gauge.ratio_weight(), state.held));
  state.imbalance =
      at::where(state.bound, now.value - state.target, 0.0).abs().max().item<double>();
}

void Frame::move_vertical_(const Chart& chart, size_t k, const StepSettings& settings) {
  const auto& gauge = plan_.gauges[k];
  auto& state = gauge_states_[k];
  if (gauge.treatment.vertical == Vertical::frozen) return;
  // Along the orbit of an invariant loss there is nothing but rounding, which Adam would blow up to
  // steps of full size. What is smaller than the root of the precision, relative to the terms that
  // were added up, is not taken for a gradient. Both numbers are invariant.
  const double smallest = std::sqrt(precision(plan_, gauge));
  auto gradient = chart.charge[k];
  gradient = at::where(gradient.abs() > chart.charge_scale[k] * smallest, gradient, 0.0);
  const bool divide = gauge.treatment.vertical == Vertical::adam;
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

void Frame::sweep_(Chart& chart, const std::vector<size_t>& sections) {
  for (int sweep = 0; sweep < sweeps::kMostPerStep; ++sweep) {
    double largest = 0;
    for (const size_t k : sections) {
      const auto& gauge = plan_.gauges[k];
      auto& state = gauge_states_[k];
      if (gauge.is_linear()) {
        Tensors now(plan_.tensors.size());
        const auto moved = [&](size_t t) {
          auto x = chart.x[t];
          for (const auto& use : plan_.tensors[t].scales) {
            const auto& move = chart.log_move[use.gauge];
            const auto& leg = plan_.gauges[use.gauge].legs[use.leg];
            if (move.defined()) x = x * leg_factor(leg, move, +1, x.options());
          }
          return x;
        };
        for (const auto& leg : gauge.legs) now[leg.tensor] = moved(leg.tensor);
        const double difference = rebalance_linear_(gauge, now, state, chart.x);
        if (sweep == 0) state.imbalance = difference;
        for (const auto& leg : gauge.legs) {
          const auto& x = chart.x[leg.tensor];
          chart.squares[leg.tensor] = AxisSquares(x);
          for (const auto& use : plan_.tensors[leg.tensor].scales) {
            const auto& move = chart.log_move[use.gauge];
            const auto& scaled = plan_.gauges[use.gauge].legs[use.leg];
            if (!move.defined()) continue;
            chart.squares[leg.tensor].multiply_(scaled.map.axis(),
                                                leg_factor(scaled, move, +2, x.options()));
          }
        }
        if (difference > gauge.treatment.rebalance_above) largest = std::max(largest, difference);
        continue;
      }
      const auto now = section(gauge, chart.squares, smallest_norm(plan_, gauge));
      const auto log_c = at::where(state.bound & now.alive,
                                   (state.target - now.value) / section_weight(gauge), 0.0) *
                         sweeps::damping(gauge);
      move_squares_(gauge, log_c, chart.squares);
      chart.log_move[k] += log_c;
      largest = std::max(largest, log_c.abs().max().item<double>());
    }
    if (!chart.component->coupled || largest <= sweeps::kTolerance) break;
  }
}

void Frame::rebalance_(Chart& chart, const std::vector<StepSettings>& settings) {
  const auto& component = *chart.component;
  std::vector<size_t> sections;
  for (const size_t k : component.gauges) {
    const auto& gauge = plan_.gauges[k];
    if (!chart.active[k] || gauge.projects(Projection::never)) continue;
    if (gauge.is_scale() || gauge.is_linear()) sections.push_back(k);
    if (gauge.is_scale()) continue;
    gauge_states_[k].imbalance = chart.projected[k];
    if (!gauge.is_shift()) continue;
    const auto& own = settings_of(k, settings);
    move_vertical_(chart, k, own);
    if (gauge.treatment.decay_held) gauge_states_[k].held.mul_(1 - own.lr * own.weight_decay);
  }
  for (const size_t t : component.tensors) {
    chart.squares[t] = AxisSquares(chart.x[t]);
  }
  if (!component.nodes.empty() && !sections.empty()) {
    restore_and_move_radius_(plan_, chart, radial_states_, settings);
  }
  for (const size_t k : sections) {
    if (!plan_.gauges[k].is_scale()) continue;
    update_binding_(chart, k);
    chart.log_move[k] = at::zeros_like(gauge_states_[k].log_unit);
  }
  sweep_(chart, sections);
  for (const size_t k : sections) {
    const auto& gauge = plan_.gauges[k];
    auto& state = gauge_states_[k];
    if (!gauge.is_scale()) continue;
    move_vertical_(chart, k, settings_of(k, settings));
    // In all other coordinates a unit that is left alone is an r that is left alone.
    if (!gauge.is_folded()) continue;
    const auto r = ratio(gauge, chart.squares, smallest_norm(plan_, gauge));
    if (gauge.treatment.hold == Hold::ratio) {
      state.log_unit.copy_(at::where(
          state.bound & r.alive, (state.held - r.value) / gauge.ratio_weight(), state.log_unit));
    } else {
      state.held.copy_(
          at::where(state.bound, r.value + state.log_unit * gauge.ratio_weight(), state.held));
    }
  }
  chart.squares.clear();
  for (const size_t k : component.gauges) {
    const auto& gauge = plan_.gauges[k];
    if (gauge.gauge.mixes() && gauge.treatment.procrustes && chart.active[k] &&
        gauge.projects(Projection::step)) {
      procrustes_(gauge, chart.before, chart.x);
    }
  }
}

}  // namespace ddc
