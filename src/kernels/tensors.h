#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

// Kernels on tensors, spread over threads. Each piece of work is the same whichever thread does it, so
// results do not depend on the number of threads.

namespace ddc::kernels {

/// Whether the loops over raw memory can read it: on the CPU, float32 or float64, without gaps.
bool fits(const at::Tensor& tensor);
/// The same, for a matrix of which rows follow each other.
bool fits_matrix(const at::Tensor& tensor);

/// Calls work(0), ..., work(count - 1), dealt out to ATen's threads. at::parallel_for would do nothing of the
/// sort: it is a template that is serial unless it is compiled for OpenMP.
void for_each_index(int64_t count, const std::function<void(int64_t)>& work);
/// Cuts 0..counts[i] into pieces and calls work(i, begin, end) for all of them, on all threads.
void in_pieces(const std::vector<int64_t>& counts,
               const std::function<void(size_t, int64_t, int64_t)>& work);
/// Calls work(i) for all i < count, on all threads, whoever is free.
void one_by_one(size_t count, const std::function<void(size_t)>& work);

/// Whether all entries of all tensors are finite; any tensors.
bool all_finite(const std::vector<at::Tensor>& tensors);
/// Whether they are finite and none is of size kHuge or more.
bool none_huge(const std::vector<at::Tensor>& tensors);

// Functions of matrices that fit. `along` is the axis that is not summed over, and keeps its size.

/// Sums of squares along an axis, float64, [rows, 1] or [1, columns]. `weights`: of the other axis's
/// indices, or undefined.
at::Tensor squares(const at::Tensor& matrix, int64_t along, const at::Tensor& weights);
/// The same into memory of the caller. `weights` may be null.
void squares(const at::Tensor& matrix, int64_t along, const double* weights, double* sums);
/// Sums over the rows, float64, [1, columns].
at::Tensor column_sums(const at::Tensor& matrix);

}  // namespace ddc::kernels
