#pragma once

#include <ATen/core/Tensor.h>

namespace ddc::testbeds {

/// Of the singular values s_i of activations [inputs, d]: the smallest, and the effective rank
/// exp(-sum p_i log p_i) with p_i = s_i / sum s (paper, "The grokking-transformer testbed").
struct Spectrum {
  double sigma_min = 0;
  double effective_rank = 0;
};

/// All axes but the last count inputs.
Spectrum activation_spectrum(const at::Tensor& activations);

}  // namespace ddc::testbeds
