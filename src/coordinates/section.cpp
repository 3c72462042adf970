#include "coordinates/section.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace ddc {
namespace {

at::Tensor log_root(const at::Tensor& square, const at::Tensor& alive) {
  return at::where(alive, square, 1.0).log() * 0.5;
}

at::Tensor is_alive(const at::Tensor& square, double smallest) {
  return square > smallest * smallest;
}

at::Tensor leg_square(const BoundLeg& leg, const Squares& squares) {
  return leg.map.scatter_all(squares[leg.tensor].along(leg.map.axes())).to(leg.home, at::kDouble);
}

at::Tensor first_leg_square(const GaugePlan& gauge, const Squares& squares) {
  return leg_square(gauge.legs.front(), squares);
}

/// Log norm of a side at a usual initialisation. On the first leg's side only the first leg counts: the others
/// are biases, which start at zero.
at::Tensor usual_log_norm(const GaugePlan& gauge, const Side& side) {
  const double exponent = gauge.legs.front().exponent;
  if ((exponent > 0) != (&side == &gauge.plus)) return side.reference.log();
  return gauge.first_reference.log() * (side.exponent / std::abs(exponent));
}

bool is_double(const Plan& plan, const GaugePlan& gauge) {
  return std::ranges::all_of(gauge.legs, [&](const BoundLeg& leg) {
    return plan.tensors[leg.tensor].compute_type() == at::kDouble;
  });
}

}  // namespace

at::Tensor side_square(const GaugePlan& gauge, const Side& side, const Squares& squares) {
  std::map<double, at::Tensor> by_exponent;
  for (const size_t l : side.legs) {
    const auto& leg = gauge.legs[l];
    const auto sum = leg_square(leg, squares);
    auto& slot = by_exponent[std::abs(leg.exponent)];
    slot = slot.defined() ? slot + sum : sum;
  }
  at::Tensor total;
  for (const auto& [exponent, square] : by_exponent) {
    const auto part = exponent == side.exponent ? square : square.pow(side.exponent / exponent);
    total = total.defined() ? total + part : part;
  }
  return total;
}

SectionValue ratio(const GaugePlan& gauge, const Squares& squares, double smallest) {
  auto value = at::zeros({gauge.gauge.channels}, gauge.options());
  auto alive = at::ones({gauge.gauge.channels}, gauge.options().dtype(at::kBool));
  for (const Side* side : {&gauge.plus, &gauge.minus}) {
    if (side->empty()) continue;
    const auto square = side_square(gauge, *side, squares);
    const auto side_alive = is_alive(square, smallest);
    alive = alive & side_alive;
    value.add_(log_root(square, side_alive), side == &gauge.plus ? 1 : -1);
  }
  return {value, alive};
}

SectionValue first_leg_section(const GaugePlan& gauge, const Squares& squares, double smallest) {
  const auto square = first_leg_square(gauge, squares);
  const auto alive = is_alive(square, smallest);
  const double sign = gauge.legs.front().exponent > 0 ? 1 : -1;
  return {log_root(square, alive) * sign, alive};
}

SectionValue section(const GaugePlan& gauge, const Squares& squares, double smallest) {
  auto r = ratio(gauge, squares, smallest);
  if (!gauge.is_folded()) return r;
  auto first = first_leg_section(gauge, squares, smallest);
  return {first.value, first.alive & r.alive};
}

double section_weight(const GaugePlan& gauge) {
  return gauge.is_folded() ? std::abs(gauge.legs.front().exponent) : gauge.ratio_weight();
}

at::Tensor section_target(const GaugePlan& gauge) {
  if (gauge.is_folded()) {
    return gauge.first_reference.log() * (gauge.legs.front().exponent > 0 ? 1.0 : -1.0);
  }
  if (gauge.minus.empty()) return gauge.plus.reference.log();
  if (gauge.plus.empty()) return -gauge.minus.reference.log();
  if (gauge.treatment.coordinates == Coordinates::standard) {
    return usual_log_norm(gauge, gauge.plus) - usual_log_norm(gauge, gauge.minus);
  }
  return at::zeros({gauge.gauge.channels}, gauge.options());
}

at::Tensor one_sided_log_unit(const GaugePlan& gauge, const Squares& squares, double smallest) {
  auto log_unit = at::zeros({gauge.gauge.channels}, gauge.options());
  // Later assignments win: the section's own norm is the best yardstick where it is there.
  const auto assign = [&](const at::Tensor& square, const at::Tensor& reference, double exponent) {
    const auto alive = is_alive(square, smallest);
    const auto from_here = (log_root(square, alive) - reference.log()) / exponent;
    log_unit = at::where(alive, from_here, log_unit);
  };
  if (!gauge.plus.empty()) {
    assign(side_square(gauge, gauge.plus, squares), gauge.plus.reference, gauge.plus.exponent);
  }
  if (!gauge.minus.empty()) {
    assign(side_square(gauge, gauge.minus, squares), gauge.minus.reference, -gauge.minus.exponent);
  }
  if (gauge.is_folded()) {
    assign(first_leg_square(gauge, squares), gauge.first_reference, gauge.legs.front().exponent);
  }
  return log_unit;
}

at::Tensor comparable(const GaugePlan& gauge, const Squares& squares, double smallest) {
  const double log_limit = std::log(100.0);
  const auto value = section(gauge, squares, smallest);
  if (gauge.plus.empty() || gauge.minus.empty()) return value.alive;
  const auto relative = [&](const Side& side) {
    const bool by_first_leg =
        gauge.is_folded() && (gauge.legs.front().exponent > 0) == (&side == &gauge.plus);
    const auto square =
        by_first_leg ? first_leg_square(gauge, squares) : side_square(gauge, side, squares);
    const auto& reference = by_first_leg ? gauge.first_reference : side.reference;
    return log_root(square, is_alive(square, smallest)) - reference.log();
  };
  return value.alive & ((relative(gauge.plus) - relative(gauge.minus)).abs() <= log_limit);
}

void update_binding_(const GaugePlan& gauge, const Squares& squares, double smallest,
                     GaugeState& state) {
  const auto now = section(gauge, squares, smallest);
  const auto entering = state.bound.logical_not() & comparable(gauge, squares, smallest);
  const auto first_time = entering & state.known.logical_not();
  const auto r = ratio(gauge, squares, smallest).value;
  state.bound.logical_and_(now.alive).logical_or_(entering);
  state.known.logical_or_(entering);
  state.target.copy_(at::where(first_time, now.value, state.target));
  state.held.copy_(at::where(first_time, r + state.log_unit * gauge.ratio_weight(), state.held));
}

void move_squares_(const GaugePlan& gauge, const at::Tensor& log_c, Squares& squares) {
  for (const auto& leg : gauge.legs) {
    if (leg.seen_through_first || squares[leg.tensor].empty()) continue;
    const auto factor = (log_c * (2 * leg.exponent)).exp().to(squares[leg.tensor].device());
    squares[leg.tensor].multiply_(leg.map.axes(), leg.map.gather_vector(factor, 1));
  }
}

double smallest_norm(const Plan& plan, const GaugePlan& gauge) {
  return is_double(plan, gauge) ? 1e-140 : 1e-30;
}

double precision(const Plan& plan, const GaugePlan& gauge) {
  return is_double(plan, gauge) ? std::numeric_limits<double>::epsilon()
                                : std::numeric_limits<float>::epsilon();
}

}  // namespace ddc
