#include "coordinates/maps/polar.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace ddc {
namespace {

/// A tensor in several nodes shares its scale between them.
double share(const TensorPlan& tensor) { return 1.0 / static_cast<double>(tensor.nodes.size()); }

/// Sum over the members of values that are given per member, in channels.
template <class Values>
at::Tensor node_sum(const PolarNode& node, const Values& values) {
  at::Tensor total;
  for (const auto& member : node.members) {
    const auto part = member.map.scatter_all(values(member));
    total = total.defined() ? total + part.to(total.device()) : part;
  }
  return total;
}

void multiply_(at::Tensor& tensor, const ChannelMap& map, const at::Tensor& log_factor) {
  tensor.mul_(map.gather_vector(log_factor.exp().to(tensor.options()), 1));
}

void multiply_(AxisSquares& squares, const ChannelMap& map, const at::Tensor& log_factor) {
  const auto factor = (log_factor * 2).exp().to(squares.device());
  squares.multiply_(map.axes(), map.gather_vector(factor, 1));
}

void multiply_squares_(const PolarNode& node, const at::Tensor& log_factor, Squares& squares) {
  for (const auto& member : node.members) {
    multiply_(squares[member.tensor], member.map, log_factor);
  }
}

const ChannelMap& map_of(const Plan& plan, const TensorPlan::NodeUse& use) {
  return plan.nodes[use.node].members[use.member].map;
}

}  // namespace

void Polar::read(const ValueOf& outside) {
  const auto node_square = [&](size_t n, const ValueOf& value) {
    return node_sum(plan_.nodes[n],
                    [&](const PolarNode::Member& member) { return value(member.tensor).square(); });
  };
  for (const size_t n : component_.nodes) {
    const auto square = node_square(n, outside);
    auto& node = nodes_[n];
    node.live = square > 0;
    for (const auto& mover : plan_.nodes[n].movers) {
      node.live = view_.active[mover.gauge] ? node.live & view_.states[mover.gauge].bound
                                            : at::zeros_like(node.live);
    }
    node.log_rho = at::where(node.live, at::where(node.live, square, 1.0).log() * 0.5, 0.0);
    node.log_factor = at::zeros_like(node.log_rho);
  }
  for (const size_t n : component_.nodes) {
    nodes_[n].norm_square = node_square(n, [&](size_t t) {
      auto x = outside(t);
      to_coordinates_(t, x);
      return x;
    });
  }
}

void Polar::to_coordinates_(size_t t, at::Tensor& x) const {
  const auto& tensor = plan_.tensors[t];
  for (const auto& use : tensor.nodes) {
    multiply_(x, map_of(plan_, use), nodes_[use.node].log_rho * -share(tensor));
  }
}

void Polar::to_weights_one_(size_t t, at::Tensor& x) const {
  const auto& tensor = plan_.tensors[t];
  for (const auto& use : tensor.nodes) {
    const auto& node = nodes_[use.node];
    multiply_(x, map_of(plan_, use), node.log_rho * share(tensor) + node.log_factor);
  }
}

void Polar::measure_charges_(const Tensors& g, const ValueOf& x) {
  for (const size_t n : component_.nodes) {
    auto& node = nodes_[n];
    // Live nodes belong to active gauges, all of whose tensors have a gradient.
    node.charge = at::zeros_like(node.log_rho);
    if (!node.live.any().item<bool>()) continue;
    node.charge = node_sum(plan_.nodes[n], [&](const PolarNode::Member& member) {
      return g[member.tensor] * x(member.tensor);
    });
  }
}

void Polar::project_(const ValueOf& x, Tensors& vectors) const {
  for (const size_t n : component_.nodes) {
    const auto& node = nodes_[n];
    if (!node.live.any().item<bool>()) continue;
    const auto product = node_sum(plan_.nodes[n], [&](const PolarNode::Member& member) {
      return vectors[member.tensor] * x(member.tensor);
    });
    const auto coefficient =
        at::where(node.live, product / at::where(node.live, node.norm_square, 1.0), 0.0);
    for (const auto& member : plan_.nodes[n].members) {
      auto& vector = vectors[member.tensor];
      auto radial = x(member.tensor);
      radial.mul_(member.map.gather_vector(coefficient.to(radial.options()), 0));
      vector = (vector - radial).to(vector.scalar_type());
    }
  }
}

