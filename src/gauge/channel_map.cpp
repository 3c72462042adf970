#include "ddc/gauge/channel_map.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace ddc {
namespace channel_maps {

std::vector<int64_t> whole(int64_t size) { return std::vector<int64_t>(size, 0); }

std::vector<int64_t> heads(int64_t heads, int64_t head_size, int64_t groups, Pairing pairing) {
  TORCH_CHECK(heads > 0 && head_size > 0,
              "channel_maps::heads: need heads > 0 and head_size > 0, got ", heads, " and ",
              head_size);
  TORCH_CHECK(groups > 0 && heads % groups == 0, "channel_maps::heads: ", heads,
              " heads cannot be shared evenly by ", groups, " groups");
  TORCH_CHECK(pairing == Pairing::none || head_size % 2 == 0,
              "channel_maps::heads: rotary planes need an even head_size, got ", head_size);
  const int64_t planes = pairing == Pairing::none ? 1 : head_size / 2;
  std::vector<int64_t> result;
  result.reserve(heads * head_size);
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t group = h / (heads / groups);
    for (int64_t i = 0; i < head_size; ++i) {
      const int64_t plane = pairing == Pairing::none         ? 0
                            : pairing == Pairing::half_split ? i % planes
                                                             : i / 2;
      result.push_back(group * planes + plane);
    }
  }
  return result;
}

}  // namespace channel_maps

ChannelMap::ChannelMap(const std::vector<int64_t>& channel_of, int64_t channels, int64_t axis,
                       int64_t size, int64_t dim, at::Device device, int64_t copies)
    : channels_(channels), axis_(axis), dim_(dim), size_(size), copies_(copies) {
  std::vector<int64_t> index(channel_of);
  const int64_t count = size * copies;
  if (index.empty()) {
    index.resize(count);
    for (int64_t i = 0; i < count; ++i) index[i] = i;
  }
  for (auto& c : index) c = c < 0 ? channels : c;
  bool identity = count == channels;
  for (int64_t i = 0; identity && i < count; ++i) identity = index[i] == i;
  const bool single =
      channels == 1 && std::all_of(index.begin(), index.end(), [](int64_t c) { return c == 0; });
  form_ = identity ? Form::identity : single ? Form::single : Form::general;
  const auto here = at::tensor(index, at::kLong);
  index_ = here.to(device);
  counts_ = at::bincount(here, {}, channels + 1).narrow(0, 0, channels).to(device, at::kDouble);
}

at::Tensor ChannelMap::gather(const at::Tensor& values, double fill) const {
  if (form_ != Form::general) return values;
  auto sizes = values.sizes().vec();
  sizes[axis_] = 1;
  const auto padded = at::cat({values, at::full(sizes, fill, values.options())}, axis_);
  return padded.index_select(axis_, index_);
}

at::Tensor ChannelMap::gather_vector(const at::Tensor& per_channel, double fill) const {
  std::vector<int64_t> sizes(dim_, 1);
  if (copies_ > 1) {
    sizes[0] = copies_;
    sizes[axis_] = size_;
    const auto padded = at::cat({per_channel, at::full({1}, fill, per_channel.options())});
    return padded.index_select(0, index_).view(sizes);
  }
  sizes[axis_] = channels_;
  return gather(per_channel.view(sizes), fill);
}

at::Tensor ChannelMap::scatter(const at::Tensor& values) const {
  if (form_ == Form::identity) return values;
  if (form_ == Form::single) return values.sum(axis_, /*keepdim=*/true);
  auto sizes = values.sizes().vec();
  sizes[axis_] = channels_ + 1;
  return at::zeros(sizes, values.options())
      .index_add_(axis_, index_, values)
      .narrow(axis_, 0, channels_);
}

at::Tensor ChannelMap::mean(const at::Tensor& values) const {
  auto sizes = values.sizes().vec();
  sizes[axis_] = size_;
  std::vector<int64_t> shape(dim_, 1);
  shape[axis_] = channels_;
  return scatter(values.expand(sizes)) / counts_.view(shape).to(values.options());
}

at::Tensor ChannelMap::scatter_all(const at::Tensor& values) const {
  std::vector<int64_t> others;
  for (int64_t a = 0; a < dim_; ++a) {
    if (a != axis_ && (a != 0 || copies_ == 1)) others.push_back(a);
  }
  const auto reduced = others.empty() ? values : values.sum(others, /*keepdim=*/true);
  if (copies_ == 1) return scatter(reduced).reshape({channels_});
  return at::zeros({channels_ + 1}, reduced.options())
      .index_add_(0, index_, reduced.flatten())
      .narrow(0, 0, channels_);
}

at::Tensor ChannelMap::mean_all(const at::Tensor& values) const {
  const auto rows = static_cast<double>(values.numel()) / static_cast<double>(size_ * copies_);
  return scatter_all(values) / (counts_.clamp_min(1) * rows).to(values.options());
}

at::Tensor ChannelMap::pull_back_mean(const at::Tensor& per_channel, at::IntArrayRef sizes) const {
  const auto rows =
      static_cast<double>(c10::multiply_integers(sizes)) / static_cast<double>(size_ * copies_);
  return gather_vector(per_channel / (counts_.clamp_min(1) * rows).to(per_channel.options()), 0)
      .expand(sizes);
}

}  // namespace ddc
