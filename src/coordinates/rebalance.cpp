// Brings stepped coordinates back to their sections, along orbits only.

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "coordinates/blocks.h"
#include "coordinates/section.h"
#include "coordinates/step.h"
#include "coordinates/sweeps.h"

namespace ddc {

void ComponentStep::move_vertical_(size_t k) {
  const auto& gauge = plan_.gauges[k];
  auto& state = states_[k];
  if (gauge.treatment.vertical == Vertical::frozen) return;
  // Along the orbit of an invariant loss there is nothing but rounding, which Adam would blow up to
  // steps of full size. What is smaller than the root of the precision, relative to the terms that
  // were added up, is not taken for a gradient. Both numbers are invariant.
  const double smallest = std::sqrt(precision(plan_, gauge));
  auto gradient = at::where(charge_[k].abs() > charge_scale_[k] * smallest, charge_[k], 0.0);
  const bool divide = gauge.treatment.vertical == Vertical::adam;
  if (gauge.is_scale()) {
    gradient = at::where(state.bound, gradient / gauge.exponent_norm, 0.0);
    const auto log_c =
        state.vertical.make_step(gradient, settings_of(k), divide) / gauge.exponent_norm;
    state.held += log_c * gauge.ratio_weight();
    state.log_unit += log_c;
  } else {
    auto shift = state.vertical.make_step(gradient, settings_of(k), divide);
    // The step was made in coordinates; the held mean is one of weights.
    const auto& map = gauge.legs.front().map;
    for (const auto& use : plan_.tensors[gauge.legs.front().tensor].scales) {
      const auto& leg = plan_.leg(use);
      auto factor = leg.factor(states_[use.gauge].log_unit, +1, shift.options());
      // Along the shift's own axis the factor is the same for all that is shifted together.
      if (leg.map.axis() == map.axis()) factor = map.mean(factor);
      shift = shift * factor;
    }
    state.held += shift;
  }
}

double ComponentStep::sweep_linear_(size_t k, Squares& squares) {
  const auto& gauge = plan_.gauges[k];
  const auto for_each_move = [&](size_t t, const auto& visit) {
    for (const auto& use : plan_.tensors[t].scales) {
      visit(plan_.leg(use), maps_.scale.log_move[use.gauge]);
    }
  };
  auto moved = tensors();
  for (const auto& leg : gauge.legs) {
    auto& x = moved[leg.tensor];
    x = x_[leg.tensor];
    for_each_move(leg.tensor, [&](const BoundLeg& scaled, const at::Tensor& log_c) {
      x = x * scaled.factor(log_c, +1, x.options());
    });
  }
  const double difference = rebalance_linear_(gauge, moved, states_[k], x_);
  for (const auto& leg : gauge.legs) {
    auto& square = squares[leg.tensor] = AxisSquares(x_[leg.tensor]);
    for_each_move(leg.tensor, [&](const BoundLeg& scaled, const at::Tensor& log_c) {
      square.multiply_(scaled.map.axes(), scaled.factor(log_c, +2, x_[leg.tensor].options()));
    });
  }
  return difference;
}

void ComponentStep::sweep_(const std::vector<size_t>& sections, Squares& squares) {
  for (int sweep = 0; sweep < sweeps::kMostPerStep; ++sweep) {
    double largest = 0;
    for (const size_t k : sections) {
      const auto& gauge = plan_.gauges[k];
      auto& state = states_[k];
      if (gauge.is_linear()) {
        const double difference = sweep_linear_(k, squares);
        if (sweep == 0) state.imbalance = difference;
        if (difference > gauge.treatment.rebalance_above) largest = std::max(largest, difference);
        continue;
      }
      const auto now = section(gauge, squares, smallest_norm(plan_, gauge));
      const auto log_c = at::where(state.bound & now.alive,
                                   (state.target - now.value) / section_weight(gauge), 0.0) *
                         sweeps::damping(gauge);
      move_squares_(gauge, log_c, squares);
      maps_.scale.log_move[k] += log_c;
      largest = std::max(largest, log_c.abs().max().item<double>());
    }
    if (!component_.coupled || largest <= sweeps::kTolerance) break;
  }
}

void ComponentStep::rebalance_() {
  std::vector<size_t> sections;
  for (const size_t k : component_.gauges) {
    const auto& gauge = plan_.gauges[k];
    if (!view_.is_held(k)) continue;
    if (gauge.is_scale() || gauge.is_linear()) sections.push_back(k);
    if (gauge.gauge.mixes()) states_[k].imbalance = maps_.change_basis.projected(k);
    if (!gauge.is_shift()) continue;
    states_[k].imbalance = maps_.centre.projected(k);
    move_vertical_(k);
    const auto& own = settings_of(k);
    if (gauge.treatment.decay_held) states_[k].held.mul_(1 - own.lr * own.weight_decay);
  }
  Squares squares(view_);
  for (const size_t t : component_.tensors) squares[t] = AxisSquares(x_[t]);
  if (!component_.nodes.empty() && !sections.empty()) {
    maps_.polar.restore_and_move_radius_(squares, radial_states_, settings_);
  }
  for (const size_t k : sections) {
    const auto& gauge = plan_.gauges[k];
    if (!gauge.is_scale()) continue;
    auto& state = states_[k];
    const double smallest = smallest_norm(plan_, gauge);
    update_binding_(gauge, squares, smallest, state);
    const auto now = section(gauge, squares, smallest);
    const auto off = at::where(state.bound, now.value - state.target, 0.0);
    state.imbalance = off.abs().max().item<double>();
  }
  sweep_(sections, squares);
  for (const size_t k : sections) {
    const auto& gauge = plan_.gauges[k];
    auto& state = states_[k];
    if (!gauge.is_scale()) continue;
    move_vertical_(k);
    // In all other coordinates a unit that is left alone is an r that is left alone.
    if (!gauge.is_folded()) continue;
    const auto r = ratio(gauge, squares, smallest_norm(plan_, gauge));
    if (gauge.treatment.hold == Hold::ratio) {
      state.log_unit.copy_(at::where(
          state.bound & r.alive, (state.held - r.value) / gauge.ratio_weight(), state.log_unit));
    } else {
      state.held.copy_(
          at::where(state.bound, r.value + state.log_unit * gauge.ratio_weight(), state.held));
    }
  }
  for (const size_t k : component_.gauges) {
    const auto& gauge = plan_.gauges[k];
    if (gauge.gauge.mixes() && gauge.treatment.procrustes && view_.active[k] &&
        gauge.projects(Projection::step)) {
      procrustes_(gauge, before_, x_);
    }
  }
}

}  // namespace ddc
