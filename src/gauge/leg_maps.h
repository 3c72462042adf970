#pragma once

#include "ddc/gauge/block_map.h"
#include "ddc/gauge/channel_map.h"
#include "ddc/gauge/gauge.h"

namespace ddc {

/// The channels of a leg, bound to its tensor.
inline ChannelMap map_of(const Gauge& gauge, const Leg& leg, const at::Tensor& tensor) {
  return ChannelMap(leg.channel_of, gauge.channels, leg.axis, tensor.size(leg.axis), tensor.dim(),
                    tensor.device());
}

/// The same in blocks, of a gauge that mixes channels.
inline BlockMap block_map_of(const Gauge& gauge, const Leg& leg, const at::Tensor& tensor) {
  return BlockMap(leg.channel_of, gauge.channels, gauge.block, leg.axis, tensor.sizes(),
                  tensor.device());
}

}  // namespace ddc
