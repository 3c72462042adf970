#include "ddc/placement.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>

#include "coordinates/shift.h"
#include "placement/held.h"

namespace ddc {
namespace {

std::vector<GroupedParameter> in_one_group(const Parameters& params) {
  std::vector<GroupedParameter> grouped;
  for (const auto& parameter : params) grouped.push_back({parameter, 0});
  return grouped;
}

/// Copies of all parameters in float64.
Parameters widened(const Parameters& params) {
  Parameters copies;
  for (const auto& [name, tensor] : params) {
    copies.add(name, tensor.detach().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true));
  }
  return copies;
}

void write_(const Parameters& from, const Parameters& to) {
  for (const auto& [name, tensor] : to) at::Tensor(tensor).detach().copy_(from[name].tensor);
}

/// Zeroes entries of `moved` that are nothing but rounding of what took them there from `weights`. Returns
/// whether there are any.
bool zero_rounding_(const Parameters& weights, const Parameters& moved) {
  constexpr double kRounding = 8;
  bool any = false;
  for (const auto& [name, tensor] : weights) {
    const double epsilon = tensor.scalar_type() == at::kDouble
                               ? std::numeric_limits<double>::epsilon()
                               : std::numeric_limits<float>::epsilon();
    auto x = at::Tensor(moved[name].tensor);
    const auto rounding = (x - tensor.detach()).abs_().mul_(kRounding * epsilon);
    const auto is_rounding = (x.abs() <= rounding).logical_and_(x != 0);
    if (!is_rounding.any().item<bool>()) continue;
    x.masked_fill_(is_rounding, 0);
    any = true;
  }
  return any;
}

}  // namespace

void Move::apply_(const Parameters& params) const {
  TORCH_CHECK(gauges.size() == elements.size(), "a move of ", gauges.size(), " gauges has ",
              elements.size(), " elements");
  const at::NoGradGuard no_grad;
  const auto copies = widened(params);
  act_(gauges, elements, copies);
  write_(copies, params);
}

Move Move::inverse() const {
  Move result;
  for (size_t i = gauges.size(); i-- > 0;) {
    result.gauges.push_back(gauges[i]);
    result.elements.push_back(ddc::inverse(gauges[i], elements[i]));
  }
  return result;
}

std::string Placement::refusal(const Parameters& params, const std::vector<Gauge>& gauges,
                               const Treatments& treatments) {
  for (const auto& gauge : gauges) {
    const auto& treatment = treatments.of(gauge);
    const auto named = "gauge '" + gauge.name + "'";
    if (treatment.placement == Place::in_place) return named + ": placement is in_place";
    const std::vector<std::pair<const char*, bool>> more_than_a_place = {
        {"coordinates=polar", treatment.coordinates == Coordinates::polar},
        {"hold=ratio", treatment.hold == Hold::ratio},
        {"vertical", treatment.vertical != Vertical::frozen},
        {"second_moment", treatment.second_moment != SecondMoment::transported},
        {"project=momentum", treatment.project == Projection::momentum},
        {"procrustes", treatment.procrustes},
        {"rebalance_above", treatment.rebalance_above != Treatment{}.rebalance_above},
        {"decay_held", treatment.decay_held}};
    for (const auto& [option, given] : more_than_a_place) {
      if (given) return named + ": " + option + " is no matter of place";
    }
    for (const auto& leg : gauge.legs) {
      if (!params.contains(leg.tensor)) continue;  // whoever binds the gauge says so
      const auto type = params[leg.tensor].tensor.scalar_type();
      if (type != at::kDouble && type != at::kFloat) {
        return named + " acts on '" + leg.tensor + "' of type " + c10::toString(type) +
               ": canonical placement needs float32 or float64, since factors near one round to "
               "one";
      }
    }
  }
  return {};
}

struct Placement::Impl {
  Parameters params;
  std::vector<Gauge> gauges;
  std::unique_ptr<Held> held;
  /// Per gauge: the element of the move to the original place.
  std::vector<GroupElement> elements;
  /// Order of the gauges on the way from the original place to the canonical one.
  std::vector<size_t> order;
  /// Whether the weights are at their original place.
  at::Tensor original = at::zeros({}, at::kBool);

  void find_order(const Plan& plan);
  /// Moves copies of the parameters, to which `start` is bound, and notes the elements: empties vectors and
  /// subtracts means, then balances and turns.
  void empty_(const CoordinateSystem& start, const Parameters& copies);
  void balance_(const CoordinateSystem& start, const Parameters& copies);
  void go_(size_t k, const GroupElement& element, const Parameters& copies);
};

