#include "geometry/output_factor.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>

namespace ddc {
namespace {

double epsilon_of(const at::Tensor& values) {
  return values.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                             : std::numeric_limits<float>::epsilon();
}

/// The gradient of the loss by the outputs, with a graph of its own.
at::Tensor gradient_by_outputs(const Evaluation& evaluation) {
  return torch::autograd::grad({evaluation.loss}, {evaluation.outputs}, {}, /*retain_graph=*/true,
                               /*create_graph=*/true, /*allow_unused=*/true)[0];
}

/// The Hessian of the loss by the outputs times a vector.
at::Tensor hessian_times(const Evaluation& evaluation, const at::Tensor& gradient,
                         const at::Tensor& vector) {
  if (!gradient.requires_grad()) return at::zeros_like(vector);
  const auto result =
      torch::autograd::grad({gradient}, {evaluation.outputs}, {vector}, /*retain_graph=*/true,
                            /*create_graph=*/false, /*allow_unused=*/true)[0];
  return result.defined() ? result : at::zeros_like(vector);
}

/// diag(p) - p p^T times rows.
at::Tensor softmax_hessian(const at::Tensor& p, const at::Tensor& rows) {
  return p * (rows - (p * rows).sum(-1, /*keepdim=*/true));
}

bool agree(const at::Tensor& found, const at::Tensor& expected) {
  const double allowed = 1e4 * epsilon_of(found);
  return ((found - expected).norm() <= allowed * found.norm()).item<bool>();
}

}  // namespace

OutputMatrix::OutputMatrix(const Evaluation& evaluation, uint64_t batch) {
  const auto& outputs = evaluation.outputs;
  TORCH_CHECK(outputs.defined() && outputs.requires_grad(), "curvature: batch ", batch,
              " has no outputs that the loss is computed from; a Hessian ",
              "of the loss needs none, the other kinds do");
  TORCH_CHECK(outputs.isfinite().all().item<bool>(), "curvature: the outputs of batch ", batch,
              " have NaN or Inf entries");
  const auto gradient = gradient_by_outputs(evaluation);
  TORCH_CHECK(gradient.defined(), "curvature: the loss of batch ", batch,
              " is not computed from the outputs of the model");
  entries_ = outputs.numel();
  samples_ = outputs.dim() > 0 ? outputs.size(0) : 1;

  const auto generator = at::make_generator<at::CPUGeneratorImpl>(0);
  const auto draw = [&] {
    return at::randn(outputs.sizes(), generator, at::kDouble).to(outputs.options());
  };
  const auto first = draw();
  const auto second = draw();
  const auto by_first = hessian_times(evaluation, gradient, first).detach();
  const auto by_second = hessian_times(evaluation, gradient, second).detach();

  // The same weight for all classes of a row. Of a row that is all but certain the weight is read off the class
  // with the largest entry; whatever it is there, the row has next to no part in the sum.
  const at::NoGradGuard no_grad;
  for (const int64_t axis : {int64_t{-1}, int64_t{1}}) {
    if (outputs.dim() < 1 || (axis == 1 && outputs.dim() < 3)) continue;
    if (outputs.size(axis) < 2) continue;
    class_axis_ = axis;
    const auto p = in_rows(outputs.detach()).softmax(-1);
    const auto expected = softmax_hessian(p, in_rows(first));
    const auto found = in_rows(by_first);
    const auto [size, place] = expected.abs().max(-1, /*keepdim=*/true);
    const auto weights = at::where(size > 0, found.gather(-1, place) / expected.gather(-1, place),
                                   at::zeros_like(size));
    if (!agree(found, weights * expected) ||
        !agree(in_rows(by_second), weights * softmax_hessian(p, in_rows(second)))) {
      continue;
    }
    // Rows of one batch usually have one weight, and that is known better than from one row.
    const auto seen = in_rows(gradient.detach()).ne(0).any(-1, /*keepdim=*/true);
    samples_ = seen.sum().item<int64_t>();
    const auto common = (weights * size).sum() / (seen * size).sum();
    const auto uniform =
        ((weights - common).abs() * size * seen).max() <= 1e3 * epsilon_of(outputs) * common;
    weights_ = (uniform.item<bool>() ? common * seen : weights).to(outputs.scalar_type());
    likelihood_ = Likelihood::softmax;
    return;
  }
  class_axis_ = -1;
  const auto diagonal = by_first / first;
  if (agree(by_second, diagonal * second) && diagonal.ge(0).all().item<bool>()) {
    weights_ = diagonal;
    likelihood_ = Likelihood::diagonal;
  }
}

void OutputMatrix::specialise_(CurvatureKind kind, const Evaluation& evaluation, int64_t labels,
                               uint64_t seed, uint64_t batch) {
  kind_ = kind;
  if (kind == CurvatureKind::gauss_newton) return;
  TORCH_CHECK_VALUE(
      kind != CurvatureKind::monte_carlo_fisher || likelihood_ == Likelihood::softmax,
      "monte_carlo_fisher: labels cannot be drawn, since the loss is not the cross-entropy of "
      "classes (",
      to_string(likelihood_),
      " in its outputs); use gauss_newton, which is the exact Fisher matrix of a squared error");
  if (kind == CurvatureKind::monte_carlo_fisher) {
    const at::NoGradGuard no_grad;
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed * 1000003 + batch);
    const auto p = in_rows(evaluation.outputs.detach()).to(at::kCPU, at::kDouble).softmax(-1);
    drawn_ =
        at::multinomial(p, labels, /*replacement=*/true, generator).to(evaluation.outputs.device());
    return;
  }
  const auto gradient = torch::autograd::grad({evaluation.loss}, {evaluation.outputs}, {},
                                              /*retain_graph=*/true)[0];
  const at::NoGradGuard no_grad;
  if (likelihood_ == Likelihood::softmax) {
    residuals_ = in_rows(gradient.detach()) *
                 at::where(weights_ > 0, weights_.rsqrt(), at::zeros_like(weights_));
  } else {
    residuals_ =
        gradient.detach().reshape({samples_, -1}) * std::sqrt(static_cast<double>(samples_));
  }
}

