#include "coordinates/blocks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace ddc {
namespace {

/// Eigenvalues nearer to each other than this share of the largest are taken for one: their
/// eigenvectors would be accurate to rounding divided by the gap only.
constexpr double kCluster = 3e-3;
/// Weightings of which the one that tells a cluster's directions apart best is taken.
constexpr int kWeightings = 16;
/// Sides with a condition number above the root of the inverse of this are not of full rank.
constexpr double kFullRank = 1e-11;
/// Sums of eigenvalues below this share of the largest do not fix an angle.
constexpr double kOrbitRank = 1e-12;
/// A linear block is bound once its sides are within this factor of each other.
constexpr double kComparable = 100;

at::Tensor transposed(const at::Tensor& m) { return m.transpose(-1, -2); }
at::Tensor symmetric(const at::Tensor& m) { return (m + transposed(m)) * 0.5; }
at::Tensor identity(const GaugePlan& gauge) {
  const auto& g = gauge.gauge;
  return at::eye(g.block, gauge.options()).expand({g.blocks(), g.block, g.block}).clone();
}
/// [blocks] -> [blocks, 1, 1].
at::Tensor per_block(const at::Tensor& v) { return v.view({-1, 1, 1}); }

/// The same Gram matrix with fixed generic weights on the entries: covariant as well, and not
/// degenerate where the plain one is (orthogonal initialisation, a whitened side). Several of them, on
/// the CPU, [weightings, blocks, block, block].
at::Tensor weighted_grams(const GaugePlan& gauge, const Tensors& x) {
  const auto& g = gauge.gauge;
  std::vector<at::Tensor> totals(kWeightings,
                                 at::zeros({g.blocks(), g.block, g.block}, at::kDouble));
  for (const auto& leg : gauge.legs) {
    if (leg.mixed_later) continue;
    const auto part = leg.blocks->take(x[leg.tensor]).to(at::kCPU);
    const auto index = at::arange(1, part.size(-1) + 1, at::kDouble);
    for (int w = 0; w < kWeightings; ++w) {
      const auto weights = (index * std::sqrt(2.0 + w)).cos() + 1.5;
      totals[w] = totals[w] + (part * weights).matmul(transposed(part));
    }
  }
  return at::stack(totals);
}

/// Sums of every coordinate with fixed generic weights along the free axes, [weightings, blocks, block, 1].
at::Tensor weighted_sums(const GaugePlan& gauge, const Tensors& x) {
  const auto& g = gauge.gauge;
  std::vector<at::Tensor> totals(kWeightings, at::zeros({g.blocks(), g.block, 1}, at::kDouble));
  for (const auto& leg : gauge.legs) {
    if (leg.mixed_later) continue;
    const auto part = leg.blocks->take(x[leg.tensor]).to(at::kCPU);
    const auto index = at::arange(1, part.size(-1) + 1, at::kDouble).unsqueeze(-1);
    for (int w = 0; w < kWeightings; ++w) {
      totals[w] = totals[w] + part.matmul((index * std::sqrt(2.0 + w)).cos());
    }
  }
  return at::stack(totals);
}

/// The eigenbasis, within the span of `columns`, of the matrix whose eigenvalues there are farthest
/// apart. (The choice is invariant, so the basis is covariant.)
at::Tensor best_told_apart(const at::Tensor& columns, const at::Tensor& matrices) {
  const auto inside = symmetric(columns.t().matmul(matrices).matmul(columns));
  const auto [values, vectors] = at::linalg_eigh(inside);
  const auto gaps =
      (values.narrow(1, 1, values.size(1) - 1) - values.narrow(1, 0, values.size(1) - 1)).amin(1);
  return columns.matmul(vectors[gaps.argmax().item<int64_t>()]);
}

/// An orthonormal basis of the columns' span that is as near to the columns of `guide` as can be, of
/// which those that lie in it most are taken. Undefined if they do not span it.
at::Tensor aligned(const at::Tensor& columns, const at::Tensor& guide) {
  const auto overlap = columns.t().matmul(guide);  // [cluster, block]
  const auto chosen = std::get<1>(overlap.square().sum(0).topk(columns.size(1)));
  const auto square = overlap.index_select(1, std::get<0>(chosen.sort()));
  const auto [u, s, vh] = at::linalg_svd(square, /*full_matrices=*/false);
  if (s[-1].item<double>() < 0.1) return {};
  return columns.matmul(u.matmul(vh));
}

/// The eigenbasis of symmetric matrices, columns by ascending eigenvalue. Within clusters of nearly
/// equal eigenvalues it follows the identity if `keep` (the frame there is now), else the weighted
/// Gram matrices that `weigh` returns. Found on the CPU, which looks at every eigenvalue.
template <class Weigh>
at::Tensor eigenbasis(const at::Tensor& matrices, bool keep, const Weigh& weigh) {
  at::Tensor weighted;
  auto [values, vectors] = at::linalg_eigh(symmetric(matrices).to(at::kCPU));
  vectors = vectors.contiguous();
  const int64_t size = values.size(1);
  const auto* value = values.const_data_ptr<double>();
  for (int64_t b = 0; b < values.size(0); ++b, value += size) {
    const double near = kCluster * std::max(value[size - 1], 0.0);
    for (int64_t first = 0, last = 0; first < size; first = last) {
      for (last = first + 1; last < size && value[last] - value[last - 1] <= near;) ++last;
      if (last == first + 1) continue;
      auto columns = vectors[b].narrow(1, first, last - first);
      at::Tensor basis;
      if (keep) basis = aligned(columns.clone(), at::eye(size, at::kDouble));
      if (!basis.defined()) {
        if (!weighted.defined()) weighted = weigh();
        basis = best_told_apart(columns, weighted.select(1, b));
      }
      columns.copy_(basis);
    }
  }
  return vectors.to(matrices.device());
}

struct Balance {
  /// G with G M_plus G^T = G^-T M_minus G^-1, diagonal.
  at::Tensor factor;
  at::Tensor full_rank;
};

at::Tensor has_full_rank(const at::Tensor& grams) {
  const auto values = at::linalg_eigvalsh(symmetric(grams));
  const auto largest = values.select(1, -1);
  return (values.select(1, 0) > largest * kFullRank) & (largest > 1e-280);
}

at::Tensor where_block(const at::Tensor& mask, const at::Tensor& a, const at::Tensor& b) {
  return at::where(per_block(mask), a, b);
}

Balance balance(const at::Tensor& plus, const at::Tensor& minus) {
  const auto full_rank = has_full_rank(plus) & has_full_rank(minus);
  const auto one = at::eye(plus.size(-1), plus.options()).expand_as(plus);
  const auto root = at::linalg_cholesky(where_block(full_rank, symmetric(plus), one));
  const auto other = at::linalg_cholesky(where_block(full_rank, symmetric(minus), one));
  // The singular values of a product of roots are taken, not the eigenvalues of the Gram matrices' product: where
  // both sides are small in one direction, that has the square of this condition number, and the direction drowns.
  const auto [vectors, values, unused] =
      at::linalg_svd(transposed(root).matmul(other), /*full_matrices=*/false);
  const auto scale = values.clamp_min(1e-150).sqrt().unsqueeze(-1);
  return {scale * at::linalg_solve(transposed(root), vectors, /*left=*/true).transpose(-1, -2),
          full_rank};
}

at::Tensor symmetric_power(const at::Tensor& m, double exponent) {
  const auto [values, vectors] = at::linalg_eigh(symmetric(m));
  return (vectors * values.clamp_min(0).pow(exponent).unsqueeze(-2)).matmul(transposed(vectors));
}

/// The symmetric positive factor that balances: (G^T G)^(1/2).
at::Tensor symmetric_factor(const Balance& balance) {
  return symmetric_power(transposed(balance.factor).matmul(balance.factor), 0.5);
}

/// The norm a channel of the side has at a usual initialisation, [blocks, block, 1].
at::Tensor reference(const GaugePlan& gauge, const Side& side) {
  return side.reference.view({gauge.gauge.blocks(), gauge.gauge.block, 1});
}

/// F^-1 of a linear block one of whose sides is not of full rank: the other one becomes as large as at
/// a usual initialisation, in all directions.
at::Tensor one_sided(const GaugePlan& gauge, const at::Tensor& plus, const at::Tensor& minus) {
  auto inverse = identity(gauge);
  const auto whiten = [&](const at::Tensor& grams, const Side& side, bool dual) {
    const auto full_rank = has_full_rank(grams);
    const auto root =
        at::linalg_cholesky(where_block(full_rank, symmetric(grams), identity(gauge)));
    auto factor = reference(gauge, side) * at::linalg_inv(root);
    if (dual) factor = transposed(at::linalg_inv(factor));
    inverse = where_block(full_rank, factor, inverse);
  };
  if (!gauge.minus.empty()) whiten(minus, gauge.minus, true);
  if (!gauge.plus.empty()) whiten(plus, gauge.plus, false);
  return inverse;
}

}  // namespace

