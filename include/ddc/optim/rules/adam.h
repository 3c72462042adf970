#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "ddc/optim/view.h"

namespace ddc::rules {

struct AdamSettings {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
};

struct AdamMoments {
  at::Tensor exp_avg;
  /// Undefined where every entry is in a head that has another second moment.
  at::Tensor exp_avg_sq;
  /// Per head view whose second moment is not one number per coordinate: [heads, 1, 1] or
  /// [heads, block, block].
  std::vector<at::Tensor> head_sq;

  std::vector<std::pair<std::string, at::Tensor*>> tensors();
  /// Turns the moments with the coordinates (see LiftedParamState): the first as a vector, the second
  /// by the squares of the basis, which know nothing of signs and permutations.
  void turn(const BlockMap& map, const at::Tensor& basis);
};

/// The displacement that Adam makes at its `step`-th step (counted from 1), bias-corrected, without
/// decay. Updates the moments, which are allocated at the first step. The operations and their
/// order are those of torch::optim::AdamW, so that with no gauge the two agree to the last bit.
at::Tensor adam(const at::Tensor& gradient, int64_t step, AdamMoments& moments,
                const AdamSettings& settings);

/// The same with the second moments that the gauges on the tensor ask for in its heads.
at::Tensor adam(const at::Tensor& gradient, int64_t step, const TensorView& view,
                AdamMoments& moments, const AdamSettings& settings);

}  // namespace ddc::rules
