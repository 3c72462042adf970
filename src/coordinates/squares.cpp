#include "coordinates/squares.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "kernels/tensors.h"

namespace ddc {

AxisSquares::AxisSquares(at::Tensor x) : x_(std::move(x)) {}

const at::Tensor& AxisSquares::along(const Axes& axes) const {
  if (const auto known = sums_.find(axes); known != sums_.end()) return known->second;
  auto& sum = sums_[axes];
  if (axes.size() == 1 && kernels::fits_matrix(x_)) {
    const int64_t axis = axes.front();
    at::Tensor weights;
    // A factor of all indices together has size 1.
    if (const auto other = factors_.find({1 - axis}); other != factors_.end()) {
      auto sizes = x_.sizes().vec();
      sizes[axis] = 1;
      weights = other->second.expand(sizes);
    }
    sum = kernels::squares(x_, axis, weights);
    if (const auto own = factors_.find(axes); own != factors_.end()) sum.mul_(own->second);
    return sum;
  }
  sum = x_.square();
  for (const auto& [of, factor] : factors_) sum.mul_(factor);
  std::vector<int64_t> others;
  for (int64_t a = 0; a < x_.dim(); ++a) {
    if (std::ranges::count(axes, a) == 0) others.push_back(a);
  }
  if (!others.empty()) sum = sum.sum(others, /*keepdim=*/true);
  return sum;
}

void AxisSquares::multiply_(const Axes& axes, const at::Tensor& factor) {
  auto& own = factors_[axes];
  own = own.defined() ? own * factor : factor;
  const auto known = sums_.find(axes);
  const auto here = known == sums_.end() ? at::Tensor() : known->second * factor;
  sums_.clear();
  if (here.defined()) sums_[axes] = here;
}

}  // namespace ddc
