#pragma once

#include <ATen/ATen.h>

#include <algorithm>

#include "ddc/gauge/channel_map.h"
#include "ddc/gauge/gauge.h"
#include "gauge/block_map.h"

namespace ddc {

/// The number of indices along a leg's axis.
inline int64_t size_along(const Leg& leg, const at::Tensor& tensor) {
  return leg.axis < 0 ? 1 : tensor.size(leg.axis);
}

/// The number of tensors of which the leg's is a stack.
inline int64_t copies_of(const Leg& leg, const at::Tensor& tensor) {
  return leg.stacked ? tensor.size(0) : 1;
}

/// The channels of a leg, bound to its tensor; of a shift to the tensor with `more` axes in front.
inline ChannelMap map_of(const Gauge& gauge, const Leg& leg, const at::Tensor& tensor,
                         int64_t more = 0) {
  return ChannelMap(leg.channel_of, gauge.channels, leg.axis + more, size_along(leg, tensor),
                    tensor.dim() + more, tensor.device(), copies_of(leg, tensor));
}

/// Brings tensors in line at the last axis: with `more` axes of size one in front, and without them.
inline at::Tensor with_more_axes(at::Tensor tensor, int64_t more) {
  for (; more > 0; --more) tensor = tensor.unsqueeze(0);
  return tensor;
}
inline at::Tensor without_axes(at::Tensor tensor, int64_t more) {
  for (; more > 0; --more) tensor = tensor.squeeze(0);
  return tensor;
}

/// Whether two legs on one axis of one tensor act on different indices.
inline bool disjoint(const Leg& a, const Leg& b) {
  if (a.channel_of.empty() || b.channel_of.empty()) return false;
  for (size_t i = 0; i < std::min(a.channel_of.size(), b.channel_of.size()); ++i) {
    if (a.channel_of[i] >= 0 && b.channel_of[i] >= 0) return false;
  }
  return true;
}

/// The entries of a gain that weights cannot be seen through, because they are zero or, beside the
/// largest, as good as: to change what is seen, weights behind them would have to change a million times
/// as much as others. (Pretrained norms have such channels.)
inline at::Tensor dead_entries(const at::Tensor& gain, double offset) {
  const auto size = (gain.detach().to(at::kDouble) + offset).abs();
  return size <= size.max() * 1e-6;
}

/// The channels of a leg in blocks, of a gauge that mixes channels.
inline BlockMap block_map_of(const Gauge& gauge, const Leg& leg, const at::Tensor& tensor) {
  return BlockMap(leg.channel_of, gauge.channels, gauge.block, leg.axis, tensor.sizes(),
                  tensor.device());
}

}  // namespace ddc
