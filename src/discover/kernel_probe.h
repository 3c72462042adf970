#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "discover/loss_jacobian.h"

namespace ddc {

/// The Jacobian of what a loss sees, as an operator: by forward and backward differentiation of a fixed
/// set of batches, as many as have outputs enough to tell all parameters apart. Parameters are taken in
/// units in which every column has the same norm: the dimension of the kernel does not depend on them,
/// and the iteration needs fewer steps.
class KernelProbe {
 public:
  KernelProbe(const Trainable& trainable, const Evaluate& evaluate, uint64_t seed);

  /// Norms of the Jacobian's columns, sampled; zero where no batch sees a parameter.
  const at::Tensor& scale() const { return scale_; }
  /// How much is seen of each of `tangents` (rows of length one), relative to what is seen of a
  /// direction at most.
  at::Tensor seen_of(const at::Tensor& tangents) const;

  /// Draws a vector with entries of variance one, orthogonal to the columns of `known`, and removes from
  /// it what the loss sees: a least-squares fit by the rows of the Jacobian (conjugate gradients). What
  /// is removed is always seen, so that the expected square of what is left is an upper bound for the
  /// dimension of the kernel beside `known`, whatever the number of iterations.
  at::Tensor unseen_part(const at::Tensor& known, int64_t iterations);

 private:
  std::vector<at::Tensor> forward(const at::Tensor& direction) const;
  at::Tensor backward(const std::vector<at::Tensor>& cotangents) const;

  const Trainable& trainable_;
  const Evaluate& evaluate_;
  at::Generator generator_;
  std::vector<Visible> visible_;
  at::Tensor samples_;
  at::Tensor scale_;
};

}  // namespace ddc
