// Takes out of gradients and steps what points along orbits.

#include <algorithm>
#include <cmath>

#include "frame/frame.h"
#include "frame/polar.h"
#include "frame/shift.h"
#include "legs.h"

namespace ddc {
namespace {

/// Orbits of gauges that share a tensor are not orthogonal; alternating projections are repeated until
/// they find nothing more, or so often.
constexpr int kMostProjections = 50;

}  // namespace

void Frame::project_shifts_(Chart& chart, Tensors& vectors, bool ignore_rounding) const {
  for (const size_t k : chart.component->gauges) {
    const auto& gauge = plan_.gauges[k];
    if (!gauge.is_shift() || !chart.active[k] || gauge.projects(Projection::never)) continue;
    if (!vectors[gauge.legs.front().tensor].defined()) continue;  // a gain that takes no step
    // A mean along an axis that is turned is one in the axes before they were.
    const auto turn_axis = [&](const BoundLeg& leg, bool back) {
      for (const auto& use : plan_.tensors[leg.tensor].blocks) {
        const auto& other = plan_.gauges[use.gauge];
        const auto& map = other.legs[use.leg].map;
        if (!other.gauge.fixes_ones || map.axis() + leg.more_axes != leg.map.axis()) continue;
        auto& vector = vectors[leg.tensor];
        const auto& frame = gauge_states_[use.gauge].frame;
        vector = other.legs[use.leg].blocks->multiply(
            (back ? frame.transpose(-1, -2) : frame).to(vector.options()), vector);
      }
    };
    for (size_t l = 0; l < gauge.shift_legs(); ++l) turn_axis(gauge.legs[l], /*back=*/false);
    auto shift = shift_part(gauge, vectors);
    if (ignore_rounding) {
      const auto floor = shift_scale(gauge, vectors) * std::sqrt(precision(plan_, gauge));
      shift = at::where(shift.abs() > floor, shift, 0.0);
    }
    chart.projected[k] = shift.abs().max().item<double>();
    for (size_t l = 0; l < gauge.shift_legs(); ++l) {
      const auto& leg = gauge.legs[l];
      // Out of place: a rule may have handed out a tensor of its state.
      auto& vector = vectors[leg.tensor];
      vector = vector - shift_of_leg(leg, shift).to(vector.scalar_type());
      turn_axis(leg, /*back=*/true);
    }
  }
}

void Frame::find_angles_(Chart& chart, const Tensors& steps, Projection when) const {
  const auto is_projected = [&](size_t k) {
    const auto& gauge = plan_.gauges[k];
    return gauge.gauge.mixes() && chart.active[k] && gauge.projects(when) &&
           std::all_of(gauge.legs.begin(), gauge.legs.end(),
                       [&](const BoundLeg& leg) { return steps[leg.tensor].defined(); });
  };
  std::vector<size_t> mixing;
  Tensors grams(plan_.gauges.size());
  Tensors moments(plan_.gauges.size());
  for (const size_t k : chart.component->gauges) {
    const auto& gauge = plan_.gauges[k].gauge;
    if (!is_projected(k)) continue;
    mixing.push_back(k);
    grams[k] = at::zeros({gauge.blocks(), gauge.block, gauge.block}, at::kDouble);
    moments[k] = at::zeros_like(grams[k]);
    chart.angles[k] = at::zeros_like(grams[k]);
  }
  if (mixing.empty()) return;
  // The coordinates of tensors that several gauges turn.
  Tensors shared(plan_.tensors.size());
  bool any_shared = false;
  for (const size_t t : chart.component->tensors) {
    const auto& uses = plan_.tensors[t].blocks;
    const auto active = [&](const TensorPlan::Use& use) { return is_projected(use.gauge); };
    if (std::none_of(uses.begin(), uses.end(), active)) continue;
    const auto x = coordinates_of(chart, t);
    for (const auto& use : uses) {
      if (!active(use)) continue;
      const auto& leg = plan_.gauges[use.gauge].legs[use.leg];
      grams[use.gauge] += leg_gram(leg, x);
      moments[use.gauge] += orbit_moment(leg, steps[t], x);
    }
    if (uses.size() < 2) continue;
    shared[t] = x;
    any_shared = true;
  }
  std::vector<Orbit> orbits(plan_.gauges.size());
  for (const size_t k : mixing) orbits[k] = orbit_at(plan_.gauges[k], grams[k]);
  // Steps stay as they are: it is enough to know what taking an angle out leaves of the moments of
  // the gauges that act on the same tensors.
  const auto take_out_of_moments_ = [&](size_t k, const at::Tensor& angle) {
    chart.angles[k] += angle;
    moments[k].zero_();
    for (size_t l = 0; l < plan_.gauges[k].legs.size(); ++l) {
      const auto& leg = plan_.gauges[k].legs[l];
      const auto& x = shared[leg.tensor];
      if (!x.defined()) continue;
      const auto along = along_orbit(leg, angle, x);
      for (const auto& use : plan_.tensors[leg.tensor].blocks) {
        if (!is_projected(use.gauge) || (use.gauge == k && use.leg == l)) continue;
        moments[use.gauge] -= orbit_moment(plan_.gauges[use.gauge].legs[use.leg], along, x);
      }
    }
  };
  double first = 0;
  for (int sweep = 0; sweep < (any_shared ? kMostProjections : 1); ++sweep) {
    double largest = 0;
    for (const size_t k : mixing) {
      const auto angle = orbit_angle(orbits[k], moments[k]);
      const double removed = angle.abs().max().item<double>();
      if (sweep == 0) chart.projected[k] = removed;
      largest = std::max(largest, removed);
      take_out_of_moments_(k, angle);
    }
    if (sweep == 0) first = largest;
    if (largest <= first * 1e-14) break;
  }
}

void Frame::take_out_(const Chart& chart, size_t t, const at::Tensor& x, at::Tensor& step) const {
  for (const auto& use : plan_.tensors[t].blocks) {
    const auto& angle = chart.angles[use.gauge];
    if (!angle.defined()) continue;
    // Out of place: a rule may have handed out a tensor of its state.
    const auto along = along_orbit(plan_.gauges[use.gauge].legs[use.leg], angle, x);
    step = step - along.to(step.scalar_type());
  }
}

void Frame::project_gradients_(Chart& chart) const {
  // The gradient of an invariant loss has no part along an orbit but rounding. Taking that out would
  // put it into entries whose gradient is zero (rows of tokens that are not in the batch, units that
  // are not active), where Adam makes steps of it.
  project_shifts_(chart, chart.g, /*ignore_rounding=*/true);
  if (chart.component->nodes.empty()) return;
  project_polar_(
      plan_, chart, [&](size_t t) { return coordinates_of(chart, t); }, chart.g);
}

bool Frame::projects_momenta(const Component& component) const {
  return std::any_of(component.gauges.begin(), component.gauges.end(),
                     [&](size_t k) { return plan_.gauges[k].projects(Projection::momentum); });
}

void Frame::project_momenta_(Chart& chart, Tensors& momenta) const {
  find_angles_(chart, momenta, Projection::momentum);
  for (const size_t t : chart.component->tensors) {
    if (momenta[t].defined()) take_out_(chart, t, coordinates_of(chart, t), momenta[t]);
  }
  for (auto& angle : chart.angles) angle.reset();
}

void Frame::project_steps_(Chart& chart, Tensors& steps) const {
  project_shifts_(chart, steps, /*ignore_rounding=*/false);
  find_angles_(chart, steps, Projection::step);
  if (chart.component->nodes.empty()) return;
  // What is left of a radius is a matter of the steps as they will be made.
  for (const size_t t : chart.component->tensors) {
    if (steps[t].defined()) take_out_(chart, t, coordinates_of(chart, t), steps[t]);
  }
  for (auto& angle : chart.angles) angle.reset();
  project_polar_(
      plan_, chart, [&](size_t t) { return coordinates_of(chart, t); }, steps);
}

}  // namespace ddc
