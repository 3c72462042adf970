#pragma once

#include <ATen/core/Tensor.h>

// How far matrices were turned, by plain linear algebra. All matrices float64, [..., n, columns].

namespace ddc {

/// The orthogonal R for which |after - R before| is smallest: the polar factor of after before^T.
at::Tensor best_rotation(const at::Tensor& before, const at::Tensor& after);

/// Frobenius norm of log R for one rotation R: sqrt(2) times the angle if it is one of a plane.
double rotation_angle(const at::Tensor& rotation);

/// (S^(1/2) plus, S^(-1/2) minus), side by side, where S M_plus S = M_minus with the Gram matrices M of the
/// two sides: the point on the orbit (A plus, A^-T minus) where the Gram matrices are equal.
at::Tensor balanced_sides(const at::Tensor& plus, const at::Tensor& minus);

/// An orthonormal basis of the vectors that are orthogonal to the ones (Helmert's), [size, size - 1].
at::Tensor helmert(int64_t size);

}  // namespace ddc
