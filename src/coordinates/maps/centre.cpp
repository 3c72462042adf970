#include "coordinates/maps/centre.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ranges>

#include "coordinates/section.h"
#include "coordinates/shift.h"

namespace ddc {
namespace {

/// Sweeps that subtract shifts that overlap. What is left falls by a constant factor with each.
constexpr int kMostSweeps = 200;
constexpr double kRounding = 8;

double epsilon(at::ScalarType type) {
  return type == at::kDouble ? std::numeric_limits<double>::epsilon()
                             : std::numeric_limits<float>::epsilon();
}

}  // namespace

Centre::Centre(const ComponentView& view) : CoordinateMap(view) {
  std::ranges::copy_if(component_.gauges, std::back_inserter(gauges_),
                       [&](size_t k) { return plan_.gauges[k].is_shift(); });
}

void Centre::read(const ValueOf& outside) {
  Tensors x(view_);
  const auto take = [&](size_t t) {
    if (!x[t].defined()) x[t] = outside(t);
  };
  for (const size_t k : gauges_) {
    const auto& gauge = plan_.gauges[k];
    for (size_t l = 0; l < gauge.shift_legs(); ++l) {
      const auto& leg = gauge.legs[l];
      take(leg.tensor);
      if (!leg.gain) continue;
      take(*leg.gain);
      gains_[*leg.gain] = x[*leg.gain].clone();
    }
  }
  // A shift of several tensors is not orthogonal to one along another axis of one of them. What one puts back
  // of the other is subtracted until nothing is left. (The means along two axes of one tensor can be
  // subtracted one after the other.)
  const auto overlaps = [&](size_t k) {
    const auto& gauge = plan_.gauges[k];
    return std::ranges::any_of(gauge.legs | std::views::take(gauge.shift_legs()), [&](auto& leg) {
      return plan_.tensors[leg.tensor].shifts.size() > 1;
    });
  };
  const bool any_overlap = std::ranges::any_of(
      gauges_, [&](size_t k) { return overlaps(k) && plan_.gauges[k].shift_legs() > 1; });
  bool moved = true;
  for (int sweep = 0; moved && sweep <= kMostSweeps; ++sweep) {
    moved = false;
    for (const size_t k : gauges_) {
      const auto& gauge = plan_.gauges[k];
      if (sweep > 0 && !overlaps(k)) continue;
      const auto left = shift_of_weights(gauge, x);
      const double rounding = kRounding * epsilon(at::kDouble) *
                              x[gauge.legs.front().tensor].abs().max().item<double>();
      if (sweep > 0 && !(left.abs().max().item<double>() > rounding)) continue;
      shift_[k] = sweep > 0 ? shift_[k] + left : left;
      add_shift_(gauge, left, -1, x);
      moved = any_overlap;
    }
  }
}

void Centre::move_(int sign, size_t level, size_t t, at::Tensor& x) const {
  auto uses = plan_.tensors[t].shifts;
  if (sign > 0) std::reverse(uses.begin(), uses.end());
  for (const auto& [k, l] : uses) {
    if (sign < 0 ? k >= level : k < level) break;
    const auto& leg = plan_.gauges[k].legs[l];
    auto change =
        shift_of_leg(leg, sign > 0 && view_.is_held(k) ? view_.states[k].held : shift_[k]);
    if (leg.gain) {
      // As it is where the gauge shifts.
      auto gain = gains_[*leg.gain].clone();
      if (sign < 0 || view_.has_gradient[*leg.gain]) {
        move_(sign, sign < 0 ? k : k + 1, *leg.gain, gain);
      }
      change = change / along_axis(gain, leg.map.axis(), leg.map.dim());
    }
    x.add_(change, sign);
  }
}

void Centre::to_coordinates_(size_t t, at::Tensor& x) const {
  move_(-1, plan_.gauges.size(), t, x);
}

void Centre::to_weights_(const std::vector<size_t>& which, Tensors& x) {
  for (const size_t t : which) {
    if (gains_[t].defined()) gains_[t] = x[t].clone();
  }
  for (const size_t t : which) {
    if (view_.has_gradient[t]) move_(+1, 0, t, x[t]);
  }
}

void Centre::bind_(std::vector<GaugeState>& states, Tensors& x) const {
  for (const size_t k : gauges_) {
    auto& state = states[k];
    state.held = shift_[k];
    const auto& gauge = plan_.gauges[k];
    state.bound = at::ones({gauge.gauge.channels}, gauge.options().dtype(at::kBool));
    state.known = state.bound.clone();
  }
  for (const size_t t : component_.tensors) {
    const auto& tensor = plan_.tensors[t];
    // The rest of a constant, or of a bias that takes up another, is rounding, and must not pass for a side that
    // is not zero.
    const auto rounding =
        (tensor.tensor.detach() - x[t]).abs() * (kRounding * epsilon(tensor.compute_type()));
    x[t] = at::where(x[t].abs() > rounding, x[t], 0);
  }
}

void Centre::project_(Tensors& vectors, bool ignore_rounding) {
  for (const size_t k : gauges_) {
    const auto& gauge = plan_.gauges[k];
    if (!view_.is_held(k)) continue;
    if (!vectors[gauge.legs.front().tensor].defined()) continue;  // a gain that takes no step
    turn_axes_(k, /*back=*/false, vectors);
    auto shift = shift_part(gauge, vectors);
    if (ignore_rounding) {
      const auto floor = shift_scale(gauge, vectors) * std::sqrt(precision(plan_, gauge));
      shift = at::where(shift.abs() > floor, shift, 0.0);
    }
    projected_[k] = shift.abs().max().item<double>();
    for (size_t l = 0; l < gauge.shift_legs(); ++l) {
      const auto& leg = gauge.legs[l];
      // Out of place: a rule may have handed out a tensor of its state.
      auto& vector = vectors[leg.tensor];
      vector = vector - shift_of_leg(leg, shift).to(vector.scalar_type());
    }
    turn_axes_(k, /*back=*/true, vectors);
  }
}

void Centre::turn_axes_(size_t k, bool back, Tensors& vectors) const {
  const auto& gauge = plan_.gauges[k];
  for (size_t l = 0; l < gauge.shift_legs(); ++l) {
    const auto& leg = gauge.legs[l];
    for (const auto& use : plan_.tensors[leg.tensor].blocks) {
      const auto& turned = plan_.leg(use);
      const bool is_here = turned.map.axis() + leg.more_axes == leg.map.axis();
      if (!plan_.gauges[use.gauge].gauge.fixes_ones || !is_here) continue;
      auto& vector = vectors[leg.tensor];
      const auto& frame = view_.states[use.gauge].frame;
      vector = turned.blocks->multiply((back ? frame.mT() : frame).to(vector.options()), vector);
    }
  }
}

}  // namespace ddc