/// Exchanges are emptied, in the order in which they flow into each other; then means are subtracted, sides
/// balanced, axes turned.
void Placement::Impl::find_order(const Plan& plan) {
  for (const auto& drain : plan.drains) {
    for (size_t k = 0; k < gauges.size(); ++k) {
      if (gauges[k].action == Action::exchange &&
          plan.gauges[k].legs.front().tensor == drain.source &&
          std::count(order.begin(), order.end(), k) == 0) {
        order.push_back(k);
      }
    }
  }
  for (const auto action : {Action::shift, Action::scale}) {
    for (size_t k = 0; k < gauges.size(); ++k) {
      if (gauges[k].action == action) order.push_back(k);
    }
  }
  for (const auto& component : plan.components) {
    for (const size_t k : component.gauges) {
      if (gauges[k].mixes()) order.push_back(k);
    }
  }
}

void Placement::Impl::go_(size_t k, const GroupElement& element, const Parameters& copies) {
  elements[k] = elements[k].defined() ? elements[k].matmul(inverse(gauges[k], element))
                                      : inverse(gauges[k], element);
  act_(gauges[k], element, copies);
}

// Each element is one at the place where those before it have left the weights.
void Placement::Impl::empty_(const CoordinateSystem& start, const Parameters& copies) {
  const auto& states = start.gauge_states();
  for (const size_t k : order) {
    if (gauges[k].action == Action::exchange) go_(k, -states[k].held.flatten(), copies);
    if (gauges[k].action == Action::shift) go_(k, -states[k].held, copies);
  }
}

void Placement::Impl::balance_(const CoordinateSystem& start, const Parameters& copies) {
  const auto& plan = start.plan();
  const auto& states = start.gauge_states();
  for (const size_t k : order) {
    if (gauges[k].action == Action::scale) go_(k, -states[k].log_unit, copies);
  }
  // Linear gauges are all balanced before the first axis is turned, as they were when coordinates were read off.
  for (const size_t k : order) {
    if (gauges[k].action == Action::linear) go_(k, at::linalg_inv(states[k].frame), copies);
  }
  for (const size_t k : order) {
    const auto& gauge = plan.gauges[k];
    if (!gauge.gauge.mixes()) continue;
    Tensors x(plan.tensors.size());
    for (const auto& leg : gauge.legs) {
      const auto& tensor = plan.tensors[leg.tensor];
      x[leg.tensor] = tensor.tensor + tensor.offset;
      if (!leg.gain) continue;
      const auto& gain = plan.tensors[*leg.gain];
      x[leg.tensor] = x[leg.tensor] *
                      along_axis(gain.tensor + gain.offset, leg.map.axis(), tensor.tensor.dim());
    }
    go_(k, canonical_basis(gauge, x).mT().clone(), copies);
  }
}

Placement::Placement(const Parameters& params, std::vector<Gauge> gauges, Treatments treatments,
                     Start start, bool one_pass)
    : impl_(std::make_unique<Impl>()) {
  const at::NoGradGuard no_grad;
  const auto why_not = refusal(params, gauges, treatments);
  TORCH_CHECK_VALUE(why_not.empty(), why_not);
  treatments.set("hold", std::string("unit"));
  treatments.set("placement", std::string(to_string(Place::canonical)));
  auto& own = *impl_;
  own.params = params;
  own.gauges = std::move(gauges);
  own.elements.resize(own.gauges.size());
  const auto system_at = [&](const Parameters& where) {
    CoordinateSystem system(in_one_group(where), own.gauges, treatments);
    TORCH_CHECK_VALUE(system.plan().gauges.size() == own.gauges.size(),
                      "placement: gauges that are not bound have no place");
    return system;
  };
  if (start == Start::canonical) {
    own.held = std::make_unique<Held>(system_at(params), one_pass);
    own.find_order(own.held->coordinate_system().plan());
    for (size_t k = 0; k < own.gauges.size(); ++k) {
      own.elements[k] = identity_element(own.gauges[k], params)
                            .to(own.held->coordinate_system().plan().gauges[k].device());
    }
    return;
  }
  const auto copies = widened(params);
  auto found = system_at(copies);
  own.find_order(found.plan());
  own.empty_(found, copies);
  // A zero that was moved is rounding when it is moved back. It must not pass for a side to balance against,
  // or for weights that have a gradient.
  if (zero_rounding_(params, copies)) found = system_at(copies);
  own.balance_(found, copies);
  write_(copies, params);
  own.held = std::make_unique<Held>(system_at(params), one_pass);
  // Where the section is, and which channels are on it, was read off in float64.
  for (size_t k = 0; k < own.gauges.size(); ++k) {
    auto& state = own.held->coordinate_system().gauge_states()[k];
    if (own.gauges[k].action == Action::scale) state.target = found.gauge_states()[k].target;
    state.bound = found.gauge_states()[k].bound;
    state.known = found.gauge_states()[k].known;
  }
  own.held->refresh_();
}