at::Tensor gram(const GaugePlan& gauge, const Tensors& x, int sign) {
  auto total = at::zeros_like(identity(gauge));
  for (const auto& leg : gauge.legs) {
    if (leg.exponent * sign >= 0) total += leg_gram(leg, x[leg.tensor]);
  }
  return total;
}

at::Tensor leg_gram(const BoundLeg& leg, const at::Tensor& x) {
  const auto part = leg.blocks->take(x);
  return part.matmul(transposed(part)).to(leg.home);
}

void bind_frame_(const GaugePlan& gauge, const Tensors& x, GaugeState& state) {
  state.frame = identity(gauge);
  state.target = identity(gauge);
  state.eigenvalues = at::ones({gauge.gauge.blocks(), gauge.gauge.block}, gauge.options());
  if (gauge.gauge.action == Action::linear) {
    const auto plus = gram(gauge, x, +1);
    const auto minus = gram(gauge, x, -1);
    const auto balanced = balance(plus, minus);
    // Weights that are not zero and fix no basis on either side have no place on their orbit to agree on.
    const auto size = plus.diagonal(0, -2, -1).sum(-1) + minus.diagonal(0, -2, -1).sum(-1);
    const auto lost =
        has_full_rank(plus).logical_or(has_full_rank(minus)).logical_not() & (size > 0);
    TORCH_CHECK_VALUE(!lost.any().item<bool>(), "gauge '", gauge.gauge.name, "' mixes ",
                      gauge.gauge.block, " channels, and neither side has full rank (in ",
                      lost.sum().item<int64_t>(), " of ", gauge.gauge.blocks(),
                      " blocks): the group does not act freely there, and cannot be held exactly; "
                      "leave the gauge out");
    state.frame = at::linalg_inv(
        where_block(balanced.full_rank, balanced.factor, one_sided(gauge, plus, minus)));
    state.bound = balanced.full_rank;
  } else {
    const auto total = gram(gauge, x);
    state.bound = total.diagonal(0, -2, -1).sum(-1) > 0;
  }
  state.known = state.bound.clone();
}

