// Weights to coordinates, gradients to gradients with respect to them.

#include <algorithm>
#include <cmath>
#include <limits>

#include "frame/frame.h"
#include "frame/polar.h"
#include "frame/shift.h"
#include "legs.h"

namespace ddc {
namespace {

/// Of subtracting shifts that overlap. What is left falls by a constant factor with each.
constexpr int kMostSweeps = 200;

}  // namespace

Chart Frame::chart_of(const Component& component) const {
  Chart chart;
  chart.component = &component;
  chart.drained.assign(plan_.drains.size(), true);
  for (auto* by_tensor : {&chart.x, &chart.g, &chart.filled, &chart.through, &chart.before}) {
    by_tensor->resize(plan_.tensors.size());
  }
  for (auto* by_gauge :
       {&chart.shift, &chart.charge, &chart.charge_scale, &chart.angles, &chart.log_move}) {
    by_gauge->resize(plan_.gauges.size());
  }
  chart.emptied.resize(plan_.drains.size());
  chart.squares.resize(plan_.tensors.size());
  chart.projected.resize(plan_.gauges.size());
  chart.nodes.resize(plan_.nodes.size());
  return chart;
}

Tensors Frame::centre_(Chart& chart) const {
  const auto& component = *chart.component;
  Tensors x(plan_.tensors.size());
  for (const size_t t : component.tensors) x[t] = centred(chart, t, /*until=*/0);
  for (const size_t d : component.drains) {
    if (!chart.drained[d]) continue;
    const auto& drain = plan_.drains[d];
    // A copy: the vector itself is about to be centred.
    chart.emptied[d] =
        drain.map.gather_vector(drain.source_map.scatter(x[drain.source]), 0).clone();
    const auto matrix = drain.matrix ? x[*drain.matrix] : at::Tensor();
    x[drain.sink] += read_through(drain, matrix, chart.emptied[d]);
    chart.filled[drain.sink] = x[drain.sink].clone();
  }
  for (const size_t k : component.gauges) {
    const auto& gauge = plan_.gauges[k];
    if (!gauge.is_shift()) continue;
    chart.shift[k] = shift_of_weights(gauge, x);
    add_shift_(gauge, chart.shift[k], -1, x);
  }
  subtract_overlaps_(component, chart.shift, x);
  return x;
}

at::Tensor Frame::centred(const Chart& chart, size_t t, size_t until) const {
  const auto& tensor = plan_.tensors[t];
  const auto& filled = chart.filled[t];
  const auto weights = filled.defined() ? filled : tensor.tensor.detach();
  auto x = weights.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  if (tensor.offset != 0 && !filled.defined()) x.add_(tensor.offset);
  for (const auto& use : tensor.shifts) {
    if (use.gauge >= until) break;
    const auto& leg = plan_.gauges[use.gauge].legs[use.leg];
    auto change = shift_of_leg(leg, chart.shift[use.gauge]);
    if (leg.gain) {
      change = change / along_axis(centred(chart, *leg.gain, use.gauge), leg.map.axis(), x.dim());
    }
    x.sub_(change);
  }
  return x;
}

void Frame::subtract_overlaps_(const Component& component, Tensors& shifts, Tensors& x) const {
  std::vector<size_t> overlapping;
  bool several_legs = false;
  for (const size_t k : component.gauges) {
    const auto& gauge = plan_.gauges[k];
    if (!gauge.is_shift()) continue;
    for (size_t l = 0; l < gauge.shift_legs(); ++l) {
      if (plan_.tensors[gauge.legs[l].tensor].shifts.size() < 2) continue;
      several_legs = several_legs || gauge.shift_legs() > 1;
      overlapping.push_back(k);
      break;
    }
  }
  // The means along two axes of one tensor can be subtracted one after the other.
  if (!several_legs) return;
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    bool moved = false;
    for (const size_t k : overlapping) {
      const auto& gauge = plan_.gauges[k];
      const auto left = shift_of_weights(gauge, x);
      const double rounding = 8 * std::numeric_limits<double>::epsilon() *
                              x[gauge.legs.front().tensor].abs().max().item<double>();
      if (!(left.abs().max().item<double>() > rounding)) continue;
      shifts[k] = shifts[k] + left;
      add_shift_(gauge, left, -1, x);
      moved = true;
    }
    if (!moved) return;
  }
}

