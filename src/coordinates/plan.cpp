#include "coordinates/plan.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include "coordinates/shift.h"
#include "gauge/leg_maps.h"
#include "linalg/rotation.h"
#include "plan_checks.h"
#include "union_find.h"

namespace ddc {
namespace {

/// Entries that one channel has in the tensor, divided by the tensor's fan-in.
at::Tensor reference_square(const BoundLeg& leg, const at::Tensor& tensor) {
  if (tensor.dim() < 2) return leg.map.counts();
  double along = 1;
  for (const int64_t axis : leg.map.axes()) along *= static_cast<double>(tensor.size(axis));
  const double per_index = static_cast<double>(tensor.numel()) / along;
  const double fan_in = static_cast<double>(tensor.numel() / tensor.size(0));
  return leg.map.counts() * (per_index / fan_in);
}

Side make_side(const GaugePlan& gauge, const std::vector<TensorPlan>& tensors, double sign) {
  Side side;
  bool has_matrix = false;
  for (size_t l = 0; l < gauge.legs.size(); ++l) {
    const auto& leg = gauge.legs[l];
    if (leg.exponent * sign < 0) continue;
    side.legs.push_back(l);
    side.exponent = side.exponent == 0 ? std::abs(leg.exponent)
                                       : std::min(side.exponent, std::abs(leg.exponent));
    has_matrix = has_matrix || tensors[leg.tensor].tensor.dim() > 1;
  }
  auto square = at::zeros({gauge.gauge.channels}, gauge.options());
  for (const size_t l : side.legs) {
    const auto& tensor = tensors[gauge.legs[l].tensor].tensor;
    // Biases start small or at zero beside a matrix, and say nothing about its size.
    if (tensor.dim() < 2 && has_matrix) continue;
    square += reference_square(gauge.legs[l], tensor).to(gauge.device());
  }
  side.reference = at::where(square > 0, square, 1.0).sqrt();
  return side;
}

Coordinates default_coordinates(const GaugePlan& gauge, const std::vector<TensorPlan>& tensors) {
  const bool first_is_vector = tensors[gauge.legs.front().tensor].tensor.dim() == 1;
  const bool any_matrix = std::ranges::any_of(
      gauge.legs, [&](const BoundLeg& leg) { return tensors[leg.tensor].tensor.dim() > 1; });
  return first_is_vector && any_matrix ? Coordinates::folded : Coordinates::balanced;
}

// How often a gauge is moved back to its section at the canonical place, where the treatment does not
// say. Scales, shifts and exchanges cost at most a pass over the weights, and are moved in every step.

/// Default of `every` for gauges that mix channels, whose move is a product of matrices.
constexpr int64_t kStepsBetweenTurns = 10;
/// Default for rotations of a stream: placed, and not held. Their move is as much work as the forward pass of
/// a batch of so many tokens as the stream is wide.
constexpr Projection kProjectionOfStreams = Projection::never;
/// Blocks are taken for a stream from this size on, whatever reads them.
constexpr int64_t kLargestHead = 256;

/// A residual stream is read through norms, and turned in one piece.
bool turns_a_stream(const Gauge& gauge) {
  const auto reads_gain = [](const Leg& leg) { return !leg.through.gain.empty(); };
  return gauge.action == Action::rotation &&
         (gauge.fixes_ones || gauge.block > kLargestHead ||
          std::any_of(gauge.legs.begin(), gauge.legs.end(), reads_gain));
}

/// Resolves how often a gauge is brought back to where it is held.
void resolve_horizontality_(const Gauge& gauge, bool one_pass, Treatment& treatment) {
  treatment.placement = treatment.placement.value_or(Place::in_place);
  if (treatment.placement == Place::in_place) {
    TORCH_CHECK_VALUE(treatment.every.value_or(1) == 1, "gauge '", gauge.name,
                      "': every = ", *treatment.every, " needs placement = canonical");
  } else if (!treatment.every) {
    if (!treatment.project && turns_a_stream(gauge)) treatment.project = kProjectionOfStreams;
    const bool in_pass = one_pass && gauge.action == Action::rotation && gauge.block == 2;
    if (gauge.mixes() && !in_pass) treatment.every = kStepsBetweenTurns;
  }
  treatment.project = treatment.project.value_or(Projection::step);
  treatment.every = treatment.every.value_or(1);
}

/// Resolves what the treatment leaves open, and what is said for all gauges but does not apply to this
/// one. What is said of this one and is impossible is refused.
void resolve_(GaugePlan& gauge, const std::set<std::string>& said, bool is_seen_through,
              bool one_pass, const Plan& plan) {
  auto& treatment = gauge.treatment;
  const auto& name = gauge.gauge.name;
  const auto refuse_if = [&](bool impossible, const char* option, const char* why) {
    TORCH_CHECK_VALUE(!impossible || !said.contains(option), "gauge '", name, "': option ", option,
                      " is ", why);
  };
  resolve_horizontality_(gauge.gauge, one_pass, treatment);
  const bool is_scale = gauge.is_scale();
  refuse_if(!is_scale && treatment.coordinates.has_value(), "coordinates", "for scale gauges");
  refuse_if(!is_scale && treatment.hold.has_value(), "hold", "for scale gauges");
  const bool reads_gain =
      std::ranges::any_of(gauge.gauge.legs, [](const Leg& leg) { return !leg.through.empty(); });
  // Vertical rules are scalar; a matrix or an exchanged vector is held.
  const bool scalar = is_scale || gauge.gauge.action == Action::shift;
  if (!scalar || reads_gain) {
    refuse_if(treatment.vertical != Vertical::frozen, "vertical",
              "for scales and shifts of weights as they are stored");
    treatment.vertical = Vertical::frozen;
  }
  if (!gauge.gauge.mixes()) {
    refuse_if(treatment.second_moment != SecondMoment::transported, "second_moment",
              "for rotations and linear gauges");
    refuse_if(treatment.project == Projection::momentum, "project",
              "not \"momentum\" but for rotations and linear gauges");
    treatment.second_moment = SecondMoment::transported;
    if (treatment.project == Projection::momentum) treatment.project = Projection::step;
  }
  if (gauge.gauge.action == Action::exchange) {
    // Beside its biases an exchanged vector has no gradient but rounding.
    refuse_if(treatment.project == Projection::never, "project", "not \"never\" for exchanges");
    treatment.project = Projection::step;
  }
  refuse_if(!gauge.is_shift() && treatment.decay_held, "decay_held", "for shifts");
  if (!is_scale) {
    treatment.coordinates.reset();
    treatment.hold.reset();
    return;
  }
  // A gain that other gauges act through is folded.
  if (is_seen_through && !said.contains("coordinates")) treatment.coordinates = Coordinates::folded;
  if (is_seen_through && !said.contains("hold")) treatment.hold = Hold::unit;
  if (!treatment.coordinates) treatment.coordinates = default_coordinates(gauge, plan.tensors);
}

/// Every exchange empties its vector into biases; so does every leg that is seen through a norm with a
/// shift, whether or not the exchange itself is bound.
void add_drains(Plan& plan, const std::unordered_map<std::string, size_t>& index) {
  std::vector<Drain> found;
  const auto add = [&](Drain drain) {
    const bool known = std::ranges::any_of(found, [&](const Drain& other) {
      return other.source == drain.source && other.matrix == drain.matrix &&
             other.sink == drain.sink;
    });
    if (!known) found.push_back(std::move(drain));
  };
  for (const auto& gauge : plan.gauges) {
    for (size_t l = 0; l < gauge.legs.size(); ++l) {
      const auto& leg = gauge.legs[l];
      const auto& reading = gauge.gauge.legs[l].through;
      if (gauge.gauge.action == Action::exchange && l > 0) {
        const auto& source = gauge.legs.front();
        const auto matrix = leg.bias ? std::optional(leg.tensor) : std::nullopt;
        add({source.tensor, source.map, matrix, leg.map, leg.bias.value_or(leg.tensor)});
      } else if (!reading.shift.empty()) {
        const auto& weight = plan.tensors[leg.tensor].tensor;
        const int64_t size = weight.size(leg.map.axis());
        add({index.at(reading.shift), ChannelMap({}, size, 0, size, 1, weight.device()), leg.tensor,
             ChannelMap({}, size, leg.map.axis(), size, 2, weight.device()), *leg.bias});
      }
    }
  }
  // A vector must have received all it gets before it is emptied.
  while (!found.empty()) {
    const auto next = std::ranges::find_if(found, [&](const Drain& drain) {
      return std::ranges::count(found, drain.source, &Drain::sink) == 0;
    });
    TORCH_CHECK(next != found.end(), "the vector '", plan.tensors[found.front().source].name,
                "' is exchanged with itself, through others");
    plan.drains.push_back(*next);
    found.erase(next);
  }
}

/// Where sides of adjacent gauges are the same set of legs with the same maps, they are one node.
void add_polar_nodes(Plan& plan) {
  using Entries = std::tuple<size_t, int64_t, std::vector<int64_t>>;
  std::map<std::set<Entries>, size_t> known;
  for (size_t k = 0; k < plan.gauges.size(); ++k) {
    const auto& gauge = plan.gauges[k];
    if (!gauge.is_scale() || gauge.treatment.coordinates != Coordinates::polar) continue;
    for (const Side* side : {&gauge.plus, &gauge.minus}) {
      if (side->empty()) continue;
      std::set<Entries> key;
      for (const size_t l : side->legs) {
        const auto& leg = gauge.gauge.legs[l];
        const bool whole = gauge.gauge.channels == 1 && std::ranges::count(leg.channel_of, -1) == 0;
        // Whatever the axis, a whole tensor is the same set of entries.
        key.insert(whole ? Entries(gauge.legs[l].tensor, -1, {})
                         : Entries(gauge.legs[l].tensor, leg.axis, leg.channel_of));
      }
      const auto [found, inserted] = known.emplace(std::move(key), plan.nodes.size());
      if (inserted) {
        PolarNode node;
        for (const size_t l : side->legs) {
          const auto& leg = gauge.legs[l];
          plan.tensors[leg.tensor].nodes.push_back({plan.nodes.size(), node.members.size()});
          node.members.push_back({leg.tensor, leg.map});
        }
        plan.nodes.push_back(std::move(node));
      }
      plan.nodes[found->second].movers.push_back(
          {k, side == &gauge.plus ? side->exponent : -side->exponent});
    }
  }
}

/// Nodes linked by gauges; the vector orthogonal to all their exponents is the joint scale.
void add_radial_modes(Plan& plan) {
  UnionFind sets(plan.nodes.size());
  std::map<size_t, size_t> first_node_of_gauge;
  for (size_t n = 0; n < plan.nodes.size(); ++n) {
    for (const auto& mover : plan.nodes[n].movers) {
      sets.join(first_node_of_gauge.emplace(mover.gauge, n).first->second, n);
    }
  }
  std::map<size_t, std::vector<size_t>> linked;
  for (size_t n = 0; n < plan.nodes.size(); ++n) linked[sets.find(n)].push_back(n);
  for (const auto& [root, nodes] : linked) {
    std::map<size_t, int64_t> row_of_gauge;
    for (const size_t n : nodes) {
      for (const auto& mover : plan.nodes[n].movers) {
        row_of_gauge.emplace(mover.gauge, static_cast<int64_t>(row_of_gauge.size()));
      }
    }
    const auto columns = static_cast<int64_t>(nodes.size());
    const auto rows = std::max(static_cast<int64_t>(row_of_gauge.size()), columns);
    auto exponents = at::zeros({rows, columns}, at::kDouble);
    for (int64_t j = 0; j < columns; ++j) {
      for (const auto& mover : plan.nodes[nodes[j]].movers) {
        exponents[row_of_gauge.at(mover.gauge)][j].fill_(mover.exponent);
      }
    }
    const auto [u, singular, vh] = at::linalg_svd(exponents, /*full_matrices=*/true);
    // Connected nodes have one joint scale, or none (a one-sided gauge fixes the norm itself).
    if (singular[-1].item<double>() > 1e-9 * singular[0].item<double>()) continue;
    auto weights = vh[-1];
    weights = weights / weights.abs().min() * weights.sum().sign();
    RadialMode mode;
    mode.nodes = nodes;
    mode.gauge = row_of_gauge.begin()->first;
    mode.weights.assign(weights.const_data_ptr<double>(),
                        weights.const_data_ptr<double>() + columns);
    mode.weight_norm_squared = weights.square().sum().item<double>();
    plan.radial_modes.push_back(std::move(mode));
  }
}

void add_components(Plan& plan) {
  UnionFind sets(plan.tensors.size());
  for (const auto& gauge : plan.gauges) {
    for (const auto& leg : gauge.legs) {
      sets.join(gauge.legs.front().tensor, leg.tensor);
      if (leg.gain) sets.join(leg.tensor, *leg.gain);
      if (leg.bias) sets.join(leg.tensor, *leg.bias);
    }
  }
  for (const auto& drain : plan.drains) {
    if (drain.matrix) sets.join(drain.source, *drain.matrix);
    sets.join(drain.source, drain.sink);
  }
  std::map<size_t, Component> components;
  for (size_t t = 0; t < plan.tensors.size(); ++t) components[sets.find(t)].tensors.push_back(t);
  const auto component_of = [&](size_t tensor) -> Component& {
    return components[sets.find(tensor)];
  };
  for (size_t k = 0; k < plan.gauges.size(); ++k) {
    component_of(plan.gauges[k].legs.front().tensor).gauges.push_back(k);
  }
  for (size_t n = 0; n < plan.nodes.size(); ++n) {
    component_of(plan.nodes[n].members.front().tensor).nodes.push_back(n);
  }
  for (size_t m = 0; m < plan.radial_modes.size(); ++m) {
    const auto& node = plan.nodes[plan.radial_modes[m].nodes.front()];
    component_of(node.members.front().tensor).radial_modes.push_back(m);
  }
  for (size_t d = 0; d < plan.drains.size(); ++d) {
    component_of(plan.drains[d].source).drains.push_back(d);
  }
  for (auto& [root, component] : components) {
    const auto rank = [&](size_t k) {
      const auto& gauge = plan.gauges[k];
      if (gauge.is_scale()) return gauge.is_folded() ? 0 : 1;
      if (gauge.is_shift()) return 1;
      const auto is_seen_through = [](const BoundLeg& leg) { return leg.gain.has_value(); };
      return std::ranges::any_of(gauge.legs, is_seen_through) ? 2 : 3;
    };
    std::ranges::stable_sort(component.gauges, {}, rank);
    for (size_t i = 0; i < component.gauges.size(); ++i) {
      for (auto& leg : plan.gauges[component.gauges[i]].legs) {
        if (!leg.blocks) continue;
        for (size_t j = i + 1; j < component.gauges.size(); ++j) {
          const auto& later = plan.gauges[component.gauges[j]];
          leg.mixed_later |=
              later.gauge.mixes() && std::ranges::any_of(later.legs, [&](const auto& other) {
                return other.tensor == leg.tensor && other.map.axis() != leg.map.axis();
              });
        }
      }
    }
    component.coupled = is_coupled(plan, component.gauges);
    plan.add(std::move(component));
  }
}

/// Notes how an attention projection is cut into heads: a hint for base rules, and the same for every point of an
/// orbit. Of several cuts the first is kept, but for one that leaves the axis whole.
void cut_heads_(const Gauge& gauge, const Leg& leg, TensorPlan& tensor) {
  if (leg.head_size == 0) return;
  TORCH_CHECK(tensor.tensor.size(leg.axis) % leg.head_size == 0, "gauge '", gauge.name,
              "': heads of size ", leg.head_size, " do not divide axis ", leg.axis, " of '",
              tensor.name, "', of size ", tensor.tensor.size(leg.axis));
  if (tensor.cut && tensor.cut->size < tensor.tensor.size(tensor.cut->axis)) return;
  tensor.cut = HeadCut{leg.axis, leg.head_size};
}

}  // namespace

bool Plan::meet(const TensorPlan::Use& a, const TensorPlan::Use& b) const {
  const auto& left = leg(a);
  const auto& right = leg(b);
  if (left.tensor != right.tensor) return false;
  if (left.map.axis() != right.map.axis()) return true;
  // No channels named: every index is one.
  const auto& left_of = gauges[a.gauge].gauge.legs[a.leg].channel_of;
  const auto& right_of = gauges[b.gauge].gauge.legs[b.leg].channel_of;
  const auto size = static_cast<size_t>(tensors[left.tensor].tensor.size(left.map.axis()));
  const auto is_in = [](const std::vector<int64_t>& channel_of, size_t i) {
    return channel_of.empty() || channel_of[i] >= 0;
  };
  for (size_t i = 0; i < size; ++i) {
    if (is_in(left_of, i) && is_in(right_of, i)) return true;
  }
  return false;
}

bool is_coupled(const Plan& plan, const std::vector<size_t>& gauges) {
  const auto is_section = [&](size_t k) {
    return plan.gauges[k].is_scale() || plan.gauges[k].is_linear();
  };
  for (const size_t k : gauges) {
    const auto& gauge = plan.gauges[k];
    if (!is_section(k)) continue;
    const bool folded = gauge.is_scale() && gauge.is_folded();
    if (gauge.self_coupled) return true;
    for (const size_t other : gauges) {
      const auto& by = plan.gauges[other];
      if (other == k || !is_section(other)) continue;
      // Folded gauges come first in a sweep; the balanced ones after them see the final values.
      if (!folded && by.is_scale() && by.is_folded()) continue;

      for (size_t l = 0; l < (folded ? 1 : gauge.legs.size()); ++l) {
        for (size_t m = 0; m < by.legs.size(); ++m) {
          if (plan.meet({k, l}, {other, m})) return true;
        }
      }
    }
  }
  return false;
}

at::Tensor BoundLeg::factor(const at::Tensor& log_unit, double sign,
                            const at::TensorOptions& options) const {
  return map.gather_vector((log_unit * (sign * exponent)).exp().to(options), 1);
}

void Plan::add(Component component) {
  for (const auto kind : {&Items::tensors, &Items::gauges, &Items::nodes}) {
    const auto& items = component.*kind;
    for (size_t i = 0; i < items.size(); ++i) {
      (places.*kind).resize(std::max((places.*kind).size(), items[i] + 1));
      (places.*kind)[items[i]] = i;
    }
  }
  components.push_back(std::move(component));
}

bool tells_heads(const Gauge& gauge, const Treatment& treatment) {
  if (treatment.heads) return treatment.heads == Heads::cut;
  const auto& first = gauge.legs.front();
  return !treatment.bind || std::all_of(gauge.legs.begin(), gauge.legs.end(), [&](const Leg& leg) {
    return leg.head_size == 0 || leg.axis == first.axis;
  });
}

at::ScalarType TensorPlan::compute_type() const {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

Plan compile(const std::vector<GroupedParameter>& parameters, const std::vector<Gauge>& gauges,
             const Treatments& treatments) {
  treatments.check(gauges);
  Plan plan;
  Parameters table;
  std::unordered_map<std::string, size_t> index;
  for (const auto& [parameter, param_group] : parameters) {
    table.add(parameter.name, parameter.tensor);
    index.emplace(parameter.name, plan.tensors.size());
    plan.tensors.push_back(
        {.name = parameter.name, .tensor = parameter.tensor, .param_group = param_group});
  }
  std::set<std::string> names;
  std::unordered_map<std::string, std::string> offset_from;
  const auto give_offset_ = [&](const Gauge& gauge, TensorPlan& tensor, double offset) {
    const auto [known, first] = offset_from.emplace(tensor.name, gauge.name);
    TORCH_CHECK(first || tensor.offset == offset, "gauges '", known->second, "' and '", gauge.name,
                "' give '", tensor.name, "' different offsets: ", tensor.offset, " and ", offset);
    tensor.offset = offset;
  };
  for (const auto& gauge : gauges) {
    const size_t k = plan.gauges.size();
    for (const auto& leg : gauge.legs) {
      TORCH_CHECK(table.contains(leg.tensor), "gauge '", gauge.name, "' acts on '", leg.tensor,
                  "', which is in no param group of the optimizer");
    }
    validate(gauge, table);
    TORCH_CHECK(names.insert(gauge.name).second, "two gauges are called '", gauge.name,
                "'; names must be unique");
    GaugePlan compiled;
    compiled.gauge = gauge;
    compiled.treatment = treatments.of(gauge);
    check_options(compiled.treatment);
    if (tells_heads(gauge, compiled.treatment)) {
      for (const auto& leg : gauge.legs) cut_heads_(gauge, leg, plan.tensors[index.at(leg.tensor)]);
    }
    if (!compiled.treatment.bind) continue;
    for (size_t l = 0; l < gauge.legs.size(); ++l) {
      const auto& leg = gauge.legs[l];
      auto& tensor = plan.tensors[index.at(leg.tensor)];
      give_offset_(gauge, tensor, leg.offset);
      const int64_t more_axes =
          gauge.action == Action::shift
              ? table[gauge.legs.front().tensor].tensor.dim() - tensor.tensor.dim()
              : 0;
      BoundLeg bound{index.at(leg.tensor), leg.exponent,
                     map_of(gauge, leg, tensor.tensor, more_axes), more_axes};
      bound.home = table[gauge.legs.front().tensor].tensor.device();
      if (gauge.mixes()) {
        bound.blocks.emplace(leg.channel_of, gauge.channels, gauge.block, leg.axis,
                             tensor.tensor.sizes(), tensor.tensor.device());
        tensor.blocks.push_back({k, l});
      } else if (gauge.action == Action::scale) {
        tensor.scales.push_back({k, l});
      } else if (gauge.action == Action::shift || l == 0) {
        tensor.shifts.push_back({k, l});
      }
      const auto find = [&](const std::string& name) {
        const auto found = index.find(name);
        TORCH_CHECK(found != index.end(), "gauge '", gauge.name, "' acts through '", name,
                    "', which is in no param group of the optimizer");
        return found->second;
      };
      if (!leg.through.gain.empty()) {
        const SeenThrough through{find(leg.through.gain), leg.axis};
        TORCH_CHECK(!tensor.through || (tensor.through->gain == through.gain &&
                                        tensor.through->axis == through.axis),
                    "gauge '", gauge.name, "' sees '", leg.tensor, "' through '", leg.through.gain,
                    "', another gauge through something else");
        tensor.through = through;
        bound.gain = through.gain;
        auto& gain = plan.tensors[through.gain];
        const auto dead = dead_entries(gain.tensor, leg.through.gain_offset).sum().item<int64_t>();
        TORCH_CHECK(dead == 0, "gauge '", gauge.name, "' acts through the gain '", gain.name,
                    "', of which ", dead, " entries are zero, or as good as beside the largest");
        give_offset_(gauge, gain, leg.through.gain_offset);
        gain.read_by.push_back(k);
      }
      if (!leg.through.shift.empty()) find(leg.through.shift);
      if (!leg.through.bias.empty()) bound.bias = find(leg.through.bias);
      compiled.legs.push_back(std::move(bound));
    }
    for (size_t l = 0; l < compiled.legs.size(); ++l) {
      for (size_t j = 0; j < l; ++j) {
        compiled.self_coupled |= compiled.legs[j].tensor == compiled.legs[l].tensor &&
                                 gauge.legs[j].axis != gauge.legs[l].axis;
      }
    }
    if (gauge.action == Action::shift) compiled.inverse_gram = inverse_gram(compiled);
    if (gauge.action == Action::exchange) {
      const auto& source = table[gauge.legs.front().tensor].tensor;
      compiled.rows = static_cast<double>(source.numel() / source.size(gauge.legs.front().axis));
    }
    if (gauge.fixes_ones) compiled.complement = helmert(gauge.block).to(compiled.device());
    if (gauge.action == Action::scale || gauge.action == Action::linear) {
      compiled.plus = make_side(compiled, plan.tensors, +1);
      compiled.minus = make_side(compiled, plan.tensors, -1);
      compiled.exponent_norm = std::hypot(compiled.plus.exponent, compiled.minus.exponent);
      const auto& first = compiled.legs.front();
      compiled.first_reference = reference_square(first, plan.tensors[first.tensor].tensor).sqrt();
      compiled.first_reference =
          at::where(compiled.first_reference > 0, compiled.first_reference, 1.0);
    }
    plan.gauges.push_back(std::move(compiled));
  }
  for (auto& gauge : plan.gauges) {
    const bool is_seen_through = !plan.tensors[gauge.legs.front().tensor].read_by.empty();
    resolve_(gauge, treatments.specific(gauge.gauge), is_seen_through, treatments.are_in_one_pass(),
             plan);
  }
  check_sharing(plan);
  choose_hold_(plan);
  add_drains(plan, index);
  add_polar_nodes(plan);
  add_radial_modes(plan);
  add_components(plan);
  return plan;
}

}  // namespace ddc
