#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "ddc/geometry/curvature.h"

namespace ddc {

/// A matrix M on the outputs of one batch, and where it can be had a root L of it, M = L L^T. Curvature is
/// J^T M J.
class OutputMatrix {
 public:
  /// What the loss of the batch is as a function of its outputs, from its second derivative there.
  OutputMatrix(const Evaluation& evaluation, uint64_t batch);

  Likelihood likelihood() const { return likelihood_; }
  /// Terms of the mean: rows of the outputs that the loss sees, or their first axis.
  int64_t samples() const { return samples_; }

  /// What the kind makes of it. Draws labels, if the kind has any.
  void specialise_(CurvatureKind kind, const Evaluation& evaluation, int64_t labels, uint64_t seed,
                   uint64_t batch);
  /// The share of this batch in the mean over all.
  void set_weight(double weight) { weight_ = weight; }

  /// M times a vector of the outputs' shape.
  at::Tensor product(const Evaluation& evaluation, const at::Tensor& tangent) const;
  /// Columns of L; 0 if it is not known.
  int64_t columns() const;
  /// L times a vector of `columns`, in the outputs' shape, and L^T times a vector of that shape.
  at::Tensor times(const Evaluation& evaluation, const at::Tensor& vector) const;
  at::Tensor transposed(const Evaluation& evaluation, const at::Tensor& tangent) const;

 private:
  /// [rows, classes], and back.
  at::Tensor in_rows(const at::Tensor& outputs) const;
  at::Tensor as_outputs(const at::Tensor& rows, const at::Tensor& like) const;

  CurvatureKind kind_ = CurvatureKind::gauss_newton;
  Likelihood likelihood_ = Likelihood::other;
  int64_t samples_ = 0;
  int64_t class_axis_ = -1;
  int64_t entries_ = 0;
  double weight_ = 1;
  /// Softmax: the weight of a row, [rows, 1]. Diagonal: the diagonal, in the outputs' shape.
  at::Tensor weights_;
  /// monte_carlo_fisher: [rows, labels].
  at::Tensor drawn_;
  /// empirical_fisher: the derivative of the loss of one row over the root of its weight, [rows, classes].
  at::Tensor residuals_;
};

}  // namespace ddc