double refine_frame_(const GaugePlan& gauge, const Tensors& x, double damping, GaugeState& state) {
  const auto plus = gram(gauge, x, +1);
  const auto minus = gram(gauge, x, -1);
  auto factor = symmetric_factor(balance(plus, minus));
  if (damping != 1) factor = symmetric_power(factor, damping);
  factor = where_block(state.bound, factor, one_sided(gauge, plus, minus));
  state.frame = state.frame.matmul(at::linalg_inv(factor));
  return (factor - identity(gauge)).abs().max().item<double>();
}

void align_frame_(const GaugePlan& gauge, GaugeState& state, Tensors& x) {
  const auto grams = gram(gauge, x);
  const auto basis = eigenbasis(grams, /*keep=*/false, [&] { return weighted_grams(gauge, x); });
  state.frame = state.frame.matmul(basis);
  state.eigenvalues = transposed(basis).matmul(grams).matmul(basis).diagonal(0, -2, -1).clone();
  for (const auto& leg : gauge.legs) multiply_(leg, transposed(basis), x[leg.tensor]);
}

at::Tensor canonical_basis(const GaugePlan& gauge, const Tensors& x) {
  const auto grams = gram(gauge, x).to(at::kCPU);
  // Rotations that leave the vector of ones alone act on its complement.
  const auto inside = gauge.gauge.fixes_ones ? gauge.complement.to(at::kCPU) : at::Tensor();
  const auto within = [&](const at::Tensor& m) {
    return inside.defined() ? inside.t().matmul(m).matmul(inside) : m;
  };
  auto basis =
      eigenbasis(within(grams), /*keep=*/false, [&] { return within(weighted_grams(gauge, x)); });
  const auto columns = inside.defined() ? inside.matmul(basis) : basis;
  // The sign of an eigenvector is free. It is made that of a sum with generic weights, the one that is
  // farthest from zero of several.
  const auto sums = transposed(columns).matmul(weighted_sums(gauge, x)).squeeze(-1);
  const auto clearest = std::get<1>(sums.abs().max(0, /*keepdim=*/true));
  const auto chosen = sums.gather(0, clearest).squeeze(0);
  auto signs = at::where(chosen < 0, -1.0, 1.0).to(at::kDouble);
  if (gauge.gauge.block == 2 && gauge.gauge.action == Action::rotation) {
    // A rotary plane may be turned and not reflected: the second axis follows the first.
    const auto det = at::linalg_det(columns) * signs.prod(1);
    signs.select(1, 1).mul_(det.sign());
  }
  basis = basis * signs.unsqueeze(1);
  if (!inside.defined()) return basis.to(gauge.device());
  const double n = static_cast<double>(gauge.gauge.block);
  return (inside.matmul(basis).matmul(inside.t()) + 1 / n).to(gauge.device());
}

