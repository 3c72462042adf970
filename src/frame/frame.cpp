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
#include "sweeps.h"

namespace ddc {
namespace {

/// Orbits of gauges that share a tensor are not orthogonal; alternating projections are repeated until
/// they find nothing more, or so often.
constexpr int kMostProjections = 50;

at::Tensor leg_factor(const BoundLeg& leg, const at::Tensor& log_unit, double sign,
                      const at::TensorOptions& options) {
  return leg.map.gather_vector((log_unit * (sign * leg.exponent)).exp().to(options), 1);
}

/// Of the least precise of the tensors that a gauge acts on.
double precision(const Plan& plan, const GaugePlan& gauge) {
  for (const auto& leg : gauge.legs) {
    if (plan.tensors[leg.tensor].compute_type() != at::kDouble) {
      return std::numeric_limits<float>::epsilon();
    }
  }
  return std::numeric_limits<double>::epsilon();
}

/// `sink + matrix source`, for the vector that the source holds per index of the matrix's axis.
at::Tensor read_through(const Drain& drain, const at::Tensor& matrix, const at::Tensor& source) {
  return (matrix * source).sum(drain.matrix_map.axis());
}

}  // namespace

Tensors Frame::centred(const Component& component, const std::vector<bool>& drained, Tensors& shifts,
                       Tensors& emptied) const {
  shifts.resize(plan_.gauges.size());
  emptied.resize(plan_.drains.size());
  Tensors x(plan_.tensors.size());
  for (const size_t t : component.tensors) {
    const auto& tensor = plan_.tensors[t];
    // A tensor without gauges is stepped in place. All others are worked on in a float64 copy: in
    // float32 a factor and its inverse do not multiply to one, and that error, the same in every
    // step, would make weights grow or shrink.
    x[t] = component.gauges.empty() ? tensor.tensor.detach().to(tensor.compute_type())
                                    : tensor.tensor.detach().to(at::kDouble) + tensor.offset;
  }
  for (const size_t d : component.drains) {
    if (!drained[d]) continue;
    const auto& drain = plan_.drains[d];
    // A copy: the vector itself is about to be centred.
    emptied[d] =
        drain.matrix_map.gather_vector(drain.source_map.scatter(x[drain.source]), 0).clone();
    x[drain.sink] += read_through(drain, x[drain.matrix], emptied[d]);
  }
  for (const size_t k : component.gauges) {
    const auto& gauge = plan_.gauges[k];
    if (!gauge.is_shift()) continue;
    shifts[k] = shift_of_weights(gauge, x);
    add_shift_(gauge, shifts[k], -1, x);
  }
  return x;
}

at::Tensor Frame::in_units(const Tensors& x, size_t t) const {
  const auto& tensor = plan_.tensors[t];
  auto result = x[t];
  for (const auto& use : tensor.scales) {
    const auto& leg = plan_.gauges[use.gauge].legs[use.leg];
    result =
        result * leg_factor(leg, gauge_states_[use.gauge].log_unit, -1, result.options());
  }
  if (tensor.through) {
    result = result * along_axis(in_units(x, tensor.through->gain), tensor.through->axis);
  }
  return result;
}

Tensors Frame::coordinates(const Component& component, const std::vector<bool>& drained,
                           Tensors& shifts, Tensors& emptied) const {
  auto x = centred(component, drained, shifts, emptied);
  Tensors result(x.size());
  for (const size_t t : component.tensors) result[t] = in_units(x, t);
  for (const size_t k : component.gauges) {
    if (!plan_.gauges[k].gauge.mixes()) continue;
    enter_frame_(plan_.gauges[k], gauge_states_[k], result);
  }
  return result;
}

void Frame::find_active_(Chart& chart, const std::vector<bool>& has_gradient) const {
  const auto& component = *chart.component;
  chart.active.assign(plan_.gauges.size(), false);
  chart.passive.assign(plan_.tensors.size(), false);
  chart.drained.assign(plan_.drains.size(), false);
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
      const bool moves = l < gauge.shift_legs() || !gauge.is_shift();
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

void Frame::open_gradients_(Chart& chart, const std::vector<bool>& has_gradient,
                            const Tensors& emptied,
                            const std::vector<StepSettings>& settings) const {
  const auto& component = *chart.component;
  for (const size_t t : component.tensors) {
    if (!has_gradient[t]) continue;
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
    of_biases[d] = along_axis(chart.g[drain.sink].clone(), 1 - drain.matrix_map.axis());
  }
  for (const size_t d : component.drains) {
    const auto& drain = plan_.drains[d];
    const auto& of_bias = of_biases[d];
    if (!of_bias.defined()) continue;
    auto& of_source = chart.g[drain.source];
    if (of_source.defined()) {
      const auto& matrix = plan_.tensors[drain.matrix].tensor.detach();
      const auto read = drain.matrix_map.scatter_all(matrix * of_bias);
      of_source.sub_(drain.source_map.gather_vector(read, 0).to(of_source.options()));
    }
    auto& of_matrix = chart.g[drain.matrix];
    if (of_matrix.defined()) of_matrix.sub_((of_bias * emptied[d]).to(of_matrix.options()));
  }
  for (const size_t t : component.tensors) {
    auto& g = chart.g[t];
    if (!g.defined()) continue;
    for (const auto& use : plan_.tensors[t].scales) {
      const auto& leg = plan_.gauges[use.gauge].legs[use.leg];
      g.mul_(leg_factor(leg, gauge_states_[use.gauge].log_unit, +1, g.options()));
    }
    if (chart.through[t].defined()) g.div_(chart.through[t].to(g.options()));
  }
  for (const size_t k : component.gauges) {
    if (plan_.gauges[k].gauge.mixes()) pull_back_(plan_.gauges[k], gauge_states_[k], chart.g);
  }
}

Chart Frame::open(const Component& component, const std::vector<bool>& has_gradient,
                  const std::vector<StepSettings>& settings) const {
  Chart chart;
  chart.component = &component;
  chart.g.resize(plan_.tensors.size());
  chart.squares.resize(plan_.tensors.size());
  chart.through.resize(plan_.tensors.size());
  chart.before.resize(plan_.tensors.size());
  chart.charge.resize(plan_.gauges.size());
  chart.charge_scale.resize(plan_.gauges.size());
  chart.log_move.resize(plan_.gauges.size());
  chart.projected.resize(plan_.gauges.size());
  chart.orbits.resize(plan_.gauges.size());
  chart.nodes.resize(plan_.nodes.size());
  find_active_(chart, has_gradient);
  Tensors emptied;
  chart.x = coordinates(component, chart.drained, chart.shift, emptied);
  for (const size_t t : component.tensors) {
    const auto& through = plan_.tensors[t].through;
    // No gauge turns a gain, so that its coordinates are those it has in units.
    if (through) chart.through[t] = along_axis(chart.x[through->gain].clone(), through->axis);
  }
  open_gradients_(chart, has_gradient, emptied, settings);
  for (const size_t k : component.gauges) {
    const auto& gauge = plan_.gauges[k];
    if (!gauge.gauge.mixes() || !chart.active[k]) continue;
    chart.orbits[k] = orbit_at(gauge, chart.x);
    if (!gauge.gauge.procrustes) continue;
    for (const auto& leg : gauge.legs) chart.before[leg.tensor] = chart.x[leg.tensor].clone();
  }
  measure_charges_(chart);
  if (!component.nodes.empty()) open_polar_(plan_, gauge_states_, chart);
  return chart;
}

void Frame::measure_charges_(Chart& chart) const {
  for (const size_t k : chart.component->gauges) {
    const auto& gauge = plan_.gauges[k];
    if (!chart.active[k] || gauge.gauge.vertical == Vertical::frozen) continue;
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
      const auto along = chart.g[leg.tensor].to(at::kDouble) * chart.x[leg.tensor];
      chart.charge[k] += leg.map.scatter_all(along).to(at::kCPU) * leg.exponent;
      chart.charge_scale[k] +=
          leg.map.scatter_all(along.abs()).to(at::kCPU) * std::abs(leg.exponent);
    }
  }
}

void Frame::project_shifts_(Chart& chart, Tensors& vectors, bool ignore_rounding) const {
  for (const size_t k : chart.component->gauges) {
    const auto& gauge = plan_.gauges[k];
    if (!gauge.is_shift() || !chart.active[k]) continue;
    if (chart.passive[gauge.legs.front().tensor] && !vectors[gauge.legs.front().tensor].defined()) {
      continue;  // takes no step
    }
    // A mean along an axis that is turned is one in the axes before they were.
    for (size_t l = 0; l < gauge.shift_legs(); ++l) {
      const auto& leg = gauge.legs[l];
      for (const auto& use : plan_.tensors[leg.tensor].blocks) {
        const auto& other = plan_.gauges[use.gauge];
        if (!other.gauge.fixes_ones || other.legs[use.leg].map.axis() != leg.map.axis()) continue;
        auto& vector = vectors[leg.tensor];
        vector = other.legs[use.leg].blocks->multiply(
            gauge_states_[use.gauge].frame.to(vector.options()), vector);
      }
    }
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
      for (const auto& use : plan_.tensors[leg.tensor].blocks) {
        const auto& other = plan_.gauges[use.gauge];
        if (!other.gauge.fixes_ones || other.legs[use.leg].map.axis() != leg.map.axis()) continue;
        vector = other.legs[use.leg].blocks->multiply(
            gauge_states_[use.gauge].frame.transpose(-1, -2).to(vector.options()), vector);
      }
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
  const double smallest = std::sqrt(precision(plan_, gauge));
  auto gradient = chart.charge[k];
  gradient = at::where(gradient.abs() > chart.charge_scale[k] * smallest, gradient, 0.0);
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
        for (const auto& leg : gauge.legs) chart.squares[leg.tensor] = moved(leg.tensor).square();
        largest = std::max(largest, difference);
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
    if (!chart.active[k]) continue;
    if (gauge.is_scale() || gauge.is_linear()) sections.push_back(k);
    if (gauge.is_scale()) continue;
    gauge_states_[k].imbalance = chart.projected[k];
    if (gauge.is_shift()) move_vertical_(chart, k, settings_of(k, settings));
  }
  for (const size_t t : component.tensors) {
    if (!sections.empty()) chart.squares[t] = chart.x[t].square();
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
    // In balanced and polar coordinates a unit that is left alone is an r that is left alone.
    if (gauge.coordinates != Coordinates::folded) continue;
    const auto r = ratio(gauge, chart.squares, smallest_norm(plan_, gauge));
    if (gauge.hold == Hold::ratio) {
      state.log_unit = at::where(state.bound & r.alive,
                                 (state.held - r.value) / gauge.ratio_weight(), state.log_unit);
    } else {
      state.held =
          at::where(state.bound, r.value + state.log_unit * gauge.ratio_weight(), state.held);
    }
  }
  for (const size_t k : component.gauges) {
    const auto& gauge = plan_.gauges[k];
    if (gauge.gauge.mixes() && gauge.gauge.procrustes && chart.active[k]) {
      procrustes_(gauge, chart.before, chart.x);
    }
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
      auto change =
          shift_of_leg(leg, chart.active[*k] ? gauge_states_[*k].held : chart.shift[*k]);
      if (leg.gain) change = change / along_axis(lifted[*leg.gain], leg.map.axis());
      lifted[leg.tensor] = lifted[leg.tensor] + change;
    }
  }
  for (auto d = component.drains.rbegin(); d != component.drains.rend(); ++d) {
    if (!chart.drained[*d]) continue;
    const auto& drain = plan_.drains[*d];
    const auto held = drain.matrix_map.gather_vector(drain.source_map.scatter(lifted[drain.source]), 0);
    lifted[drain.sink] = lifted[drain.sink] - read_through(drain, lifted[drain.matrix], held);
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
    const bool holds_unit =
        gauge.coordinates == Coordinates::folded && gauge.hold == Hold::unit;
    const auto held = holds_unit ? section(gauge, squares, smallest_norm(plan_, gauge))
                                 : ratio(gauge, squares, smallest_norm(plan_, gauge));
    const double weight = holds_unit ? section_weight(gauge) : gauge.ratio_weight();
    return at::where(state.bound & held.alive, held.value + state.log_unit * weight,
                     std::numeric_limits<double>::quiet_NaN());
  }
  TORCH_INTERNAL_ASSERT(false, "gauge ", k, " is in no component");
}

int64_t Frame::degenerate_channels(size_t k) const {
  return gauge_states_.at(k).bound.logical_not().sum().item<int64_t>() * plan_.gauges[k].gauge.block;
}

}  // namespace ddc
