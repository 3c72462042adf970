// Takes out of gradients and steps what points along orbits.

#include <algorithm>
#include <cmath>

#include "ddc/frame/frame.h"
#include "ddc/frame/polar.h"
#include "ddc/frame/shift.h"
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
    if (!gauge.is_shift() || !chart.active[k]) continue;
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

void Frame::project_orbits_(Chart& chart, Tensors& vectors) const {
  std::vector<size_t> mixing;
  for (const size_t k : chart.component->gauges) {
    if (plan_.gauges[k].gauge.mixes() && chart.active[k]) mixing.push_back(k);
  }
  const bool shared = std::any_of(mixing.begin(), mixing.end(), [&](size_t k) {
    const auto& legs = plan_.gauges[k].legs;
    return std::any_of(legs.begin(), legs.end(), [&](const BoundLeg& leg) {
      return plan_.tensors[leg.tensor].blocks.size() > 1;
    });
  });
  double first = 0;
  for (int sweep = 0; sweep < (shared ? kMostProjections : 1); ++sweep) {
    double largest = 0;
    for (const size_t k : mixing) {
      const double removed = project_orbit_(plan_.gauges[k], chart.orbits[k], chart.x, vectors);
      if (sweep == 0) chart.projected[k] = removed;
      largest = std::max(largest, removed);
    }
    if (sweep == 0) first = largest;
    if (largest <= first * 1e-14) break;
  }
}

void Frame::project_gradients_(Chart& chart) const {
  // The gradient of an invariant loss has no part along an orbit but rounding. Taking that out would
  // put it into entries whose gradient is zero (rows of tokens that are not in the batch, units that
  // are not active), where Adam makes steps of it.
  project_shifts_(chart, chart.g, /*ignore_rounding=*/true);
  if (!chart.component->nodes.empty()) project_polar_(plan_, chart, chart.g);
}

void Frame::project_steps_(Chart& chart, Tensors& steps) const {
  project_shifts_(chart, steps, /*ignore_rounding=*/false);
  project_orbits_(chart, steps);
  if (!chart.component->nodes.empty()) project_polar_(plan_, chart, steps);
}

}  // namespace ddc
