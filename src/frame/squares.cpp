#include "frame/squares.h"

#include <ATen/ATen.h>

#include <utility>

#include "kernels/tensors.h"

namespace ddc {

AxisSquares::AxisSquares(at::Tensor x) : x_(std::move(x)), factors_(x_.dim()), sums_(x_.dim()) {}

const at::Tensor& AxisSquares::along(int64_t axis) const {
  auto& sum = sums_[axis];
  if (sum.defined()) return sum;
  if (kernels::fits_matrix(x_)) {
    // A factor of all indices together has size 1.
    auto weights = factors_[1 - axis];
    if (weights.defined()) {
      auto sizes = x_.sizes().vec();
      sizes[axis] = 1;
      weights = weights.expand(sizes);
    }
    sum = kernels::squares(x_, axis, weights);
    if (factors_[axis].defined()) sum.mul_(factors_[axis]);
    return sum;
  }
  sum = x_.square();
  std::vector<int64_t> others;
  for (int64_t a = 0; a < x_.dim(); ++a) {
    if (factors_[a].defined()) sum.mul_(factors_[a]);
    if (a != axis) others.push_back(a);
  }
  if (!others.empty()) sum = sum.sum(others, /*keepdim=*/true);
  return sum;
}

void AxisSquares::multiply_(int64_t axis, const at::Tensor& factor) {
  auto& own = factors_[axis];
  own = own.defined() ? own * factor : factor;
  for (int64_t a = 0; a < x_.dim(); ++a) {
    if (a != axis) sums_[a].reset();
  }
  if (sums_[axis].defined()) sums_[axis] = sums_[axis] * factor;
}

}  // namespace ddc