at::Tensor Frame::in_units(const Tensors& x, size_t t) const {
  const auto& tensor = plan_.tensors[t];
  auto result = x[t];
  for (const auto& use : tensor.scales) {
    const auto& leg = plan_.gauges[use.gauge].legs[use.leg];
    result = result * leg_factor(leg, gauge_states_[use.gauge].log_unit, -1, result.options());
  }
  if (tensor.through) {
    result =
        result * along_axis(in_units(x, tensor.through->gain), tensor.through->axis, result.dim());
  }
  return result;
}

void Frame::open_weights_(Chart& chart) const {
  const auto& component = *chart.component;
  if (!component.drains.empty() ||
      std::any_of(component.gauges.begin(), component.gauges.end(),
                  [&](size_t k) { return plan_.gauges[k].is_shift(); })) {
    centre_(chart);
  }
  for (const size_t t : component.tensors) {
    const auto& tensor = plan_.tensors[t];
    if (!tensor.through) continue;
    // No gauge turns a gain, so that its coordinates are those it has in units.
    const auto gain = coordinates_of(chart, tensor.through->gain);
    chart.through[t] = along_axis(gain, tensor.through->axis, tensor.tensor.dim());
  }
}

at::Tensor Frame::coordinates_of(const Chart& chart, size_t t) const {
  const auto& tensor = plan_.tensors[t];
  // A tensor without gauges is stepped in place. All others are worked on in a float64 copy: in
  // float32 a factor and its inverse do not multiply to one, and that error, the same in every
  // step, would make weights grow or shrink.
  if (chart.component->gauges.empty()) return tensor.tensor.detach().to(tensor.compute_type());
  auto x = centred(chart, t, plan_.gauges.size());
  for (const auto& use : tensor.scales) {
    const auto& leg = plan_.gauges[use.gauge].legs[use.leg];
    x.mul_(leg_factor(leg, gauge_states_[use.gauge].log_unit, -1, x.options()));
  }
  if (chart.through[t].defined()) x.mul_(chart.through[t]);
  for (const auto& use : tensor.blocks) {
    enter_frame_(plan_.gauges[use.gauge], use.leg, gauge_states_[use.gauge], x);
  }
  enter_polar_(plan_, chart, t, x);
  return x;
}

void Frame::find_active_(Chart& chart) const {
  const auto& component = *chart.component;
  const auto& has_gradient = chart.has_gradient;
  chart.active.assign(plan_.gauges.size(), false);
  chart.passive.assign(plan_.tensors.size(), false);
  // A vector is emptied into its biases only if all of them can take it up.
  for (const size_t d : component.drains) {
    chart.drained[d] =
        std::all_of(component.drains.begin(), component.drains.end(), [&](size_t other) {
          return plan_.drains[other].source != plan_.drains[d].source ||
                 has_gradient[plan_.drains[other].sink];
        });
  }
  const auto is_drained = [&](size_t matrix) {
    return std::all_of(component.drains.begin(), component.drains.end(), [&](size_t d) {
      return plan_.drains[d].matrix != matrix || chart.drained[d];
    });
  };
  for (const size_t k : component.gauges) {
    const auto& gauge = plan_.gauges[k];
    bool active = true;
    for (size_t l = 0; l < gauge.legs.size(); ++l) {
      const auto& leg = gauge.legs[l];
      const bool moves = l < gauge.shift_legs() || !gauge.is_shift() || !leg.bias;
      active = active && (!moves || has_gradient[leg.tensor]) &&
               (!leg.bias || (has_gradient[*leg.bias] && is_drained(leg.tensor)));
    }
    chart.active[k] = active;
  }
  for (const size_t t : component.tensors) {
    const auto& readers = plan_.tensors[t].read_by;
    chart.passive[t] =
        std::any_of(readers.begin(), readers.end(), [&](size_t k) { return chart.active[k]; });
  }
}

