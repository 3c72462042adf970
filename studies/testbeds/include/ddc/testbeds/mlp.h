#pragma once

#include "ddc/testbeds/testbed.h"

namespace ddc::testbeds {

/// A chain of linear layers with biases and a ReLU between each two. Its depth - 1 gauges share
/// tensors: every inner weight is the reader of one and the source of the next. Regression on a
/// teacher of the same form, with fresh samples in every batch.
/// Tensors: "layers.0.weight", "layers.0.bias", ...
struct ReluChainOptions {
  /// Number of linear layers.
  int64_t depth = 4;
  int64_t d_in = 8;
  int64_t d_hidden = 16;
  int64_t d_out = 4;
  int64_t batch_size = 64;
  /// 1 for ReLU, 2 for squared ReLU.
  int64_t degree = 1;
  /// One gauge channel per hidden unit, or one for the whole tensor.
  bool per_channel = true;
  double bias_spread = 0.2;
  uint64_t teacher_seed = 0;
};
Testbed relu_chain(const ReluChainOptions& options = {});

}  // namespace ddc::testbeds
