#include "ddc/optim/shampoo.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "factors.h"

namespace ddc {

using namespace factors;

namespace {

/// Growth of the step since the roots were computed beyond which they are not trusted. Not critical:
/// without the bound steps grow by factors of up to eps^(-1/2) times the size of the gradients.
constexpr double kTrustedGrowth = 4;

Sides sides_of(const at::Tensor& gradient, const at::Tensor& matrices, int64_t max_dim) {
  return {matrices.size(-2) <= max_dim, gradient.dim() >= 2 && matrices.size(-1) <= max_dim};
}

/// eps in units of gradients squared. Divided twice, as the square may be out of range.
at::Tensor eps_in_units(double eps, const at::Tensor& unit) {
  const auto positive = at::where(unit > 0, unit, 1.0);
  return eps / positive / positive;
}

/// (factor / correction + eps I)^-exponent
at::Tensor inverse_root(const at::Tensor& factor, double correction, const at::Tensor& eps,
                        double exponent) {
  const auto [values, vectors, noise] = spectrum(factor, factor.scalar_type());
  const auto raised = at::maximum(values, noise) / correction + eps.squeeze(-1);
  // All are 0 if the factor and eps are, and then there is nothing to be scaled.
  const auto powers = at::where(raised > 0, raised.pow(-exponent), 0.0);
  return (vectors * powers.unsqueeze(-2)).matmul(vectors.mT()).to(factor.scalar_type());
}

/// `average` between the roots, whose exponents add up to that of one unit.
at::Tensor precondition(const at::Tensor& average, const ShampooMoments& moments) {
  auto direction = in_units(average, moments.root_unit, factor_type(average));
  if (moments.left.defined()) direction = moments.left_root.matmul(direction);
  if (moments.right.defined()) direction = direction.matmul(moments.right_root);
  return direction;
}

at::Tensor norms(const at::Tensor& matrices) {
  return at::linalg_vector_norm(matrices, 2, at::IntArrayRef{-2, -1}, /*keepdim=*/true,
                                at::kDouble);
}

/// Recomputes the roots where `stale` says so, and returns what they make of the average.
at::Tensor precondition_anew_(const at::Tensor& average, ShampooMoments& moments,
                              const at::Tensor& stale, double correction, double eps) {
  const bool both = moments.left.defined() && moments.right.defined();
  const auto eps_here = eps_in_units(eps, moments.unit);
  const auto update = [&](const at::Tensor& factor, at::Tensor& root) {
    if (!factor.defined()) return;
    root.copy_(
        at::where(stale, inverse_root(factor, correction, eps_here, both ? 0.25 : 0.5), root));
  };
  update(moments.left, moments.left_root);
  update(moments.right, moments.right_root);
  moments.root_unit.copy_(at::where(stale, moments.unit, moments.root_unit));
  auto direction = precondition(average, moments);
  moments.root_norm.copy_(at::where(stale, norms(direction), moments.root_norm));
  return direction;
}

}  // namespace

OptionList ShampooOptions::options() {
  return {{"lr", lr, "learning rate", at_least(0)},
          {"beta1", beta1, "decay of the average of gradients", fraction()},
          {"beta2", beta2, "decay of the factors; 1 is a plain sum", between(0, 1)},
          {"eps", eps, "added to the eigenvalues of the factors", at_least(0)},
          {"max_dim", max_dim, "longest side that gets a factor", at_least(1)},
          {"precondition_every", precondition_every, "steps after which roots are computed again",
           at_least(1)},
          {"weight_decay", weight_decay, "decoupled weight decay", at_least(0)},
          {"maximize", maximize, "ascend"}};
}

StateTensors ShampooMoments::tensors() {
  return {{"exp_avg", &exp_avg},   {"left", &left},           {"right", &right},
          {"diagonal", &diagonal}, {"left_root", &left_root}, {"right_root", &right_root},
          {"unit", &unit},         {"root_unit", &root_unit}, {"root_norm", &root_norm}};
}

ShampooMoments ShampooRule::init(const TensorView& view, const Options& options) {
  ShampooMoments moments;
  moments.exp_avg = view.zeros();
  const auto matrices = as_matrices(moments.exp_avg);
  const auto sides = sides_of(moments.exp_avg, matrices, options.max_dim);
  const auto zeros = [&](int64_t rows, int64_t columns, at::ScalarType type) {
    return view.zeros(batch_shape(matrices, rows, columns), type);
  };
  const auto type = factor_type(moments.exp_avg);
  const int64_t rows = matrices.size(-2);
  const int64_t columns = matrices.size(-1);
  moments.unit = zeros(1, 1, at::kDouble);
  if (sides.left) {
    moments.left = zeros(rows, rows, type);
    moments.left_root = zeros(rows, rows, type);
  }
  if (sides.right) {
    moments.right = zeros(columns, columns, type);
    moments.right_root = zeros(columns, columns, type);
  }
  if (sides.left || sides.right) {
    moments.root_unit = zeros(1, 1, at::kDouble);
    moments.root_norm = zeros(1, 1, at::kDouble);
  } else {
    moments.diagonal = zeros(rows, columns, type);
  }
  return moments;
}

at::Tensor ShampooRule::step(const at::Tensor& gradient, int64_t step, const TensorView& /*view*/,
                             State& moments, const Options& options) {
  const auto matrices = as_matrices(gradient);
  if (gradient.numel() == 0) return at::zeros_like(gradient, at::MemoryFormat::Preserve);

  const auto t = static_cast<double>(step);
  const bool is_sum = options.beta2 == 1;
  const double correction1 = 1 - std::pow(options.beta1, t);
  const double correction2 = is_sum ? 1 : 1 - std::pow(options.beta2, t);
  const double share = is_sum ? 1 : 1 - options.beta2;
  const auto type = factor_type(gradient);

  const auto energy = moments.left.defined() ? traces(moments.left)
                      : moments.right.defined()
                          ? traces(moments.right)
                          : moments.diagonal.sum({-2, -1}, /*keepdim=*/true, at::kDouble);
  const auto old_unit = moments.unit.clone();
  moments.unit.copy_(next_unit(old_unit, energy * options.beta2, matrices));
  const auto decay = (squared_ratio(old_unit, moments.unit) * options.beta2).to(type);
  const auto g = in_units(matrices, moments.unit, type);
  if (moments.left.defined()) moments.left.mul_(decay).add_(g.matmul(g.mT()), share);
  if (moments.right.defined()) moments.right.mul_(decay).add_(g.mT().matmul(g), share);
  if (moments.diagonal.defined()) moments.diagonal.mul_(decay).addcmul_(g, g, share);
  moments.exp_avg.mul_(options.beta1).add_(gradient, 1 - options.beta1);

  at::Tensor direction;
  const auto average = as_matrices(moments.exp_avg) / correction1;
  if (moments.diagonal.defined()) {
    // Squares that are lost below the smallest number count as that number.
    const double smallest = type == at::kDouble ? std::numeric_limits<double>::min()
                                                : std::numeric_limits<float>::min();
    const auto squares = moments.diagonal.to(at::kDouble) / correction2;
    direction = in_units(average, moments.unit, at::kDouble) *
                (squares + eps_in_units(options.eps, moments.unit)).clamp_min_(smallest).rsqrt_();
  } else if ((step - 1) % options.precondition_every == 0) {
    const auto all = at::ones_like(moments.unit, at::kBool);
    direction = precondition_anew_(average, moments, all, correction2, options.eps);
  } else {
    direction = precondition(average, moments);
    // Not "greater": the norm may be NaN if the step is out of range.
    const auto stale = (norms(direction) <= kTrustedGrowth * moments.root_norm).logical_not_();
    if (stale.any().item<bool>()) {
      direction = precondition_anew_(average, moments, stale, correction2, options.eps);
    }
  }
  return (direction * -options.lr).to(gradient.scalar_type()).reshape(gradient.sizes());
}

}  // namespace ddc