at::Tensor OutputMatrix::in_rows(const at::Tensor& outputs) const {
  if (likelihood_ == Likelihood::softmax || kind_ == CurvatureKind::gauss_newton) {
    return outputs.movedim(class_axis_, -1).reshape({-1, outputs.size(class_axis_)});
  }
  return outputs.reshape({samples_, -1});
}

at::Tensor OutputMatrix::as_outputs(const at::Tensor& rows, const at::Tensor& like) const {
  if (likelihood_ == Likelihood::softmax || kind_ == CurvatureKind::gauss_newton) {
    const auto moved = like.movedim(class_axis_, -1);
    return rows.reshape(moved.sizes()).movedim(-1, class_axis_);
  }
  return rows.reshape(like.sizes());
}

int64_t OutputMatrix::columns() const {
  switch (kind_) {
    case CurvatureKind::gauss_newton:
      return likelihood_ == Likelihood::other ? 0 : entries_;
    case CurvatureKind::monte_carlo_fisher:
      return drawn_.numel();
    case CurvatureKind::empirical_fisher:
      return residuals_.size(0);
    case CurvatureKind::hessian:
      break;
  }
  return 0;
}

at::Tensor OutputMatrix::product(const Evaluation& evaluation, const at::Tensor& tangent) const {
  if (kind_ == CurvatureKind::gauss_newton && likelihood_ == Likelihood::other) {
    const auto result = hessian_times(evaluation, gradient_by_outputs(evaluation), tangent);
    return result.detach() * weight_;
  }
  if (kind_ == CurvatureKind::gauss_newton && likelihood_ == Likelihood::softmax) {
    const auto p = in_rows(evaluation.outputs.detach()).softmax(-1);
    return as_outputs(softmax_hessian(p, in_rows(tangent)) * weights_, tangent) * weight_;
  }
  return times(evaluation, transposed(evaluation, tangent));
}

// The root of diag(p) - p p^T is diag(sqrt p) - p sqrt(p)^T.
at::Tensor OutputMatrix::times(const Evaluation& evaluation, const at::Tensor& vector) const {
  const double root = std::sqrt(weight_);
  const auto outputs = evaluation.outputs.detach();
  if (kind_ == CurvatureKind::empirical_fisher) {
    return as_outputs(residuals_ * vector.view({-1, 1}), outputs) * root;
  }
  if (likelihood_ == Likelihood::diagonal) {
    return weights_.sqrt() * vector.reshape(outputs.sizes()) * root;
  }
  const auto p = in_rows(outputs).softmax(-1);
  if (kind_ == CurvatureKind::monte_carlo_fisher) {
    const auto u =
        vector.view(drawn_.sizes()) * (weights_ / static_cast<double>(drawn_.size(1))).sqrt();
    const auto sum = p * u.sum(-1, /*keepdim=*/true);
    return as_outputs(sum.scatter_add(-1, drawn_, -u), outputs) * root;
  }
  const auto u = vector.view(p.sizes());
  const auto q = p.sqrt();
  const auto rows = (q * u - p * (q * u).sum(-1, /*keepdim=*/true)) * weights_.sqrt();
  return as_outputs(rows, outputs) * root;
}

at::Tensor OutputMatrix::transposed(const Evaluation& evaluation, const at::Tensor& tangent) const {
  const double root = std::sqrt(weight_);
  if (kind_ == CurvatureKind::empirical_fisher) {
    return (residuals_ * in_rows(tangent)).sum(-1) * root;
  }
  if (likelihood_ == Likelihood::diagonal) return (weights_.sqrt() * tangent).flatten() * root;
  const auto p = in_rows(evaluation.outputs.detach()).softmax(-1);
  const auto rows = in_rows(tangent);
  const auto centred = rows - (p * rows).sum(-1, /*keepdim=*/true);
  if (kind_ == CurvatureKind::monte_carlo_fisher) {
    const auto scale = (weights_ / static_cast<double>(drawn_.size(1))).sqrt();
    return (-centred.gather(-1, drawn_) * scale).flatten() * root;
  }
  return (p.sqrt() * centred * weights_.sqrt()).flatten() * root;
}

}  // namespace ddc
