#pragma once

#include <ATen/core/Tensor.h>

namespace ddc::testbeds {

/// Row i is the sum over m of weights[i, m] * table[rows[i, m]], and of that the relu to the power
/// `degree` (1 or 2; 0: the sum itself). For networks that see few tokens in many combinations: what they
/// do to a token is computed once, in the table, and each combination costs one term per token instead of
/// a product with a weight matrix.
///
/// With gradients of `table` and `weights`, once.
at::Tensor sums_of_rows(const at::Tensor& table, const at::Tensor& rows, const at::Tensor& weights,
                        int64_t degree = 0);

}  // namespace ddc::testbeds