void multiply_(const BoundLeg& leg, const at::Tensor& matrices, at::Tensor& x) {
  leg.blocks->put_(x, matrices.to(x.options()).matmul(leg.blocks->take(x)));
}

at::Tensor leg_matrix(const BoundLeg& leg, const at::Tensor& element) {
  return leg.exponent > 0 ? element : transposed(at::linalg_inv(element));
}

Orbit orbit_at(const GaugePlan& gauge, const at::Tensor& gram) {
  const auto grams = symmetric(gram);
  Orbit orbit;
  if (gauge.gauge.block == 2) {
    // M A + A M = tr(M) A for a skew 2 x 2 matrix.
    orbit.denominator = per_block(grams.diagonal(0, -2, -1).sum(-1)).expand_as(grams).clone();
  } else {
    const auto [values, vectors] = at::linalg_eigh(grams);
    orbit.eigenvectors = vectors;
    orbit.denominator = values.unsqueeze(-1) + values.unsqueeze(-2);
  }
  const auto largest = orbit.denominator.amax({1, 2}, /*keepdim=*/true);
  const auto fixed = (orbit.denominator > largest * kOrbitRank) & (largest > 0);
  orbit.denominator = at::where(fixed, orbit.denominator, std::numeric_limits<double>::infinity());
  return orbit;
}

at::Tensor orbit_moment(const BoundLeg& leg, const at::Tensor& vector, const at::Tensor& x) {
  const auto product =
      leg.blocks->take(vector.to(at::kDouble)).matmul(transposed(leg.blocks->take(x))).to(leg.home);
  return product - transposed(product);
}

at::Tensor orbit_angle(const Orbit& orbit, const at::Tensor& moment) {
  if (!orbit.eigenvectors.defined()) return moment / orbit.denominator;
  const auto& u = orbit.eigenvectors;
  return u.matmul(transposed(u).matmul(moment).matmul(u) / orbit.denominator).matmul(transposed(u));
}

at::Tensor along_orbit(const BoundLeg& leg, const at::Tensor& angle, const at::Tensor& x) {
  auto result = leg.blocks->covers_axis() ? at::empty_like(x) : at::zeros_like(x);
  leg.blocks->put_(result, angle.to(x.device()).matmul(leg.blocks->take(x)));
  return result;
}

at::Tensor exact_balancing_factor(const at::Tensor& p, const at::Tensor& m) {
  return symmetric_factor(balance(p, m));
}

void update_linear_binding_(const GaugePlan& gauge, const at::Tensor& plus, const at::Tensor& minus,
                            GaugeState& state) {
  const auto direct = balance(plus, minus);
  const auto factor = symmetric_factor(direct);
  const auto log_ratio = at::linalg_eigvalsh(factor).clamp_min(1e-300).log();
  const auto usual =
      (reference(gauge, gauge.minus) / reference(gauge, gauge.plus)).log().mean({1, 2});
  const auto comparable = direct.full_rank & ((log_ratio * 2 - usual.unsqueeze(-1)).abs().amax(1) <=
                                              std::log(kComparable));
  const auto entering = state.bound.logical_not() & comparable;
  const auto first_time = entering & state.known.logical_not();
  state.target.copy_(where_block(first_time, factor, state.target));
  state.bound.logical_and_(direct.full_rank).logical_or_(entering);
  state.known.logical_or_(entering);
}

