#pragma once

#include <ATen/ATen.h>

namespace ddc {

/// Random numbers between -width and width, on the CPU. Beyond a million they repeat, with a period that is
/// prime and so no multiple of anybody's rows: drawing them takes longer than all else that is done to a large
/// tensor, and they only have to be no symmetry's.
inline at::Tensor uniform_noise(at::IntArrayRef sizes, at::ScalarType type, double width,
                                const at::Generator& generator) {
  constexpr int64_t period = 1048573;
  const int64_t count = c10::multiply_integers(sizes);
  auto drawn = at::empty({std::min(count, period)}, type).uniform_(-width, width, generator);
  if (count <= period) return drawn.view(sizes);
  auto result = at::empty({count}, type);
  for (int64_t start = 0; start < count; start += period) {
    const int64_t size = std::min(period, count - start);
    result.narrow(0, start, size).copy_(drawn.narrow(0, 0, size));
  }
  return result.view(sizes);
}

}  // namespace ddc
