#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

// Random matrices, in float64.

namespace ddc::tests {

inline at::Tensor normal(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(seed), at::kDouble);
}

inline at::Tensor orthonormal_columns(int64_t rows, int64_t cols, uint64_t seed) {
  return std::get<0>(at::linalg_qr(normal({rows, cols}, seed)));
}

}  // namespace ddc::tests
