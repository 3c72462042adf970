#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "ddc/geometry/curvature.h"
#include "geometry/loss_jacobian.h"

namespace ddc {

struct KernelPart {
  at::Tensor vector;
  int64_t iterations = 0;
  /// Nothing that the matrix sees is left, to the tolerance.
  bool converged = false;
};

/// Takes the range of a symmetric positive semidefinite matrix out of `start`, one product per iteration, and leaves
/// the part in its kernel: conjugate residuals. After k iterations what is left is the shortest vector of start +
/// span(A start, .., A^k start), so that what is taken out is always in the range, and what is left never
/// shorter than the part in the kernel. Memory: four vectors.
KernelPart kernel_part(const LinearOperator& matrix, const at::Tensor& start, int64_t iterations,
                       double tolerance);

/// The Jacobian of what a loss sees, as an operator: by forward and backward differentiation of a fixed
/// set of batches, as many as have outputs enough to tell all parameters apart. Parameters are taken in
/// units in which every column has the same norm: the dimension of the kernel does not depend on them,
/// and the iteration needs fewer steps.
class KernelProbe {
 public:
  KernelProbe(const Trainable& trainable, const Evaluate& evaluate, const at::Generator& generator);

  /// Norms of the Jacobian's columns, sampled; zero where no batch sees a parameter.
  const at::Tensor& scale() const { return scale_; }
  /// Some rows of the Jacobian.
  const std::vector<at::Tensor>& samples() const { return samples_; }
  /// Work of one product with J^T J: multiplications of an entry of the parameters with one of the batch, about.
  double work() const { return work_; }

  /// J^T J in the units above. A product takes one evaluation of every batch.
  LinearOperator as_operator() const;

 private:
  at::Tensor product(const at::Tensor& direction) const;

  const Trainable& trainable_;
  const Evaluate& evaluate_;
  int64_t batches_ = 0;
  double work_ = 0;
  std::vector<at::Tensor> samples_;
  at::Tensor scale_;
};

}  // namespace ddc
