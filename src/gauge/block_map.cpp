#include "gauge/block_map.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace ddc {

BlockMap::BlockMap(const std::vector<int64_t>& channel_of, int64_t channels, int64_t block,
                   int64_t axis, at::IntArrayRef sizes, at::Device device)
    : axis_(axis), blocks_(channels / block), block_(block), sizes_(sizes.vec()) {
  std::vector<std::vector<int64_t>> members(channels);
  for (int64_t i = 0; i < sizes[axis]; ++i) {
    const int64_t c = channel_of.empty() ? i : channel_of[i];
    if (c >= 0) members[c].push_back(i);
  }
  copies_ = static_cast<int64_t>(members.front().size());
  std::vector<int64_t> index;
  for (const auto& indices : members) {
    TORCH_INTERNAL_ASSERT(static_cast<int64_t>(indices.size()) == copies_);
    index.insert(index.end(), indices.begin(), indices.end());
  }
  covers_axis_ = static_cast<int64_t>(index.size()) == sizes[axis];
  first_ = index.empty() ? 0 : index.front();
  bool in_order = true;
  for (size_t i = 0; in_order && i < index.size(); ++i) {
    in_order = index[i] == first_ + static_cast<int64_t>(i);
  }
  if (!in_order) index_ = at::tensor(index, at::kLong).to(device);
}

at::Tensor BlockMap::front(const at::Tensor& tensor) const {
  const auto front = tensor.movedim(axis_, 0);
  return index_.defined() ? front : front.narrow(0, first_, blocks_ * block_ * copies_);
}

at::Tensor BlockMap::rows(const at::Tensor& tensor) const {
  const auto all = front(tensor);
  return (index_.defined() ? all.index_select(0, index_) : all)
      .reshape({blocks_ * block_ * copies_, -1});
}

at::Tensor BlockMap::take(const at::Tensor& tensor) const {
  const auto all = rows(tensor);
  return all.reshape({blocks_, block_, copies_ * all.size(1)});
}

void BlockMap::put_(at::Tensor& tensor, const at::Tensor& values) const {
  auto all = front(tensor);
  auto shape = all.sizes().vec();
  shape[0] = blocks_ * block_ * copies_;
  const auto source = values.reshape(shape);
  if (index_.defined()) {
    all.index_copy_(0, index_, source);
  } else {
    all.copy_(source);
  }
}

at::Tensor BlockMap::take_heads(const at::Tensor& tensor) const {
  const auto all = rows(tensor);
  return all.view({blocks_, block_, copies_, all.size(1)})
      .transpose(1, 2)
      .reshape({blocks_ * copies_, block_, all.size(1)});
}

void BlockMap::put_heads_(at::Tensor& tensor, const at::Tensor& values) const {
  put_(tensor, values.view({blocks_, copies_, block_, values.size(-1)}).transpose(1, 2));
}

at::Tensor BlockMap::multiply(const at::Tensor& matrices, const at::Tensor& tensor) const {
  auto result = tensor.clone();
  put_(result, matrices.matmul(take(tensor)));
  return result;
}

}  // namespace ddc
