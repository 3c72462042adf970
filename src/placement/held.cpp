#include "placement/held.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>

#include "coordinates/section.h"
#include "coordinates/shift.h"
#include "coordinates/sweeps.h"
#include "gauge/leg_maps.h"
#include "kernels/heads.h"
#include "kernels/tensors.h"
#include "placement/lyapunov.h"
#include "union_find.h"

namespace ddc {
namespace {

/// Gauges that disturb each other are swept so often per step. What is left is next time's.
constexpr int kSweeps = 8;
/// The same of turns of both axes of a tensor.
constexpr int kTurns = 3;
/// Moves that are rounding in float32.
constexpr double kFloatTolerance = 1e-6;
/// Weights of sets that are measured together, and then moved: as many as stay in the cache.
constexpr int64_t kTogether = 1 << 21;
/// Blocks up to this size fit the caches of one core.
constexpr int64_t kSmall = 256;

/// W s for a matrix that reads s along an axis.
at::Tensor read(const at::Tensor& matrix, int64_t axis, const at::Tensor& s) {
  return axis == 1 ? matrix.mv(s) : matrix.t().mv(s);
}

/// Whether linear gauges are held where both Gram matrices are equal, and not where they were found.
bool is_identity(const at::Tensor& targets) {
  return !targets.defined() ||
         (targets == at::eye(targets.size(-1), targets.options())).all().item<bool>();
}

bool is_double(const Plan& plan, const std::vector<size_t>& gauges) {
  return std::all_of(gauges.begin(), gauges.end(), [&](size_t k) {
    return plan.tensors[plan.gauges[k].legs.front().tensor].compute_type() == at::kDouble;
  });
}

}  // namespace

void Held::Sides::add_(const BoundLeg& leg, const at::Tensor& value) {
  auto& side = leg.exponent > 0 ? plus : minus;
  side = side.defined() ? side + value : value;
}

Held::Held(CoordinateSystem system, bool one_pass)
    : system_(std::move(system)), count_(at::zeros({}, at::kLong)), one_pass_(one_pass) {
  find_sets_();
  refresh_();
  anchor_(/*all=*/true);
}

/// A gauge that is placed and not held ties nothing together: a rotation of the residual stream would tie all.
void Held::find_sets_() {
  const auto& plan = system_.plan();
  UnionFind tied(plan.tensors.size());
  for (size_t k = 0; k < plan.gauges.size(); ++k) {
    if (!is_held(k)) continue;
    const auto& gauge = plan.gauges[k];
    for (const auto& leg : gauge.legs) {
      tied.join(gauge.legs.front().tensor, leg.tensor);
      if (leg.gain) tied.join(leg.tensor, *leg.gain);
      if (leg.bias) tied.join(leg.tensor, *leg.bias);
    }
  }
  for (const auto& drain : plan.drains) {
    tied.join(drain.source, drain.sink);
    if (drain.matrix) tied.join(drain.source, *drain.matrix);
  }
  std::map<size_t, Set> sets;
  const auto set_of = [&](size_t k) -> Set& {
    return sets[tied.find(plan.gauges[k].legs.front().tensor)];
  };
  for (const auto& component : plan.components) {
    for (const size_t k : component.gauges) {
      if (!is_held(k)) continue;
      set_of(k).gauges.push_back(k);
      for (const auto& leg : plan.gauges[k].legs) {
        const auto& uses = plan.tensors[leg.tensor].blocks;
        for (size_t i = 0; i < uses.size(); ++i) {
          for (size_t j = 0; j < i; ++j) {
            set_of(k).overlapping |=
                turns(uses[i].gauge) && turns(uses[j].gauge) && plan.meet(uses[i], uses[j]);
          }
        }
      }
    }
    // A vector is emptied after all that flows into it.
    for (const size_t d : component.drains) {
      for (const size_t k : component.gauges) {
        if (plan.gauges[k].gauge.action != Action::exchange || !is_held(k) ||
            plan.gauges[k].legs.front().tensor != plan.drains[d].source) {
          continue;
        }
        auto& exchanges = set_of(k).exchanges;
        if (std::count(exchanges.begin(), exchanges.end(), k) == 0) exchanges.push_back(k);
      }
    }
  }
  for (auto& entry : sets) {
    entry.second.coupled = is_coupled(plan, entry.second.gauges);
    entry.second.deferred = Deferred::make(plan, entry.second.gauges, entry.second.exchanges,
                                           /*planes=*/one_pass_ && !entry.second.overlapping);
    sets_.push_back(std::move(entry.second));
  }
  deferred_of_.assign(plan.tensors.size(), nullptr);
  open_of_ = deferred_of_;
  for (auto& set : sets_) {
    if (!one_pass_ || !set.deferred || !set.deferred->can_step() || !set.deferred->fits()) continue;
    set.deferred->make_published_();
    for (const size_t t : set.deferred->tensors()) deferred_of_[t] = &*set.deferred;
  }
}

std::vector<std::pair<size_t, at::Tensor*>> Held::pending() {
  std::vector<std::pair<size_t, at::Tensor*>> result;
  for (auto& set : sets_) {
    if (!set.deferred) continue;
    for (auto& [tensor, moves] : set.deferred->published()) result.emplace_back(tensor, &moves);
  }
  return result;
}

void Held::refresh_() {
  for (const auto& tensor : system_.plan().tensors) {
    if (tensor.through) gains_[tensor.through->gain] = value(tensor.through->gain).clone();
  }
  for (auto& set : sets_) {
    if (set.deferred) set.deferred->resume_();
  }
  degenerate_.clear();
  small_.clear();
  for (size_t k = 0; k < system_.gauge_states().size(); ++k) {
    const auto& gauge = system_.plan().gauges[k];
    const auto& state = system_.gauge_states()[k];
    degenerate_.push_back(!state.bound.all().item<bool>());
    small_.push_back(gauge.gauge.mixes() && gauge.device().is_cpu() && !degenerate_[k] &&
                     gauge.gauge.block > 2 && gauge.gauge.block <= kSmall &&
                     !gauge.gauge.fixes_ones && (!gauge.is_linear() || is_identity(state.target)));
  }
}

bool Held::is_held(size_t k) const { return !system_.plan().gauges[k].projects(Projection::never); }

bool Held::is_due(size_t k) const {
  const int64_t step = *count_.const_data_ptr<int64_t>() + 1;
  return is_held(k) && step % *system_.plan().gauges[k].treatment.every == 0;
}

bool Held::is_degenerate(const Set& set) const {
  return std::ranges::any_of(
      set.gauges, [&](size_t k) { return system_.plan().gauges[k].is_scale() && degenerate_[k]; });
}

bool Held::turns_in_pass(size_t k) const {
  const auto* deferred = deferred_of_[system_.plan().gauges[k].legs.front().tensor];
  return deferred != nullptr && deferred->turns(k);
}

bool Held::turns(size_t k) const { return system_.plan().gauges[k].gauge.mixes() && is_held(k); }

void Held::anchor_(bool all) {
  const auto& plan = system_.plan();
  for (auto& [t, gain] : gains_) gain.copy_(value(t));
  for (size_t k = 0; k < plan.gauges.size(); ++k) {
    if (!turns(k) || turns_in_pass(k) || !(all || is_due(k))) continue;
    for (const auto& leg : plan.gauges[k].legs) {
      auto& anchor = anchors_[{leg.tensor, *plan.gauges[k].treatment.every}];
      const auto weights = plan.tensors[leg.tensor].tensor.detach();
      if (anchor.defined()) {
        anchor.copy_(weights);
      } else {
        anchor = weights.clone();
      }
    }
  }
}

at::Tensor Held::value(size_t t) const {
  const auto& tensor = system_.plan().tensors[t];
  const auto weights =
      deferred_of_[t] == nullptr ? tensor.tensor.detach() : deferred_of_[t]->settled(t);
  return tensor.offset == 0 ? weights : weights + tensor.offset;
}

at::Tensor Held::seen(size_t t) const {
  const auto& through = system_.plan().tensors[t].through;
  const auto x = value(t);
  return through ? x * along_axis(value(through->gain), through->axis, x.dim()) : x;
}

void Held::write_seen_(size_t k, size_t l, const at::Tensor& seen) {
  const auto& plan = system_.plan();
  const auto& leg = plan.gauges[k].legs[l];
  auto weights = plan.tensors[leg.tensor].tensor.detach();
  const auto changed = seen / along_axis(value(*leg.gain), leg.map.axis(), seen.dim());
  for (const auto& drain : plan.drains) {
    if (!leg.bias || drain.matrix != leg.tensor || drain.sink != *leg.bias) continue;
    const auto shift = drain.given(value(drain.source));
    plan.tensors[drain.sink].tensor.detach().sub_(
        read(changed - weights, drain.map.axis(), shift.flatten()));
  }
  weights.copy_(changed);
}

at::Tensor Held::shift(size_t k) const {
  const auto& gauge = system_.plan().gauges[k];
  Tensors x(system_.plan().tensors.size());
  for (size_t l = 0; l < gauge.shift_legs(); ++l) {
    const auto& leg = gauge.legs[l];
    x[leg.tensor] = leg.gain ? seen(leg.tensor) : value(leg.tensor);
  }
  return shift_part(gauge, x);
}

void Held::empty_(size_t k) {
  const auto& plan = system_.plan();
  const auto& gauge = plan.gauges[k];
  const auto given = shift(k);
  for (size_t l = 1; l < gauge.legs.size(); ++l) {
    const auto& leg = gauge.legs[l];
    auto sink = plan.tensors[leg.bias.value_or(leg.tensor)].tensor.detach();
    const auto along = leg.map.gather_vector(given, 0).flatten().to(sink.scalar_type());
    sink.add_(leg.bias ? read(value(leg.tensor), leg.map.axis(), along) : along);
  }
  auto source = plan.tensors[gauge.legs.front().tensor].tensor.detach();
  source.sub_(shift_of_leg(gauge.legs.front(), given).to(source.scalar_type()));
}

void Held::centre_(size_t k) {
  const auto& gauge = system_.plan().gauges[k];
  const auto mean = shift(k);
  for (size_t l = 0; l < gauge.legs.size(); ++l) {
    const auto& leg = gauge.legs[l];
    auto weights = system_.plan().tensors[leg.tensor].tensor.detach();
    const auto change = shift_of_leg(leg, mean).to(weights.scalar_type());
    if (leg.gain) {
      write_seen_(k, l, seen(leg.tensor).sub_(change));
    } else {
      weights.sub_(change);
    }
  }
}

Squares Held::squares_of(const std::vector<size_t>& gauges) const {
  Squares squares(system_.plan().tensors.size());
  std::vector<bool> done(squares.size());
  for (const size_t k : gauges) {
    const auto& gauge = system_.plan().gauges[k];
    for (const auto& leg : gauge.legs) {
      if (!done[leg.tensor]) squares[leg.tensor] = AxisSquares(seen(leg.tensor));
      done[leg.tensor] = true;
      // Nothing else is needed of a gain that is not zero.
      if (gauge.is_folded() && !degenerate_[k]) break;
    }
  }
  return squares;
}

SectionValue Held::section_of(size_t k, const Squares& squares) const {
  const auto& gauge = system_.plan().gauges[k];
  const double smallest = smallest_norm(system_.plan(), gauge);
  if (gauge.is_folded() && !degenerate_[k]) return first_leg_section(gauge, squares, smallest);
  return section(gauge, squares, smallest);
}

std::vector<at::Tensor> Held::scale_(const std::vector<size_t>& gauges) {
  if (gauges.empty()) return {};
  const auto& plan = system_.plan();
  auto squares = squares_of(gauges);
  std::vector<at::Tensor> moves;
  for (const size_t k : gauges) {
    const auto& gauge = plan.gauges[k];
    const auto& state = system_.gauge_states()[k];
    if (degenerate_[k]) system_.update_binding_(squares, k);
    const auto now = section_of(k, squares);
    moves.push_back(at::where(state.bound & now.alive,
                              (state.target - now.value) / section_weight(gauge), 0.0) *
                    sweeps::damping(gauge));
    move_squares_(gauge, moves.back(), squares);
  }
  for (size_t i = 0; i < gauges.size(); ++i) {
    // The host does not wait for an accelerator.
    check_finite(!moves[i].is_cpu() || moves[i].isfinite().all().item<bool>(), gauges[i]);
  }
  // Weights are moved when all sums over them have been taken.
  for (size_t i = 0; i < gauges.size(); ++i) {
    for (const auto& leg : plan.gauges[gauges[i]].legs) {
      auto weights = plan.tensors[leg.tensor].tensor.detach();
      const auto factor =
          leg.map.gather_vector((moves[i] * leg.exponent).exp(), 1).to(weights.options());
      const double offset = plan.tensors[leg.tensor].offset;
      if (offset != 0) weights.add_(offset);
      weights.mul_(factor);
      if (offset != 0) weights.sub_(offset);
    }
  }
  return moves;
}

Held::Sides Held::at_target(const at::Tensor& target, const Sides& sides) {
  const auto inverse = std::get<0>(at::linalg_inv_ex(target));
  return {target.matmul(sides.plus).matmul(target.mT()),
          inverse.mT().matmul(sides.minus).matmul(inverse)};
}

Held::Sides Held::grams(size_t k) const {
  Sides sides;
  for (const auto& leg : system_.plan().gauges[k].legs) {
    const auto x = leg.blocks->take(seen(leg.tensor));
    sides.add_(leg, x.matmul(x.mT()).to(at::kDouble));
  }
  return sides;
}

at::Tensor Held::gain_before(size_t t, const at::Tensor& like) const {
  const auto& through = system_.plan().tensors[t].through;
  return through ? along_axis(gains_.at(through->gain), through->axis, like.dim()) : at::Tensor();
}

Held::Sides Held::turned(size_t k) const {
  const auto& gauge = system_.plan().gauges[k];
  Sides sides;
  for (const auto& leg : gauge.legs) {
    const auto once = before_.find(leg.tensor);
    auto before = once != before_.end() && turns_in_pass(k)
                      ? once->second
                      : anchors_.at({leg.tensor, *gauge.treatment.every});
    if (const auto gain = gain_before(leg.tensor, before); gain.defined()) before = before * gain;
    const auto product = leg.blocks->take(before).matmul(leg.blocks->take(seen(leg.tensor)).mT());
    sides.add_(leg, product.to(at::kDouble));
  }
  return sides;
}

void Held::balance_heads_(size_t k, const Sides& turned) {
  const auto& plan = system_.plan();
  const auto& gauge = plan.gauges[k].gauge;
  const bool balances =
      plan.gauges[k].is_linear() && !plan.gauges[k].plus.empty() && !plan.gauges[k].minus.empty();
  if (!balances && !turned.plus.defined() && !turned.minus.defined()) return;
  const auto sides = balances ? grams(k) : Sides();
  auto factor = at::empty({gauge.blocks(), gauge.block, gauge.block}, at::kDouble);
  auto dual = plan.gauges[k].is_linear() ? at::empty_like(factor) : factor;
  const double rounding =
      is_double(plan, {k}) ? std::numeric_limits<double>::epsilon() : kFloatTolerance;
  kernels::one_by_one(static_cast<size_t>(gauge.blocks()), [&](size_t block) {
    const auto of = [&](const at::Tensor& matrices) {
      return matrices.defined()
                 ? matrices.data_ptr<double>() + matrices.stride(0) * static_cast<int64_t>(block)
                 : nullptr;
    };
    kernels::HeadMove head{gauge.block,
                           of(sides.plus),
                           of(sides.minus),
                           of(turned.plus),
                           of(turned.minus),
                           of(factor),
                           dual.is_same(factor) ? nullptr : of(dual)};
    if (kernels::find_move(head, rounding)) return;
    const at::NoGradGuard no_grad_here;  // of this thread
    const auto& both = balances ? sides : turned;
    at::Tensor sum;
    for (const auto& side : {both.plus, both.minus}) {
      if (!side.defined()) continue;
      const auto own = side[static_cast<int64_t>(block)];
      sum = sum.defined() ? sum + own : own;
    }
    const auto basis = std::get<1>(at::linalg_eigh(sum + sum.mT())).mT().contiguous();
    head.basis = basis.const_data_ptr<double>();
    kernels::find_move(head, rounding);
  });
  multiply_(k, factor, dual);
}

void Held::balance_(size_t k, const Sides& turned) {
  if (small_[k]) return balance_heads_(k, turned);
  const auto& gauge = system_.plan().gauges[k];
  auto& state = system_.gauge_states()[k];
  const auto per_block = state.bound.view({-1, 1, 1});
  at::Tensor factor;
  if (gauge.is_linear() && !gauge.plus.empty() && !gauge.minus.empty()) {
    const auto sides = grams(k);
    if (degenerate_[k]) update_linear_binding_(gauge, sides.plus, sides.minus, state);
    const auto& t = state.target;
    const auto there = at_target(t, sides);
    // What was as good as zero a moment ago changes by a multiple of itself in a step.
    const auto balancing = degenerate_[k] ? exact_balancing_factor(there.plus, there.minus)
                                          : balancing_factor(there.plus, there.minus);
    const auto balanced = std::get<0>(at::linalg_inv_ex(t)).matmul(balancing).matmul(t);
    factor = at::where(per_block, balanced, at::eye(t.size(-1), t.options()));
  }
  if (turned.plus.defined() || turned.minus.defined()) {
    at::Tensor overlap = turned.plus;
    if (factor.defined() && overlap.defined()) overlap = overlap.matmul(factor.mT());
    if (turned.minus.defined()) {
      const auto minus = factor.defined()
                             ? turned.minus.matmul(std::get<0>(at::linalg_inv_ex(factor)))
                             : turned.minus;
      overlap = overlap.defined() ? overlap + minus : minus;
    }
    at::Tensor turn;
    if (gauge.gauge.fixes_ones) {
      const auto& inside = gauge.complement;
      turn =
          inside.matmul(turn_back(inside.t().matmul(overlap).matmul(inside))).matmul(inside.t()) +
          1.0 / static_cast<double>(gauge.gauge.block);
    } else {
      turn = turn_back(overlap);
    }
    factor = factor.defined() ? turn.matmul(factor) : turn;
  }
  if (!factor.defined()) return;
  multiply_(k, factor, gauge.is_linear() ? std::get<0>(at::linalg_inv_ex(factor)).mT() : factor);
}

void Held::multiply_(size_t k, const at::Tensor& plus, const at::Tensor& minus) {
  const auto& gauge = system_.plan().gauges[k];
  for (size_t l = 0; l < gauge.legs.size(); ++l) {
    const auto& leg = gauge.legs[l];
    const auto& matrices = leg.exponent > 0 ? plus : minus;
    // A gain along another axis does not matter.
    auto x = leg.gain ? seen(leg.tensor) : system_.plan().tensors[leg.tensor].tensor.detach();
    leg.blocks->put_(x, matrices.to(x.options()).matmul(leg.blocks->take(x)));
    if (leg.gain) write_seen_(k, l, x);
  }
}

void Held::check_finite(bool is_finite, size_t k) const {
  const auto& gauge = system_.plan().gauges[k];
  TORCH_CHECK_LINALG(
      is_finite, "gauge '", gauge.gauge.name, "': a step made '",
      system_.plan().tensors[gauge.legs.front().tensor].name,
      "' or a tensor beside it so large that its squares overflow; weights are finite, and not "
      "brought back to their canonical place");
}

bool Held::is_open() const {
  return std::ranges::any_of(sets_, [](const Set& set) { return set.open; });
}

void Held::open_(const std::vector<bool>& can_step) {
  const at::NoGradGuard no_grad;
  std::ranges::fill(open_of_, nullptr);
  before_.clear();
  gradients_.clear();
  for (auto& set : sets_) {
    if (!set.deferred || deferred_of_[set.deferred->tensors().front()] == nullptr) continue;
    const auto tensors = set.deferred->tensors();
    set.open = !is_degenerate(set) && set.deferred->fits() && set.deferred->gains_are_one() &&
               std::ranges::all_of(tensors, [&](size_t t) { return can_step[t]; });
    if (set.open) {
      set.deferred->open_();
      for (const size_t t : tensors) open_of_[t] = &*set.deferred;
      continue;
    }
    for (const size_t t : tensors) {
      if (auto moved = set.deferred->moved_gradient(t); moved.defined())
        gradients_[t] = std::move(moved);
    }
    set.deferred->settle_(/*gradients=*/false);
    for (const size_t k : set.gauges) {
      if (!turns_in_pass(k)) continue;
      for (const auto& leg : system_.plan().gauges[k].legs) {
        before_[leg.tensor] = system_.plan().tensors[leg.tensor].tensor.detach().clone();
      }
    }
  }
}

at::Tensor Held::gradient(size_t t) const {
  if (is_open(t)) return open_of_[t]->gradient(t);
  const auto found = gradients_.find(t);
  return found == gradients_.end() ? at::Tensor() : found->second;
}

void Held::fold_() {
  for (auto& set : sets_) {
    if (set.open) set.deferred->fold_(system_.gauge_states(), [&](size_t k) { return is_due(k); });
  }
}

void Held::settle_() {
  const at::NoGradGuard no_grad;
  for (auto& set : sets_) {
    if (!set.deferred) continue;
    set.deferred->settle_(/*gradients=*/true);
    set.deferred->publish_();
  }
}

void Held::forget_() {
  for (auto& set : sets_) {
    if (set.deferred) set.deferred->forget_();
  }
}

CoordinateSystem Held::settled() const {
  return system_.at([&](size_t t) {
    return deferred_of_[t] == nullptr ? system_.plan().tensors[t].tensor
                                      : deferred_of_[t]->settled(t);
  });
}

void Held::restore_() {
  const at::NoGradGuard no_grad;
  std::vector<Set*> together;
  int64_t size = 0;
  for (auto& set : sets_) {
    if (std::exchange(set.open, false)) {
      close_(set);
    } else if (fits_a_pass(set)) {
      // Between the two passes over them, weights stay in the cache.
      if (!together.empty() && size + set.deferred->size() > kTogether) {
        restore_(together);
        together.clear();
        size = 0;
      }
      together.push_back(&set);
      size += set.deferred->size();
    } else {
      restore_(set);
    }
  }
  restore_(together);
  for (auto& set : sets_) {
    if (set.deferred) set.deferred->publish_();
  }
  std::ranges::fill(open_of_, nullptr);
  before_.clear();
  gradients_.clear();
  anchor_(/*all=*/false);
  count_.add_(1);
}

void Held::close_(Set& set) {
  const auto due = [&](size_t k) { return is_due(k); };
  auto& deferred = *set.deferred;
  deferred.close_(system_.gauge_states(), due, [&](size_t k) { empty_(k); });
  std::vector<size_t> mixing;
  for (const size_t k : set.gauges) {
    if (turns(k) && is_due(k) && !turns_in_pass(k)) mixing.push_back(k);
  }
  if (mixing.empty()) return;
  deferred.settle_(/*gradients=*/false);
  mix_(set, mixing, [&](bool first) {
    if (first) return 0.0;
    double moved = 0;
    for (const bool is_folded : {true, false}) {
      std::vector<size_t> scales;
      for (const size_t k : set.gauges) {
        const auto& gauge = system_.plan().gauges[k];
        if (gauge.is_scale() && is_due(k) && gauge.is_folded() == is_folded) scales.push_back(k);
      }
      moved = std::max(moved, deferred.collect_(scales, system_.gauge_states()));
    }
    deferred.settle_(/*gradients=*/false);
    return moved;
  });
}

/// Two that turn both axes of a tensor disturb each other, and scales.
void Held::mix_(Set& set, const std::vector<size_t>& mixing,
                const std::function<double(bool first)>& scale) {
  const auto& plan = system_.plan();
  const bool overlap = set.overlapping && mixing.size() > 1;
  // Chains of scales alone are swept until nothing moves.
  const bool chain = set.coupled && mixing.empty();
  const double rounding = is_double(plan, set.gauges) ? sweeps::kTolerance : kFloatTolerance;
  const int least = set.coupled ? kSweeps : overlap ? kTurns : 1;
  const int most = chain ? sweeps::kMostPerStep : least;
  double moved = 0;
  for (int sweep = 0; sweep < least || (sweep < most && moved > rounding); ++sweep) {
    moved = scale(sweep == 0);
    for (const size_t k : mixing) {
      const bool turns = sweep == 0 || (overlap && sweep < kTurns);
      if (turns || plan.gauges[k].is_linear()) balance_(k, turns ? turned(k) : Sides());
    }
  }
}

bool Held::fits_a_pass(const Set& set) const {
  return set.deferred && set.deferred->is_complete() && !is_degenerate(set) &&
         set.deferred->fits() && std::ranges::none_of(set.gauges, [&](size_t k) {
           return system_.plan().gauges[k].gauge.mixes() && is_due(k);
         });
}

void Held::restore_(const std::vector<Set*>& sets) {
  const auto due = [&](size_t k) { return is_due(k); };
  Deferred::Pass pass;
  std::vector<Set*> moving;
  for (auto* set : sets) {
    if (std::ranges::none_of(set->gauges, due)) continue;
    moving.push_back(set);
    for (const size_t k : set->exchanges) {
      if (is_due(k)) empty_(k);
    }
    set->deferred->measure_(system_.gauge_states(), due, pass);
  }
  kernels::run(pass);
  pass.clear();
  for (auto* set : moving) set->deferred->find_(system_.gauge_states(), due);
  for (auto* set : moving) {
    if (set->deferred->is_finite()) continue;
    for (auto* other : moving) other->deferred->forget_();
    check_finite(false, set->gauges.front());
  }
  for (auto* set : moving) set->deferred->settle_(/*gradients=*/false, pass);
  kernels::run(pass);
  for (auto* set : moving) set->deferred->forget_moves_();
}

void Held::restore_(Set& set) {
  const auto& plan = system_.plan();
  std::vector<size_t> folded;
  std::vector<size_t> balanced;
  std::vector<size_t> shifts;
  std::vector<size_t> mixing;
  for (const size_t k : set.gauges) {
    const auto& gauge = plan.gauges[k];
    if (!is_due(k)) continue;
    if (gauge.is_scale()) (gauge.is_folded() ? folded : balanced).push_back(k);
    if (gauge.gauge.action == Action::shift) shifts.push_back(k);
    if (gauge.gauge.mixes()) mixing.push_back(k);
  }
  for (const size_t k : set.exchanges) {
    if (is_due(k)) empty_(k);
  }
  auto* loops =
      !is_degenerate(set) && set.deferred && set.deferred->fits() ? &*set.deferred : nullptr;
  // How far the last sweep moved anything; on an accelerator the host does not look.
  const auto scale = [&](const std::vector<size_t>& gauges) {
    double moved = 0;
    if (loops != nullptr) {
      moved = loops->collect_(gauges, system_.gauge_states());
    } else {
      for (const auto& move : scale_(gauges)) {
        if (move.is_cpu()) moved = std::max(moved, move.abs().max().item<double>());
      }
    }
    return moved;
  };
  // All others read and write the weights themselves.
  const auto write = [&] {
    if (loops == nullptr) return;
    if (!loops->is_finite()) {
      loops->forget_();
      check_finite(false, set.gauges.front());
    }
    loops->settle_(/*gradients=*/false);
  };
  const bool at_once = loops != nullptr && loops->is_complete();
  if (at_once) {
    const auto due = [&](size_t k) { return is_due(k); };
    Deferred::Pass pass;
    loops->measure_(system_.gauge_states(), due, pass);
    kernels::run(pass);
    loops->find_(system_.gauge_states(), due);
  } else {
    scale(folded);
    if (!shifts.empty()) write();
    for (const size_t k : shifts) centre_(k);
  }
  mix_(set, mixing, [&](bool first) {
    if (!first) scale(folded);
    const double moved = first && at_once ? 0 : scale(balanced);
    if (!mixing.empty()) write();
    return moved;
  });
  write();
}

double Held::distance(size_t k) const {
  const at::NoGradGuard no_grad;
  const auto largest = [](const at::Tensor& size) {
    return size.numel() > 0 ? size.abs().max().item<double>() : 0.0;
  };
  const auto& gauge = system_.plan().gauges[k];
  const auto& state = system_.gauge_states()[k];
  if (!is_held(k) || gauge.gauge.action == Action::rotation) return 0;
  if (gauge.is_shift()) return largest(shift(k));
  if (gauge.is_scale()) {
    const auto now = section_of(k, squares_of({k}));
    return largest(at::where(state.bound & now.alive, now.value - state.target, 0.0));
  }
  if (gauge.plus.empty() || gauge.minus.empty()) return 0;
  const auto sides = at_target(state.target, grams(k));
  const auto size = sides.plus.norm(2, {1, 2}) + sides.minus.norm(2, {1, 2});
  const auto apart = (sides.plus - sides.minus).norm(2, {1, 2});
  return largest(at::where(state.bound & (size > 0), apart / size, 0.0));
}

}  // namespace ddc
