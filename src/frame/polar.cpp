#include "frame/polar.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "frame/scalar_rule.h"

namespace ddc {
namespace {

/// A tensor in several nodes shares its scale between them.
double share(const TensorPlan& tensor) { return 1.0 / static_cast<double>(tensor.nodes.size()); }

/// Sum over the members of values that are given per member, in channels.
template <class Values>
at::Tensor node_sum(const PolarNode& node, const Values& values) {
  at::Tensor total;
  for (const auto& member : node.members) {
    const auto part = member.map.scatter_all(values(member)).to(at::kCPU);
    total = total.defined() ? total + part : part;
  }
  return total;
}

void multiply_(at::Tensor& tensor, const ChannelMap& map, const at::Tensor& log_factor) {
  tensor.mul_(map.gather_vector(log_factor.exp().to(tensor.options()), 1));
}

void multiply_(AxisSquares& squares, const ChannelMap& map, const at::Tensor& log_factor) {
  const auto factor = (log_factor * 2).exp().to(squares.device());
  squares.multiply_(map.axis(), map.gather_vector(factor, 1));
}

void multiply_squares_(const PolarNode& node, const at::Tensor& log_factor, Squares& squares) {
  for (const auto& member : node.members) {
    multiply_(squares[member.tensor], member.map, log_factor);
  }
}

/// Scales every node back to the norm it had: exactly in one pass, unless nodes share tensors and
/// disturb each other. Of those a few passes are made, not a solution: where norms of rows and
/// columns are asked for at once, convergence is slow, and nothing rests on it. Each pass is
/// invariant, and re-balancing holds the gauge coordinates whatever the norms are.
void restore_norms_(const Plan& plan, Chart& chart) {
  const int passes = chart.component->coupled ? 3 : 1;
  for (int pass = 0; pass < passes; ++pass) {
    for (const size_t n : chart.component->nodes) {
      auto& node = chart.nodes[n];
      const auto square = node_sum(plan.nodes[n], [&](const PolarNode::Member& member) {
        return chart.squares[member.tensor].along(member.map.axis());
      });
      const auto usable = node.live & (square > 0);
      const auto log_factor =
          at::where(usable, (node.norm_square / at::where(usable, square, 1.0)).log() * 0.5, 0.0);
      multiply_squares_(plan.nodes[n], log_factor, chart.squares);
      node.log_factor += log_factor;
    }
  }
}

void move_radius_(const Plan& plan, const RadialMode& mode, Chart& chart, ScalarMoments& moments,
                  const StepSettings& settings) {
  const auto& treatment = plan.gauges[mode.gauge].treatment;
  const double norm_square = mode.weight_norm_squared;
  auto live = chart.nodes[mode.nodes.front()].live;
  auto log_s = at::zeros_like(chart.nodes[mode.nodes.front()].log_rho);
  auto gradient = at::zeros_like(log_s);
  for (size_t i = 0; i < mode.nodes.size(); ++i) {
    const auto& node = chart.nodes[mode.nodes[i]];
    live = live & node.live;
    log_s.add_(node.log_rho, mode.weights[i]);
    gradient.add_(node.charge, mode.weights[i]);
  }
  gradient = at::where(live, gradient / norm_square, 0.0);  // dL / d log s
  at::Tensor change;
  if (treatment.radial == Radial::linear) {
    const auto s = log_s.exp();
    const double s_star = settings.weight_decay > 0 ? 1 / (norm_square * settings.weight_decay) : 0;
    gradient = gradient / s.clamp_min(std::max(s_star / 5, 1e-300));
    const auto step = scalar_step(moments, gradient, settings);
    const auto stepped = s * std::exp(-norm_square * settings.lr * settings.weight_decay) + step;
    change = stepped.clamp_min(1e-300).log() - log_s;
  } else {
    // In the unit coordinate u = log s / |w|: dL/du = |w| dL/dlog s, and decay subtracts |w| lr wd.
    const double norm = std::sqrt(norm_square);
    const auto step = scalar_step(moments, gradient * norm, settings);
    change = (step - norm * settings.lr * settings.weight_decay) * norm;
  }
  change = at::where(live, change.clamp(-treatment.max_log_step, treatment.max_log_step), 0.0);
  for (size_t i = 0; i < mode.nodes.size(); ++i) {
    const auto log_factor = change * (mode.weights[i] / norm_square);
    chart.nodes[mode.nodes[i]].log_factor += log_factor;
    multiply_squares_(plan.nodes[mode.nodes[i]], log_factor, chart.squares);
  }
}

}  // namespace

void enter_polar_(const Plan& plan, const Chart& chart, size_t tensor, at::Tensor& x) {
  for (const auto& use : plan.tensors[tensor].nodes) {
    const auto& log_rho = chart.nodes[use.node].log_rho;
    if (!log_rho.defined()) continue;  // not open yet
    const auto& map = plan.nodes[use.node].members[use.member].map;
    multiply_(x, map, log_rho * -share(plan.tensors[tensor]));
  }
}

void open_polar_(const Plan& plan, const std::vector<GaugeState>& states, const CoordinatesOf& x,
                 Chart& chart) {
  const auto node_square = [&](size_t n) {
    return node_sum(plan.nodes[n],
                    [&](const PolarNode::Member& member) { return x(member.tensor).square(); });
  };
  std::vector<at::Tensor> squares(plan.nodes.size());
  for (const size_t n : chart.component->nodes) squares[n] = node_square(n);
  for (const size_t n : chart.component->nodes) {
    auto& node = chart.nodes[n];
    node.live = squares[n] > 0;
    for (const auto& mover : plan.nodes[n].movers) {
      if (chart.active[mover.gauge]) {
        node.live = node.live & states[mover.gauge].bound;
      } else {
        node.live = at::zeros_like(node.live);
      }
    }
    node.log_rho = at::where(node.live, at::where(node.live, squares[n], 1.0).log() * 0.5, 0.0);
    node.log_factor = at::zeros_like(node.log_rho);
  }
  for (const size_t t : chart.component->tensors) {
    const auto& tensor = plan.tensors[t];
    if (!chart.g[t].defined()) continue;
    for (const auto& use : tensor.nodes) {
      const auto& map = plan.nodes[use.node].members[use.member].map;
      multiply_(chart.g[t], map, chart.nodes[use.node].log_rho * share(tensor));
    }
  }
  for (const size_t n : chart.component->nodes) {
    auto& node = chart.nodes[n];
    node.norm_square = node_square(n);
    // Live nodes belong to active gauges, all of whose tensors have a gradient.
    node.charge = at::zeros_like(node.log_rho);
    if (!node.live.any().item<bool>()) continue;
    node.charge = node_sum(plan.nodes[n], [&](const PolarNode::Member& member) {
      return chart.g[member.tensor] * x(member.tensor);
    });
  }
}

void project_polar_(const Plan& plan, const Chart& chart, const CoordinatesOf& x,
                    std::vector<at::Tensor>& vectors) {
  for (const size_t n : chart.component->nodes) {
    const auto& node = chart.nodes[n];
    if (!node.live.any().item<bool>()) continue;
    const auto product = node_sum(plan.nodes[n], [&](const PolarNode::Member& member) {
      return vectors[member.tensor] * x(member.tensor);
    });
    const auto coefficient =
        at::where(node.live, product / at::where(node.live, node.norm_square, 1.0), 0.0);
    for (const auto& member : plan.nodes[n].members) {
      auto& vector = vectors[member.tensor];
      auto radial = x(member.tensor);
      radial.mul_(member.map.gather_vector(coefficient.to(radial.options()), 0));
      vector = (vector - radial).to(vector.scalar_type());
    }
  }
}

at::Tensor outside_nodes(const Plan& plan, const Chart& chart, size_t tensor) {
  at::Tensor outside;
  for (const auto& use : plan.tensors[tensor].nodes) {
    const auto options = plan.tensors[tensor].tensor.options().dtype(at::kDouble);
    const auto not_live = chart.nodes[use.node].live.logical_not().to(options);
    const auto here = plan.nodes[use.node].members[use.member].map.gather_vector(not_live, 1);
    outside = outside.defined() ? outside * here : here;
  }
  return outside;
}

void restore_and_move_radius_(const Plan& plan, Chart& chart, std::vector<ScalarMoments>& radial,
                              const std::vector<StepSettings>& settings) {
  restore_norms_(plan, chart);
  for (const size_t m : chart.component->radial_modes) {
    const auto& mode = plan.radial_modes[m];
    const size_t first = plan.gauges[mode.gauge].legs.front().tensor;
    bool any_live = true;
    for (const size_t n : mode.nodes) any_live = any_live && chart.nodes[n].live.any().item<bool>();
    if (any_live) {
      move_radius_(plan, mode, chart, radial[m], settings[first]);
    }
  }
  for (const size_t t : chart.component->tensors) {
    const auto& tensor = plan.tensors[t];
    for (const auto& use : tensor.nodes) {
      multiply_(chart.squares[t], plan.nodes[use.node].members[use.member].map,
                chart.nodes[use.node].log_rho * share(tensor));
    }
  }
}

at::Tensor node_log_factor(const Plan& plan, const Chart& chart, size_t tensor, size_t use) {
  const auto& node = chart.nodes[plan.tensors[tensor].nodes[use].node];
  return node.log_rho * share(plan.tensors[tensor]) + node.log_factor;
}

}  // namespace ddc