Placement::~Placement() = default;
Placement::Placement(Placement&&) noexcept = default;
Placement& Placement::operator=(Placement&&) noexcept = default;

Move Placement::to_original() const {
  Move move;
  for (auto k = impl_->order.rbegin(); k != impl_->order.rend(); ++k) {
    move.gauges.push_back(impl_->gauges[*k]);
    move.elements.push_back(impl_->elements[*k]);
  }
  return move;
}

void Placement::to_original_() {
  if (is_original()) return;
  settle_();
  to_original().apply_(impl_->params);
  impl_->original.fill_(true);
}

void Placement::to_canonical_() {
  if (!is_original()) return;
  to_original().inverse().apply_(impl_->params);
  impl_->original.fill_(false);
}

bool Placement::is_original() const { return impl_->original.item<bool>(); }

void Placement::restore_() {
  TORCH_CHECK(!is_original(),
              "the weights are at their original place: a step is made at the canonical one");
  impl_->held->restore_();
}

bool Placement::open_(const std::vector<bool>& can_step) {
  impl_->held->open_(can_step);
  return impl_->held->is_open();
}
bool Placement::is_open(size_t parameter) const { return impl_->held->is_open(parameter); }
kernels::Edges* Placement::edges(size_t parameter) { return impl_->held->edges(parameter); }
at::Tensor Placement::gradient(size_t parameter) const { return impl_->held->gradient(parameter); }
void Placement::fold_() { impl_->held->fold_(); }
void Placement::settle_() { impl_->held->settle_(); }
void Placement::forget_pending_() { impl_->held->forget_(); }

const std::vector<Gauge>& Placement::gauges() const { return impl_->gauges; }

std::vector<PlacementState> Placement::state() {
  std::vector<PlacementState> result;
  if (impl_->gauges.empty()) return result;
  const auto& first = impl_->gauges.front().name;
  result.push_back({first, "original", &impl_->original});
  result.push_back({first, "count", &impl_->held->count()});
  for (size_t k = 0; k < impl_->gauges.size(); ++k) {
    const auto& name = impl_->gauges[k].name;
    auto& held = impl_->held->coordinate_system().gauge_states()[k];
    result.push_back({name, "element", &impl_->elements[k]});
    result.push_back({name, "bound", &held.bound});
    result.push_back({name, "known", &held.known});
    if (held.target.defined()) result.push_back({name, "target", &held.target});
  }
  for (const auto& [place, moves] : impl_->held->pending()) {
    const auto& tensor = impl_->held->coordinate_system().plan().tensors[place].name;
    result.push_back({first, "pending." + tensor, moves});
  }
  for (auto& [key, anchor] : impl_->held->anchors()) {
    const auto& tensor = impl_->held->coordinate_system().plan().tensors[key.first].name;
    result.push_back({first, "anchor." + std::to_string(key.second) + "." + tensor, &anchor});
  }
  return result;
}

void Placement::loaded(std::optional<bool> at_original) {
  if (at_original) impl_->original.fill_(*at_original);
  impl_->held->refresh_();
}

std::vector<double> Placement::distances_to_sections() const {
  std::vector<double> result;
  for (size_t k = 0; k < impl_->gauges.size(); ++k) result.push_back(impl_->held->distance(k));
  return result;
}

double Placement::distance_to_section() const {
  double largest = 0;
  for (const double each : distances_to_sections()) largest = std::max(largest, each);
  return largest;
}

const CoordinateSystem& Placement::coordinate_system() const {
  return impl_->held->coordinate_system();
}

std::vector<at::Tensor> Placement::gauge_coordinates() const {
  const auto settled = impl_->held->settled();
  std::vector<at::Tensor> result;
  for (size_t k = 0; k < impl_->gauges.size(); ++k) result.push_back(settled.gauge_coordinate(k));
  return result;
}

}  // namespace ddc
