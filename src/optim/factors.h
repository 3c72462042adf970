#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

// What Shampoo and SOAP share: a gradient as a matrix (or a stack of matrices), and its Kronecker
// factors, the second moments of its rows and of its columns.
//
// Second moments are kept in units. The square of a float32 gradient of size 1e30 is not a float32,
// nor is that of one of size 1e-30; so each matrix has a unit, a power of two near the size of its
// gradients, and squares are kept in units of its square. Changing between powers of two is exact:
// the units change no digit of a result, they only keep it in range. They depend on the gradient
// through its Frobenius norm, which no rotation changes.

namespace ddc::factors {

/// The gradient as [rows, columns] or [n, rows, columns]: a stack of matrices stays one, more axes
/// are flattened from the second on, and a vector (or a number) is one column.
at::Tensor as_matrices(const at::Tensor& gradient);

/// Whether the rows and the columns of the gradient, seen as a matrix, get a factor.
struct Sides {
  bool left = false;
  bool right = false;
};

/// float64 for float64 gradients, float32 otherwise.
at::ScalarType factor_type(const at::Tensor& gradient);

/// The shape of `matrices` with its last two axes replaced.
std::vector<int64_t> batch_shape(const at::Tensor& matrices, int64_t rows, int64_t columns);

/// The power of two next to the largest of the gradient's norm and the sizes that are kept already,
/// sqrt(energy) in the old unit. One per matrix, float64; 0 if all of that is 0.
at::Tensor next_unit(const at::Tensor& unit, const at::Tensor& energy, const at::Tensor& matrices);

/// (old / next)^2, by which squares are multiplied; 0 while the old unit is 0, as they are then.
at::Tensor squared_ratio(const at::Tensor& old_unit, const at::Tensor& unit);

/// `tensor / unit` as `type`, with units of 0 taken as 1.
at::Tensor in_units(const at::Tensor& tensor, const at::Tensor& unit, at::ScalarType type);

/// The traces of a factor or of a stack of them: float64, shaped like units.
at::Tensor traces(const at::Tensor& factor);

/// Eigenvalues (ascending) and eigenvectors of a factor, computed in float64.
struct Spectrum {
  at::Tensor values;
  at::Tensor vectors;
  /// Eigenvalues below this are not told from 0: rounding makes up too much of them.
  at::Tensor noise;
};
/// `type` is the one in which the factor is kept.
Spectrum spectrum(const at::Tensor& factor, at::ScalarType type);

}  // namespace ddc::factors
