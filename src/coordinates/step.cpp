#include "coordinates/step.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "coordinates/coordinate_system.h"
#include "coordinates/shift.h"

namespace ddc {

ComponentStep::ComponentStep(CoordinateSystem& system, const Component& component,
                             const std::vector<bool>& has_gradient,
                             const std::vector<StepSettings>& settings)
    : plan_(system.plan()),
      component_(component),
      settings_(settings),
      states_(system.gauge_states()),
      radial_states_(system.radial_states()),
      maps_(ComponentView(plan_, component, states_, has_gradient)) {
  maps_.read_();
  open_gradients_();
  // The gradient of an invariant loss has no part along an orbit but rounding. Taking that out would
  // put it into entries whose gradient is zero (rows of tokens that are not in the batch, units that
  // are not active), where Adam makes steps of it.
  maps_.centre.project_(g_, /*ignore_rounding=*/true);
  maps_.polar.project_(coordinates_, g_);
}

void ComponentStep::open_gradients_() {
  for (const size_t t : component_.tensors) {
    if (!view_.has_gradient[t]) continue;
    const auto& gradient = plan_.tensors[t].tensor.grad();
    auto g = gradient.to(plan_.tensors[t].compute_type());
    if (settings_[t].maximize) {
      g = g.neg();
    } else if (g.is_same(gradient)) {
      g = g.clone();  // the caller's gradient is not ours to change
    }
    g_[t] = g;
  }
  // Vertical rules move gauge coordinates, which polar ones leave alone.
  for (const auto* map : maps_.between(nullptr, &maps_.polar)) map->pull_back_(g_);
  measure_charges_();
  for (const auto* map : maps_.between(&maps_.polar, nullptr)) map->pull_back_(g_);
  maps_.polar.measure_charges_(g_, coordinates_);
}

void ComponentStep::measure_charges_() {
  for (const size_t k : component_.gauges) {
    const auto& gauge = plan_.gauges[k];
    if (!view_.active[k] || gauge.treatment.vertical == Vertical::frozen) continue;
    if (gauge.is_shift()) {
      Tensors g(view_);
      for (const auto& leg : gauge.legs) g[leg.tensor] = g_[leg.tensor];
      maps_.centre.turn_axes_(k, /*back=*/false, g);
      charge_[k] = shift_part(gauge, g);
      // Where a channel is a single entry, there is nothing to tell a gradient from rounding by.
      const auto alone = shift_counts(gauge) < 2;
      charge_scale_[k] =
          at::where(alone, std::numeric_limits<double>::infinity(), shift_scale(gauge, g));
      continue;
    }
    charge_[k] = at::zeros({gauge.gauge.channels}, gauge.options());
    charge_scale_[k] = at::zeros({gauge.gauge.channels}, gauge.options());
    for (const auto& leg : gauge.legs) {
      const auto along =
          g_[leg.tensor].to(at::kDouble) * maps_.coordinates(leg.tensor, &maps_.polar);
      charge_[k] += leg.map.scatter_all(along).to(leg.home) * leg.exponent;
      charge_scale_[k] += leg.map.scatter_all(along.abs()).to(leg.home) * std::abs(leg.exponent);
    }
  }
}

bool ComponentStep::projects_momenta() const {
  return std::ranges::any_of(
      component_.gauges, [&](size_t k) { return plan_.gauges[k].projects(Projection::momentum); });
}

void ComponentStep::project_momenta_(Tensors& momenta) {
  maps_.change_basis.find_angles_(coordinates_, momenta, Projection::momentum);
  maps_.change_basis.take_out_(coordinates_, momenta);
}

void ComponentStep::advance_(Tensors steps) {
  for (const size_t k : component_.gauges) {
    if (!plan_.gauges[k].treatment.procrustes || !view_.active[k]) continue;
    for (const auto& leg : plan_.gauges[k].legs) before_[leg.tensor] = coordinates_(leg.tensor);
  }
  for (const size_t t : component_.tensors) {
    auto x = coordinates_(t);
    if (auto step = std::exchange(steps[t], {}); step.defined()) {
      maps_.change_basis.take_out_one_(t, x, step);
      const auto& own = settings_[t];
      if (own.weight_decay != 0) {
        const double kept = 1 - own.lr * own.weight_decay;
        const auto outside = maps_.polar.outside_nodes(t);
        if (outside.defined()) {
          x.mul_(1 - outside * (1 - kept));
        } else {
          x.mul_(kept);
        }
      }
      x.add_(step);
    }
    x_[t] = x;
  }
}

void ComponentStep::lift_() {
  // What other tensors are lifted with is kept until all are. Of the others there is one at a time.
  std::vector<size_t> kept;
  std::vector<size_t> others;
  for (const size_t t : component_.tensors) {
    const auto is_drained = [&](size_t d) {
      return plan_.drains[d].source == t || plan_.drains[d].sink == t;
    };
    const bool is_kept =
        !plan_.tensors[t].read_by.empty() || std::ranges::any_of(component_.drains, is_drained);
    (is_kept ? kept : others).push_back(t);
    if (!view_.has_gradient[t]) x_[t] = maps_.value(t);
  }
  const auto to_weights_ = [&](const std::vector<size_t>& which) {
    for (auto map = maps_.all.rbegin(); map != maps_.all.rend(); ++map) {
      (*map)->to_weights_(which, x_);
    }
  };
  const auto write_ = [&](size_t t) {
    const auto& tensor = plan_.tensors[t];
    auto x = std::exchange(x_[t], {});
    if (!view_.has_gradient[t]) return;
    if (tensor.offset != 0) x.sub_(tensor.offset);
    tensor.tensor.detach().copy_(x);
  };
  to_weights_(kept);
  for (const size_t t : others) {
    to_weights_({t});
    write_(t);
  }
  std::ranges::for_each(kept, write_);
}

std::vector<ComponentStep::Turn> ComponentStep::make_(Tensors steps, bool follow) {
  maps_.centre.project_(steps, /*ignore_rounding=*/false);
  maps_.change_basis.find_angles_(coordinates_, steps, Projection::step);
  if (!component_.nodes.empty()) {
    // What is left of a radius is a matter of the steps as they will be made.
    maps_.change_basis.take_out_(coordinates_, steps);
    maps_.polar.project_(coordinates_, steps);
  }
  advance_(std::move(steps));
  rebalance_();
  std::vector<Turn> turns;
  for (const size_t k : component_.gauges) {
    if (!plan_.gauges[k].gauge.mixes() || !view_.active[k]) continue;
    auto basis = follow_frame_(plan_.gauges[k], x_, follow, states_[k]);
    if (basis.defined()) turns.push_back({k, std::move(basis)});
  }
  lift_();
  for (const auto& [k, basis] : turns) states_[k].frame.copy_(states_[k].frame.matmul(basis));
  return turns;
}

}  // namespace ddc
