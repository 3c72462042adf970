#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace ddc::rules {

struct AdamSettings {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
};

struct AdamMoments {
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
};

/// The displacement that Adam makes at its `step`-th step (counted from 1), bias-corrected, without
/// decay. Updates the moments, which are allocated at the first step. The operations and their
/// order are those of torch::optim::AdamW, so that with no gauge the two agree to the last bit.
at::Tensor adam(const at::Tensor& gradient, int64_t step, AdamMoments& moments,
                const AdamSettings& settings);

}  // namespace ddc::rules
