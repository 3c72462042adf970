#pragma once

#include <ATen/core/Tensor.h>

#include "ddc/enum_names.h"

namespace ddc {

/// How the polar factor is computed. All methods keep the singular vectors of a matrix; of its
/// singular values s_i, the largest of which is s_max, they make
///
///   exact          1, and 0 where s_i is rounding noise (below 1e-11 s_max in float64, 3e-6 s_max
///                  in narrower types): then the result is a partial isometry. An SVD in float64;
///                  otherwise the eigenvectors of the Gram matrix in float64.
///   fast           1 up to 9.2e-4 for s_i >= 1e-3 s_max (up to 1.7e-3 close to that end); a
///                  multiple of s_i, less than 1, for the smaller ones. Six polynomials of degree
///                  5 in the Gram matrix: nothing but matrix products, for accelerators.
///   sharpen        the same up to 9.8e-3 (1.3e-2 close to that end), by four polynomials of
///                  degree 9. Not for less than float32.
///                  On the CPU both work in float64 inside, whatever the type.
///   newton_schulz  0.68 to 1.21 for s_i >= 1.5e-3 of the Frobenius norm. The five steps of the
///                  textbook Muon, in the type of the input.
enum class PolarMethod { exact, fast, sharpen, newton_schulz };

template <>
inline constexpr std::array EnumNames<PolarMethod> = {"exact", "fast", "sharpen", "newton_schulz"};

/// The orthogonal factor U of the polar decomposition m = U P of a matrix, or of every matrix of a
/// stack [..., rows, cols]; in m's type. With orthogonal A and B, polar(A m B) = A polar(m) B, and
/// the scale of m is of no consequence, from subnormal numbers to the largest. A zero matrix gives
/// zero.
///
/// Not differentiable. NaN and Inf are the caller's to reject.
at::Tensor polar_factor(const at::Tensor& m, PolarMethod method = PolarMethod::exact);

/// Floating-point operations of the polar factor of a rows x cols matrix; of the eigenvectors as LAPACK counts.
double polar_flops(double rows, double cols, PolarMethod method);

}  // namespace ddc