at::Tensor Polar::outside_nodes(size_t t) const {
  at::Tensor outside;
  const auto& tensor = plan_.tensors[t];
  for (const auto& use : tensor.nodes) {
    const auto not_live =
        nodes_[use.node].live.logical_not().to(tensor.tensor.options().dtype(at::kDouble));
    const auto here = map_of(plan_, use).gather_vector(not_live, 1);
    outside = outside.defined() ? outside * here : here;
  }
  return outside;
}

/// Scales every node back to the norm it had: exactly in one pass, unless nodes share tensors and
/// disturb each other. Of those a few passes are made, not a solution: where norms of rows and
/// columns are asked for at once, convergence is slow, and nothing rests on it. Each pass is
/// invariant, and re-balancing holds the gauge coordinates whatever the norms are.
void Polar::restore_norms_(Squares& squares) {
  const int passes = component_.coupled ? 3 : 1;
  for (int pass = 0; pass < passes; ++pass) {
    for (const size_t n : component_.nodes) {
      auto& node = nodes_[n];
      const auto square = node_sum(plan_.nodes[n], [&](const PolarNode::Member& member) {
        return squares[member.tensor].along(member.map.axes());
      });
      const auto usable = node.live & (square > 0);
      const auto log_factor =
          at::where(usable, (node.norm_square / at::where(usable, square, 1.0)).log() * 0.5, 0.0);
      multiply_squares_(plan_.nodes[n], log_factor, squares);
      node.log_factor += log_factor;
    }
  }
}

void Polar::move_radius_(const RadialMode& mode, Squares& squares, ScalarMoments& moments,
                         const StepSettings& settings) {
  const auto& treatment = plan_.gauges[mode.gauge].treatment;
  const double norm_square = mode.weight_norm_squared;
  auto live = nodes_[mode.nodes.front()].live;
  auto log_s = at::zeros_like(nodes_[mode.nodes.front()].log_rho);
  auto gradient = at::zeros_like(log_s);
  for (size_t i = 0; i < mode.nodes.size(); ++i) {
    const auto& node = nodes_[mode.nodes[i]];
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
    const auto step = moments.make_step(gradient, settings);
    const auto stepped = s * std::exp(-norm_square * settings.lr * settings.weight_decay) + step;
    change = stepped.clamp_min(1e-300).log() - log_s;
  } else {
    // In the unit coordinate u = log s / |w|: dL/du = |w| dL/dlog s, and decay subtracts |w| lr wd.
    const double norm = std::sqrt(norm_square);
    const auto step = moments.make_step(gradient * norm, settings);
    change = (step - norm * settings.lr * settings.weight_decay) * norm;
  }
  change = at::where(live, change.clamp(-treatment.max_log_step, treatment.max_log_step), 0.0);
  for (size_t i = 0; i < mode.nodes.size(); ++i) {
    const auto log_factor = change * (mode.weights[i] / norm_square);
    nodes_[mode.nodes[i]].log_factor += log_factor;
    multiply_squares_(plan_.nodes[mode.nodes[i]], log_factor, squares);
  }
}

void Polar::restore_and_move_radius_(Squares& squares, std::vector<ScalarMoments>& radial,
                                     const std::vector<StepSettings>& settings) {
  restore_norms_(squares);
  for (const size_t m : component_.radial_modes) {
    const auto& mode = plan_.radial_modes[m];
    const size_t first = plan_.gauges[mode.gauge].legs.front().tensor;
    const bool any_live = std::ranges::all_of(
        mode.nodes, [&](size_t n) { return nodes_[n].live.any().item<bool>(); });
    if (any_live) move_radius_(mode, squares, radial[m], settings[first]);
  }
  for (const size_t t : component_.tensors) {
    const auto& tensor = plan_.tensors[t];
    for (const auto& use : tensor.nodes) {
      multiply_(squares[t], map_of(plan_, use), nodes_[use.node].log_rho * share(tensor));
    }
  }
}

}  // namespace ddc
