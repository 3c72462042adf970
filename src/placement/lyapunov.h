#pragma once

#include <ATen/core/Tensor.h>

// Matrix equations of gauges that mix channels, for batches of small matrices. Only products of matrices,
// nothing that waits for the device.

namespace ddc {

/// The A with M A + A M = S, for symmetric positive M; [..., n, n]. By conjugate gradients, from which
/// directions that M does not fix (as good as zero on its diagonal) come out as zero.
at::Tensor lyapunov(const at::Tensor& m, const at::Tensor& s, int iterations);

/// The symmetric positive S for which S P S and S^-1 M S^-1 are equal, by Newton's method from the
/// identity: for P and M that are nearly equal.
at::Tensor balancing_factor(const at::Tensor& p, const at::Tensor& m);

/// The rotation R, near the identity, for which R O^T is symmetric: with O = X_before X_after^T, that
/// which turns X_after back.
at::Tensor turn_back(const at::Tensor& overlap);

}  // namespace ddc