void Frame::open_gradients_(Chart& chart, const std::vector<StepSettings>& settings) const {
  const auto& component = *chart.component;
  for (const size_t t : component.tensors) {
    if (!chart.has_gradient[t]) continue;
    const auto& tensor = plan_.tensors[t];
    const auto& gradient = tensor.tensor.grad();
    auto g = gradient.to(tensor.compute_type());
    if (settings[t].maximize) {
      g = g.neg();
    } else if (!component.gauges.empty() && g.is_same(gradient)) {
      g = g.clone();  // the caller's gradient is not ours to change
    }
    chart.g[t] = g;
  }
  // At constant effective biases neither the vectors nor what matrices read of them is seen there.
  Tensors of_biases(plan_.drains.size());
  for (const size_t d : component.drains) {
    const auto& drain = plan_.drains[d];
    if (!chart.drained[d]) continue;
    const auto& of_sink = chart.g[drain.sink];
    of_biases[d] =
        drain.matrix ? along_axis(of_sink.clone(), 1 - drain.map.axis()) : of_sink.clone();
  }
  for (const size_t d : component.drains) {
    const auto& drain = plan_.drains[d];
    const auto& of_bias = of_biases[d];
    if (!of_bias.defined()) continue;
    auto& of_source = chart.g[drain.source];
    if (of_source.defined()) {
      const auto read = drain.map.scatter_all(
          drain.matrix ? plan_.tensors[*drain.matrix].tensor.detach() * of_bias : of_bias);
      of_source.sub_(drain.source_map.gather_vector(read, 0).to(of_source.options()));
    }
    if (!drain.matrix) continue;
    auto& of_matrix = chart.g[*drain.matrix];
    if (of_matrix.defined()) of_matrix.sub_((of_bias * chart.emptied[d]).to(of_matrix.options()));
  }
  for (const size_t t : component.tensors) {
    auto& g = chart.g[t];
    if (!g.defined()) continue;
    for (const auto& use : plan_.tensors[t].scales) {
      const auto& leg = plan_.gauges[use.gauge].legs[use.leg];
      g.mul_(leg_factor(leg, gauge_states_[use.gauge].log_unit, +1, g.options()));
    }
    if (plan_.tensors[t].through) g.div_(chart.through[t].to(g.options()));
  }
  for (const size_t k : component.gauges) {
    if (plan_.gauges[k].gauge.mixes()) pull_back_(plan_.gauges[k], gauge_states_[k], chart.g);
  }
}

Chart Frame::open(const Component& component, const std::vector<bool>& has_gradient,
                  const std::vector<StepSettings>& settings) const {
  auto chart = chart_of(component);
  chart.has_gradient = has_gradient;
  find_active_(chart);
  if (!component.gauges.empty()) open_weights_(chart);
  open_gradients_(chart, settings);
  measure_charges_(chart);
  if (!component.nodes.empty()) {
    open_polar_(
        plan_, gauge_states_, [&](size_t t) { return coordinates_of(chart, t); }, chart);
  }
  return chart;
}

void Frame::measure_charges_(Chart& chart) const {
  for (const size_t k : chart.component->gauges) {
    const auto& gauge = plan_.gauges[k];
    if (!chart.active[k] || gauge.treatment.vertical == Vertical::frozen) continue;
    if (gauge.is_shift()) {
      chart.charge[k] = shift_part(gauge, chart.g);
      // Where a channel is a single entry, there is nothing to tell a gradient from rounding by.
      const auto alone = shift_counts(gauge) < 2;
      chart.charge_scale[k] =
          at::where(alone, std::numeric_limits<double>::infinity(), shift_scale(gauge, chart.g));
      continue;
    }
    chart.charge[k] = at::zeros({gauge.gauge.channels}, at::kDouble);
    chart.charge_scale[k] = at::zeros({gauge.gauge.channels}, at::kDouble);
    for (const auto& leg : gauge.legs) {
      const auto along = chart.g[leg.tensor].to(at::kDouble) * coordinates_of(chart, leg.tensor);
      chart.charge[k] += leg.map.scatter_all(along).to(at::kCPU) * leg.exponent;
      chart.charge_scale[k] +=
          leg.map.scatter_all(along.abs()).to(at::kCPU) * std::abs(leg.exponent);
    }
  }
}

}  // namespace ddc
