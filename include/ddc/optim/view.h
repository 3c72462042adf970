#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "ddc/frame/plan.h"
#include "ddc/gauge/block_map.h"
#include "ddc/gauge/gauge.h"

namespace ddc {

/// How a gauge that mixes channels cuts a tensor into heads.
struct HeadView {
  const BlockMap& map;
  const Gauge& gauge;
  /// Of body_frame_topk, [blocks, block]: directions that are adapted. Undefined: all.
  at::Tensor live;
};

/// What a base rule may know of the tensor it steps, beside its gradient.
struct TensorView {
  std::string name;
  std::vector<HeadView> heads;
  /// How an attention projection is cut into heads, bound or not by a gauge that mixes them.
  std::optional<HeadCut> cut;
};

}  // namespace ddc
