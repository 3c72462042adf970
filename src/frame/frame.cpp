#include "ddc/frame/frame.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>

#include "ddc/frame/polar.h"
#include "ddc/frame/section.h"
#include "ddc/frame/shift.h"
#include "legs.h"

namespace ddc {

void Frame::advance_(Chart& chart, const std::vector<at::Tensor>& steps,
                     const std::vector<StepSettings>& settings) const {
  for (const size_t t : chart.component->tensors) {
    if (!steps[t].defined()) continue;
    const auto& own = settings[t];
    if (own.weight_decay != 0) {
      const double kept = 1 - own.lr * own.weight_decay;
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

void Frame::lift_(const Chart& chart) {
  const auto& component = *chart.component;
  if (component.gauges.empty()) {
    for (const size_t t : component.tensors) {
      at::Tensor weights = plan_.tensors[t].tensor;
      if (chart.g[t].defined() && !chart.x[t].is_alias_of(weights)) weights.copy_(chart.x[t]);
    }
    return;  // the others were stepped in place
  }
  Tensors lifted(plan_.tensors.size());
  for (const size_t t : component.tensors) {
    const auto& tensor = plan_.tensors[t];
    auto& x = lifted[t];
    if (!chart.g[t].defined()) {
      x = tensor.tensor.detach().to(at::kDouble) + tensor.offset;
      continue;
    }
    x = chart.x[t];
    for (size_t n = 0; n < tensor.nodes.size(); ++n) {
      const auto& use = tensor.nodes[n];
      const auto factor = node_log_factor(plan_, chart, t, n).exp().to(x.options());
      x = x * plan_.nodes[use.node].members[use.member].map.gather_vector(factor, 1);
    }
    for (const auto& use : tensor.blocks) {
      x = leave_frame(plan_.gauges[use.gauge].legs[use.leg], gauge_states_[use.gauge], x);
    }
    if (chart.through[t].defined()) x = x / chart.through[t];
    for (const auto& use : tensor.scales) {
      const auto& leg = plan_.gauges[use.gauge].legs[use.leg];
      const auto& move = chart.log_move[use.gauge];
      const auto& log_unit = gauge_states_[use.gauge].log_unit;
      x = x * leg_factor(leg, move.defined() ? log_unit + move : log_unit, +1, x.options());
    }
  }
  // Shifts and drains undo what `centred` did, in the opposite order.
  for (auto k = component.gauges.rbegin(); k != component.gauges.rend(); ++k) {
    const auto& gauge = plan_.gauges[*k];
    if (!gauge.is_shift()) continue;
    for (size_t l = 0; l < gauge.shift_legs(); ++l) {
      const auto& leg = gauge.legs[l];
      if (!chart.g[leg.tensor].defined()) continue;
      auto change = shift_of_leg(leg, chart.active[*k] ? gauge_states_[*k].held : chart.shift[*k]);
      if (leg.gain) change = change / along_axis(lifted[*leg.gain], leg.map.axis(), leg.map.dim());
      lifted[leg.tensor] = lifted[leg.tensor] + change;
    }
  }
  for (auto d = component.drains.rbegin(); d != component.drains.rend(); ++d) {
    if (!chart.drained[*d]) continue;
    const auto& drain = plan_.drains[*d];
    const auto held = drain.map.gather_vector(drain.source_map.scatter(lifted[drain.source]), 0);
    lifted[drain.sink] = lifted[drain.sink] - read_through(drain, lifted, held);
  }
  for (const size_t t : component.tensors) {
    if (!chart.g[t].defined()) continue;
    at::Tensor weights = plan_.tensors[t].tensor;
    weights.copy_(plan_.tensors[t].offset == 0 ? lifted[t] : lifted[t] - plan_.tensors[t].offset);
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

at::Tensor Frame::gauge_coordinate(size_t k) const {
  const at::NoGradGuard no_grad;
  const auto& gauge = plan_.gauges.at(k);
  if (gauge.gauge.action == Action::rotation) return at::empty({0}, at::kDouble);
  for (const auto& component : plan_.components) {
    if (std::count(component.gauges.begin(), component.gauges.end(), k) == 0) continue;
    Tensors shifts;
    Tensors emptied;
    auto x = coordinates(component, std::vector<bool>(plan_.drains.size(), true), shifts, emptied);
    if (gauge.is_shift()) return shifts[k];
    const auto& state = gauge_states_[k];
    if (gauge.is_linear()) {
      for (const auto& leg : gauge.legs) {
        x[leg.tensor] = leave_frame(leg, state, x[leg.tensor]);
      }
      const auto value = linear_coordinate(gauge, x);
      return at::where(state.bound.view({-1, 1, 1}), value,
                       std::numeric_limits<double>::quiet_NaN());
    }
    Squares squares(plan_.tensors.size());
    for (const size_t t : component.tensors) squares[t] = x[t].square();
    const bool holds_unit = gauge.coordinates == Coordinates::folded && gauge.hold == Hold::unit;
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
