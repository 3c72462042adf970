#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace ddc {

/// Calls `use` with pieces of a tensor of at most `size` entries, as vectors that share its memory, and with
/// the number of the first entry of each. A tensor whose entries are not one stretch of memory is one piece.
template <class Use>
void each_piece(const at::Tensor& tensor, int64_t size, const Use& use) {
  const auto values = tensor.detach();
  if (!values.is_non_overlapping_and_dense()) {
    use(values, int64_t{0});
    return;
  }
  const auto flat = values.as_strided({values.numel()}, {1});
  for (int64_t start = 0; start < flat.size(0); start += size) {
    use(flat.narrow(0, start, std::min(size, flat.size(0) - start)), start);
  }
}

/// The norm of a tensor, in float64 but for what one piece of it needs.
inline double norm_of(const at::Tensor& tensor) {
  constexpr int64_t size = 1 << 20;
  double sum = 0;
  each_piece(tensor, size, [&](const at::Tensor& piece, int64_t) {
    sum += std::pow(piece.to(at::kDouble).norm().item<double>(), 2);
  });
  return std::sqrt(sum);
}

/// The norm of the difference of two tensors of one shape, without the difference.
inline double distance_of(const at::Tensor& a, const at::Tensor& b) {
  const auto whole = b.detach();
  if (!whole.is_non_overlapping_and_dense() || a.strides() != b.strides()) return norm_of(a - b);
  constexpr int64_t size = 1 << 20;
  const auto flat = whole.as_strided({whole.numel()}, {1});
  double sum = 0;
  each_piece(a, size, [&](const at::Tensor& piece, int64_t start) {
    const auto other = flat.narrow(0, start, piece.numel());
    sum += std::pow((piece - other).to(at::kDouble).norm().item<double>(), 2);
  });
  return std::sqrt(sum);
}

/// Random numbers between -1 and 1 for the entries of tensors, one tensor after the other. A million of them
/// are drawn, and repeat, with a period that is prime and so no multiple of anybody's rows: drawing more
/// takes longer than all else that is done to a large tensor, and they only have to be no symmetry's.
class Noise {
 public:
  Noise(int64_t entries, const at::Generator& generator)
      : drawn_(at::empty({std::clamp<int64_t>(entries, 1, period)}, at::kFloat)
                   .uniform_(-1, 1, generator)) {}

  /// Calls `use` with pieces of the tensor, which begins at entry number `offset` of all, and the noise of
  /// each, of its type and on its device.
  template <class Use>
  void each(const at::Tensor& tensor, int64_t offset, const Use& use) const {
    const int64_t size = drawn_.size(0);
    each_piece(tensor, size, [&](const at::Tensor& piece, int64_t start) {
      const int64_t first = (offset + start) % size;
      const int64_t head = std::min(piece.numel(), size - first);
      if (piece.numel() > size) {
        const auto index = (at::arange(piece.numel()) + first).remainder(size);
        use(piece, drawn_.index_select(0, index).view(piece.sizes()).to(piece.options()));
        return;
      }
      auto noise = drawn_.narrow(0, first, head);
      if (head < piece.numel()) {
        noise = at::cat({noise, drawn_.narrow(0, 0, piece.numel() - head)});
      }
      use(piece, noise.view(piece.sizes()).to(piece.options()));
    });
  }

 private:
  static constexpr int64_t period = 1048573;
  at::Tensor drawn_;
};

}  // namespace ddc