double rebalance_linear_(const GaugePlan& gauge, const Tensors& now, GaugeState& state,
                         Tensors& x) {
  if (gauge.plus.empty() || gauge.minus.empty()) return 0;
  const auto plus = gram(gauge, now, +1);
  const auto minus = gram(gauge, now, -1);
  update_linear_binding_(gauge, plus, minus, state);
  if (!state.bound.any().item<bool>()) return 0;

  const auto& t = state.target;
  const auto t_inverse = at::linalg_inv(t);
  const auto p = t.matmul(plus).matmul(transposed(t));
  const auto m = transposed(t_inverse).matmul(minus).matmul(t_inverse);
  const auto size = (p.norm(2, {1, 2}) + m.norm(2, {1, 2})).clamp_min(1e-300);
  const auto difference = at::where(state.bound, (p - m).norm(2, {1, 2}) / size, 0.0);
  const auto moving = difference > gauge.treatment.rebalance_above;
  if (moving.any().item<bool>()) {
    const auto factor = t_inverse.matmul(exact_balancing_factor(p, m)).matmul(t);
    const auto move = where_block(moving, factor, identity(gauge));
    for (const auto& leg : gauge.legs) multiply_(leg, leg_matrix(leg, move), x[leg.tensor]);
  }
  return difference.max().item<double>();
}

void procrustes_(const GaugePlan& gauge, const Tensors& before, Tensors& x) {
  auto overlap = at::zeros_like(identity(gauge));
  for (const auto& leg : gauge.legs) {
    const auto after = leg.blocks->take(x[leg.tensor]);
    overlap += leg.blocks->take(before[leg.tensor]).matmul(transposed(after)).to(leg.home);
  }
  const auto [u, s, vh] = at::linalg_svd(overlap, /*full_matrices=*/false);
  // Directions in which the weights vanish fix no rotation, and are left alone.
  const auto usable = s.select(1, -1) > s.select(1, 0) * kOrbitRank;
  const auto turn = where_block(usable, u.matmul(vh), identity(gauge));
  for (const auto& leg : gauge.legs) multiply_(leg, turn, x[leg.tensor]);
}

at::Tensor follow_frame_(const GaugePlan& gauge, const Tensors& x, bool follow, GaugeState& state) {
  const auto& treatment = gauge.treatment;
  const bool follows = follow && (treatment.second_moment == SecondMoment::body_frame ||
                                  treatment.second_moment == SecondMoment::body_frame_topk);
  if (!follows && (gauge.is_linear() || state.bound.all().item<bool>())) return {};
  const auto grams = symmetric(gram(gauge, x));
  const auto diagonal = grams.diagonal(0, -2, -1);
  const auto off = grams - at::diag_embed(diagonal);
  const auto norm = grams.norm(2, {1, 2});
  ++state.age;
  // Blocks that were zero until now get their frame; others only if the frame is to follow.
  auto moving = state.bound.logical_not() & (norm > 0);
  if (gauge.gauge.action == Action::rotation) state.bound.logical_or_(moving);
  if (gauge.is_linear()) moving = at::zeros_like(moving);
  if (follows && state.age.get() >= treatment.frame_interval) {
    moving = norm > 0;
    state.age.reset();
  } else if (follows) {
    moving = moving | ((off.norm(2, {1, 2}) > norm * treatment.frame_drift) & (norm > 0));
  }
  if (!moving.any().item<bool>()) return {};
  const auto turned_back =
      eigenbasis(grams, /*keep=*/true, [&] { return weighted_grams(gauge, x); });
  const auto basis = where_block(moving, turned_back, identity(gauge));
  const auto turned = transposed(basis).matmul(grams).matmul(basis).diagonal(0, -2, -1);
  state.eigenvalues.copy_(at::where(moving.unsqueeze(-1), turned, state.eigenvalues));
  state.recomputed += moving.sum().item<int64_t>();
  return basis;
}

at::Tensor linear_coordinate(const GaugePlan& gauge, const Tensors& weights) {
  const auto direct = balance(gram(gauge, weights, +1), gram(gauge, weights, -1));
  const auto square = transposed(direct.factor).matmul(direct.factor);
  const auto [values, vectors] = at::linalg_eigh(symmetric(square));
  const auto logs = values.clamp_min(1e-300).log().unsqueeze(-2);
  const auto nan = at::full({}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  return where_block(direct.full_rank, (vectors * logs).matmul(transposed(vectors)), nan);
}

}  // namespace ddc
