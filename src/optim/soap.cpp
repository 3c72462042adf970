#include "ddc/optim/soap.h"

#include <ATen/ATen.h>

#include <cmath>

#include "factors.h"

namespace ddc {

using namespace factors;

namespace {

Sides sides_of(const at::Tensor& gradient, const at::Tensor& matrices, const SoapOptions& options) {
  const bool is_vector = gradient.dim() < 2;
  return {matrices.size(-2) <= options.max_dim && (!is_vector || options.precondition_vectors),
          matrices.size(-1) <= options.max_dim && !is_vector};
}

/// Lets the rows that belong to eigenvalues that are not told apart share their mean.
at::Tensor share_rows(const at::Tensor& squares, const at::Tensor& values) {
  const auto n = values.size(-1);
  if (n < 2) return squares;
  const auto apart = values.diff() > values.amax(-1, /*keepdim=*/true) * 1e-5;
  const auto cluster = at::constant_pad_nd(apart.to(at::kLong).cumsum(-1), {1, 0});
  const auto same = (cluster.unsqueeze(-1) == cluster.unsqueeze(-2)).to(squares.scalar_type());
  return (same / same.sum(-1, /*keepdim=*/true)).matmul(squares);
}

at::Tensor share(at::Tensor squares, const SoapMoments& moments) {
  if (moments.left.defined()) squares = share_rows(squares, moments.left_values);
  if (moments.right.defined()) squares = share_rows(squares.mT(), moments.right_values).mT();
  return squares;
}

at::Tensor project(at::Tensor matrices, const SoapMoments& moments) {
  if (moments.left.defined()) matrices = moments.left_basis.mT().matmul(matrices);
  if (moments.right.defined()) matrices = matrices.matmul(moments.right_basis);
  return matrices;
}

at::Tensor project_back(at::Tensor matrices, const SoapMoments& moments) {
  if (moments.left.defined()) matrices = moments.left_basis.matmul(matrices);
  if (moments.right.defined()) matrices = matrices.matmul(moments.right_basis.mT());
  return matrices;
}

/// The matrices that have no basis yet.
at::Tensor without_basis(const SoapMoments& moments) {
  const auto& values = moments.left.defined() ? moments.left_values : moments.right_values;
  return (values.amax({-1}, /*keepdim=*/true) == 0).unsqueeze(-1);
}

bool all_have_bases(const SoapMoments& moments) {
  return !without_basis(moments).any().item<bool>();
}

/// Replaces the basis by the factor's eigenvectors where `stale` says so, and returns the squared
/// cosines between new (rows) and old vectors. `g` has the gradients, `is_first` says which are the
/// first that are not 0.
at::Tensor turn_basis_(const at::Tensor& factor, const at::Tensor& stale, const at::Tensor& g,
                       const at::Tensor& is_first, at::Tensor& basis, at::Tensor& values) {
  const auto type = factor.scalar_type();
  // The first basis has to diagonalise the gradient that it is made of, better than the eigenvectors
  // of a factor do that was rounded to float32: what is left off the diagonal would not be told
  // from a signal, and the step would be full of it.
  const auto exact = g.to(at::kDouble);
  const auto now =
      spectrum(at::where(is_first, exact.matmul(exact.mT()), factor.to(at::kDouble)), type);
  const auto old_basis = basis.clone();
  basis.copy_(at::where(stale, now.vectors.to(type), old_basis));
  values.copy_(at::where(stale.squeeze(-1),
                         at::where(now.values > now.noise, now.values, 0.0).to(type), values));
  return basis.mT().matmul(old_basis).square();
}

void update_basis_(SoapMoments& moments, const at::Tensor& g, const at::Tensor& is_first,
                   bool due) {
  // Between two computations all but matrices without a gradient have one, and the host need not ask.
  if (!due && moments.has_bases) return;
  const auto stale =
      due ? at::ones_like(moments.unit, at::kBool) : (moments.unit > 0) & without_basis(moments);
  if (!due && !stale.any().item<bool>()) {
    moments.has_bases = all_have_bases(moments);
    return;
  }
  auto squares = moments.exp_avg_sq.to(at::kDouble);
  if (moments.left.defined()) {
    const auto weights =
        turn_basis_(moments.left, stale, g, is_first, moments.left_basis, moments.left_values);
    squares = weights.to(at::kDouble).matmul(squares);
  }
  if (moments.right.defined()) {
    const auto weights = turn_basis_(moments.right, stale, g.mT(), is_first, moments.right_basis,
                                     moments.right_values);
    squares = squares.matmul(weights.to(at::kDouble).mT());
  }
  moments.exp_avg_sq.copy_(at::where(stale, share(squares, moments), moments.exp_avg_sq));
  moments.has_bases = all_have_bases(moments);
}

/// Where there have been gradients that stand out of the rounding errors of the projections, which are
/// relative to the size of what is projected: a column, a row, or all. Elsewhere, where a moment is 0
/// in exact arithmetic, Adam's quotient would be one of two errors.
at::Tensor has_signal(const SoapMoments& moments, at::ScalarType type) {
  const auto& squares = moments.exp_avg_sq;
  if (!moments.left.defined() && !moments.right.defined()) return squares > 0;
  auto total = squares.to(at::kDouble);
  if (moments.left.defined()) total = total.sum(-2, /*keepdim=*/true);
  if (moments.right.defined()) total = total.sum(-1, /*keepdim=*/true);
  // Some 10 times the errors of a product in float32. float64 has room for those of the eigenvectors
  // too, which are larger by the largest eigenvalue over the distance to the next.
  const double relative = type == at::kDouble ? 1e-9 : 1e-6;
  return squares > total * (relative * relative);
}

/// The largest energy that is kept, each after its decay.
at::Tensor energy(const SoapMoments& moments, double beta2, double shampoo_beta) {
  auto result = moments.exp_avg_sq.sum({-2, -1}, /*keepdim=*/true, at::kDouble) * beta2;
  for (const auto* factor : {&moments.left, &moments.right}) {
    if (factor->defined()) result = at::maximum(result, traces(*factor) * shampoo_beta);
  }
  return result;
}

}  // namespace

OptionList SoapOptions::options() {
  return {
      {"lr", lr, "learning rate", at_least(0)},
      {"beta1", beta1, "decay of the first moment", fraction()},
      {"beta2", beta2, "decay of the second moment", fraction()},
      {"shampoo_beta", shampoo_beta, "decay of Shampoo's factors; beta2 by default", fraction()},
      {"eps", eps, "added to the root of the second moment", at_least(0)},
      {"max_dim", max_dim, "longest side that gets a factor", at_least(1)},
      {"precondition_every", precondition_every, "steps after which bases are computed again",
       at_least(1)},
      {"precondition_vectors", precondition_vectors, "give vectors a factor too"},
      {"weight_decay", weight_decay, "decoupled weight decay", at_least(0)},
      {"maximize", maximize, "ascend"}};
}

StateTensors SoapMoments::tensors() {
  return {{"exp_avg", &exp_avg},
          {"exp_avg_sq", &exp_avg_sq},
          {"left", &left},
          {"right", &right},
          {"left_basis", &left_basis},
          {"right_basis", &right_basis},
          {"left_values", &left_values},
          {"right_values", &right_values},
          {"unit", &unit}};
}

SoapMoments SoapRule::init(const TensorView& view, const Options& options) {
  SoapMoments moments;
  moments.exp_avg = view.zeros();
  const auto matrices = as_matrices(moments.exp_avg);
  const auto sides = sides_of(moments.exp_avg, matrices, options);
  const auto type = factor_type(moments.exp_avg);
  const auto init_side = [&](int64_t size, at::Tensor& factor, at::Tensor& basis,
                             at::Tensor& values) {
    factor = view.zeros(batch_shape(matrices, size, size), type);
    basis = at::eye(size, factor.options()).expand(factor.sizes()).clone();
    values = factor.diagonal(0, -2, -1).clone();
  };
  moments.exp_avg_sq = view.zeros(matrices.sizes());
  moments.unit = view.zeros(batch_shape(matrices, 1, 1), at::kDouble);
  if (sides.left) {
    init_side(matrices.size(-2), moments.left, moments.left_basis, moments.left_values);
  }
  if (sides.right) {
    init_side(matrices.size(-1), moments.right, moments.right_basis, moments.right_values);
  }
  return moments;
}

at::Tensor SoapRule::step(const at::Tensor& gradient, int64_t step, const TensorView& /*view*/,
                          State& moments, const Options& options) {
  const auto matrices = as_matrices(gradient);
  if (gradient.numel() == 0) return at::zeros_like(gradient, at::MemoryFormat::Preserve);

  const auto t = static_cast<double>(step);
  const double correction1 = 1 - std::pow(options.beta1, t);
  const double correction2 = 1 - std::pow(options.beta2, t);
  const double shampoo_beta = options.shampoo_beta.value_or(options.beta2);
  const auto type = factor_type(gradient);

  const auto old_unit = moments.unit.clone();
  moments.unit.copy_(next_unit(old_unit, energy(moments, options.beta2, shampoo_beta), matrices));
  const auto ratio = squared_ratio(old_unit, moments.unit);
  const auto g = in_units(matrices, moments.unit, type);
  const auto decay = (ratio * shampoo_beta).to(type);
  if (moments.left.defined()) {
    moments.left.mul_(decay).add_(g.matmul(g.mT()), 1 - shampoo_beta);
  }
  if (moments.right.defined()) {
    moments.right.mul_(decay).add_(g.mT().matmul(g), 1 - shampoo_beta);
  }
  moments.exp_avg.mul_(options.beta1).add_(gradient, 1 - options.beta1);

  // The carrying over is linear, and the decay may come before it.
  moments.exp_avg_sq.mul_((ratio * options.beta2).to(moments.exp_avg_sq.scalar_type()));
  if (moments.left.defined() || moments.right.defined()) {
    update_basis_(moments, g, old_unit == 0, (step - 1) % options.precondition_every == 0);
  }
  const auto squares = share(project(g, moments).square(), moments);
  moments.exp_avg_sq.add_(squares.to(moments.exp_avg_sq.scalar_type()), 1 - options.beta2);

  const auto average = project(in_units(as_matrices(moments.exp_avg), moments.unit, type), moments);
  const auto eps = in_units(at::full_like(moments.unit, options.eps), moments.unit, type);
  const auto denominator = (moments.exp_avg_sq.to(type) / correction2).sqrt_() + eps;
  const auto quotient = at::where(has_signal(moments, type), average / denominator, 0.0);
  const auto direction = project_back(quotient, moments);
  return (direction * -(options.lr / correction1))
      .to(gradient.scalar_type())
      .reshape(gradient.sizes());
}

}  // namespace ddc
