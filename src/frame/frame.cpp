#include "frame/frame.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "frame/polar.h"
#include "frame/section.h"
#include "frame/shift.h"
#include "legs.h"

namespace ddc {

std::vector<std::pair<std::string, Treatment>> Frame::treatments() const {
  std::vector<std::pair<std::string, Treatment>> result;
  for (const auto& gauge : plan_.gauges) result.emplace_back(gauge.gauge.name, gauge.treatment);
  return result;
}

void Frame::advance_(Chart& chart, Tensors steps, const std::vector<StepSettings>& settings) const {
  for (const size_t k : chart.component->gauges) {
    if (!plan_.gauges[k].treatment.procrustes || !chart.active[k]) continue;
    for (const auto& leg : plan_.gauges[k].legs) {
      chart.before[leg.tensor] = coordinates_of(chart, leg.tensor);
    }
  }
  for (const size_t t : chart.component->tensors) {
    auto x = coordinates_of(chart, t);
    if (auto step = std::exchange(steps[t], {}); step.defined()) {
      take_out_(chart, t, x, step);
      const auto& own = settings[t];
      if (own.weight_decay != 0) {
        const double kept = 1 - own.lr * own.weight_decay;
        const auto outside = outside_nodes(plan_, chart, t);
        if (outside.defined()) {
          x.mul_(1 - outside * (1 - kept));
        } else {
          x.mul_(kept);
        }
      }
      x.add_(step);
    }
    chart.x[t] = x;
  }
}

std::vector<Frame::Turn> Frame::follow_(const Chart& chart, bool follow) {
  std::vector<Turn> turns;
  for (const size_t k : chart.component->gauges) {
    const auto& gauge = plan_.gauges[k];
    if (!gauge.gauge.mixes() || !chart.active[k]) continue;
    auto basis = follow_frame_(gauge, chart.x, follow, gauge_states_[k]);
    if (basis.defined()) turns.push_back({k, std::move(basis)});
  }
  return turns;
}

void Frame::turn_(const std::vector<Turn>& turns) {
  for (const auto& [k, basis] : turns) {
    gauge_states_[k].frame.copy_(gauge_states_[k].frame.matmul(basis));
  }
}

at::Tensor Frame::out_of_units_(Chart& chart, size_t t) const {
  const auto& tensor = plan_.tensors[t];
  if (!chart.has_gradient[t]) return tensor.tensor.detach().to(at::kDouble) + tensor.offset;
  auto x = std::exchange(chart.x[t], {});
  for (size_t n = 0; n < tensor.nodes.size(); ++n) {
    const auto& use = tensor.nodes[n];
    const auto factor = node_log_factor(plan_, chart, t, n).exp().to(x.options());
    x.mul_(plan_.nodes[use.node].members[use.member].map.gather_vector(factor, 1));
  }
  for (const auto& use : tensor.blocks) {
    leave_frame_(plan_.gauges[use.gauge].legs[use.leg], gauge_states_[use.gauge], x);
  }
  if (chart.through[t].defined()) x.div_(chart.through[t]);
  for (const auto& use : tensor.scales) {
    const auto& leg = plan_.gauges[use.gauge].legs[use.leg];
    const auto& move = chart.log_move[use.gauge];
    const auto& log_unit = gauge_states_[use.gauge].log_unit;
    x.mul_(leg_factor(leg, move.defined() ? log_unit + move : log_unit, +1, x.options()));
  }
  return x;
}

void Frame::lift_(Chart& chart) {
  const auto& component = *chart.component;
  if (component.gauges.empty()) {
    for (const size_t t : component.tensors) {
      at::Tensor weights = plan_.tensors[t].tensor;
      const auto x = std::exchange(chart.x[t], {});
      if (chart.has_gradient[t] && !x.is_alias_of(weights)) weights.copy_(x);
    }
    return;  // the others were stepped in place
  }
  // Gains, and what drains empty and fill, are vectors that are needed until all matrices are lifted. Of
  // matrices there is one at a time.
  std::vector<bool> kept(plan_.tensors.size());
  for (const size_t t : component.tensors) kept[t] = !plan_.tensors[t].read_by.empty();
  for (const size_t d : component.drains) {
    kept[plan_.drains[d].source] = true;
    kept[plan_.drains[d].sink] = true;
  }
  const auto write_ = [&](size_t t, at::Tensor x) {
    if (!chart.has_gradient[t]) return;
    at::Tensor weights = plan_.tensors[t].tensor;
    if (plan_.tensors[t].offset != 0) x.sub_(plan_.tensors[t].offset);
    weights.copy_(x);
  };
  Tensors unshifted(plan_.tensors.size());
  Tensors vectors(plan_.tensors.size());
  for (const size_t t : component.tensors) {
    if (kept[t]) unshifted[t] = out_of_units_(chart, t);
  }
  for (const size_t t : component.tensors) {
    if (!kept[t]) continue;
    vectors[t] = unshifted[t].clone();
    add_shifts_(chart, unshifted, 0, t, vectors[t]);
  }
  // Drains are undone in the opposite order, so that each source is what it was when it was emptied.
  Tensors emptied(plan_.drains.size());
  for (const size_t d : component.drains) {
    const auto& drain = plan_.drains[d];
    if (!chart.drained[d]) continue;
    emptied[d] = drain.map.gather_vector(drain.source_map.scatter(vectors[drain.source]), 0);
  }
  for (const size_t d : component.drains) {
    const auto& drain = plan_.drains[d];
    if (drain.matrix || !chart.drained[d]) continue;
    vectors[drain.sink] = vectors[drain.sink] - emptied[d];
  }
  for (const size_t t : component.tensors) {
    if (kept[t]) continue;
    auto x = out_of_units_(chart, t);
    add_shifts_(chart, unshifted, 0, t, x);
    for (const size_t d : component.drains) {
      const auto& drain = plan_.drains[d];
      if (drain.matrix != t || !chart.drained[d]) continue;
      vectors[drain.sink] = vectors[drain.sink] - read_through(drain, x, emptied[d]);
    }
    write_(t, std::move(x));
  }
  for (const size_t t : component.tensors) {
    if (kept[t]) write_(t, vectors[t]);
  }
}

void Frame::add_shifts_(const Chart& chart, const Tensors& unshifted, size_t from, size_t t,
                        at::Tensor& x) const {
  const auto& shifts = plan_.tensors[t].shifts;
  if (!chart.has_gradient[t]) return;
  for (auto use = shifts.rbegin(); use != shifts.rend() && use->gauge >= from; ++use) {
    const auto& leg = plan_.gauges[use->gauge].legs[use->leg];
    const bool active =
        chart.active[use->gauge] && !plan_.gauges[use->gauge].projects(Projection::never);
    auto change =
        shift_of_leg(leg, active ? gauge_states_[use->gauge].held : chart.shift[use->gauge]);
    if (leg.gain) {
      // As it was when the shift was subtracted.
      auto gain = unshifted[*leg.gain].clone();
      add_shifts_(chart, unshifted, use->gauge + 1, *leg.gain, gain);
      change = change / along_axis(gain, leg.map.axis(), leg.map.dim());
    }
    x.add_(change);
  }
}

at::Tensor Frame::gauge_coordinate(size_t k) const {
  const at::NoGradGuard no_grad;
  const auto& gauge = plan_.gauges.at(k);
  if (gauge.gauge.action == Action::rotation) return at::empty({0}, at::kDouble);
  for (const auto& component : plan_.components) {
    if (std::count(component.gauges.begin(), component.gauges.end(), k) == 0) continue;
    auto chart = chart_of(component);
    open_weights_(chart);
    if (gauge.is_shift()) return chart.shift[k];
    const auto& state = gauge_states_[k];
    Tensors x(plan_.tensors.size());
    for (const auto& leg : gauge.legs) x[leg.tensor] = coordinates_of(chart, leg.tensor);
    if (gauge.is_linear()) {
      for (const auto& leg : gauge.legs) leave_frame_(leg, state, x[leg.tensor]);
      const auto value = linear_coordinate(gauge, x);
      return at::where(state.bound.view({-1, 1, 1}), value,
                       std::numeric_limits<double>::quiet_NaN());
    }
    Squares squares(plan_.tensors.size());
    for (const auto& leg : gauge.legs) squares[leg.tensor] = AxisSquares(x[leg.tensor]);
    const bool holds_unit = gauge.is_folded() && gauge.treatment.hold == Hold::unit;
    const auto held = holds_unit ? section(gauge, squares, smallest_norm(plan_, gauge))
                                 : ratio(gauge, squares, smallest_norm(plan_, gauge));
    const double weight = holds_unit ? section_weight(gauge) : gauge.ratio_weight();
    return at::where(state.bound & held.alive, held.value + state.log_unit * weight,
                     std::numeric_limits<double>::quiet_NaN());
  }
  TORCH_INTERNAL_ASSERT(false, "gauge ", k, " is in no component");
}

int64_t Frame::degenerate_channels(size_t k) const {
  return gauge_states_.at(k).bound.logical_not().sum().item<int64_t>() *
         plan_.gauges[k].gauge.block;
}

}  // namespace ddc
