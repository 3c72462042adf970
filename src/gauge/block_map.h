#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace ddc {

/// A channel map into blocks, bound to one axis: cuts a tensor into the pieces that the matrices of a
/// rotation or linear gauge act on.
///
/// Channel c = b * block + p is coordinate p of block b. Every channel has the same number of
/// indices along the axis, the `copies`: query heads that share a key head, or the two parts of a
/// fused projection that turn together.
class BlockMap {
 public:
  BlockMap(const std::vector<int64_t>& channel_of, int64_t channels, int64_t block, int64_t axis,
           at::IntArrayRef sizes, at::Device device);

  /// [blocks, block, entries]: all that block b holds in coordinate p, copies side by side.
  at::Tensor take(const at::Tensor& tensor) const;
  /// Writes what `take` would return, in place.
  void put_(at::Tensor& tensor, const at::Tensor& values) const;
  /// The same with every copy on its own: [blocks * copies, block, entries].
  at::Tensor take_heads(const at::Tensor& tensor) const;
  void put_heads_(at::Tensor& tensor, const at::Tensor& values) const;

  /// matrix @ take(tensor), put back; one matrix per block.
  at::Tensor multiply(const at::Tensor& matrices, const at::Tensor& tensor) const;
  /// Whether the map acts on every index of the axis.
  bool covers_axis() const { return covers_axis_; }

  int64_t axis() const { return axis_; }
  int64_t blocks() const { return blocks_; }
  int64_t block() const { return block_; }
  int64_t copies() const { return copies_; }

 private:
  at::Tensor rows(const at::Tensor& tensor) const;
  /// The indices that the map acts on where they follow each other, else all of them; the axis in front.
  at::Tensor front(const at::Tensor& tensor) const;

  int64_t axis_;
  int64_t blocks_;
  int64_t block_;
  int64_t copies_;
  bool covers_axis_;
  /// Indices along the axis in the order (block, coordinate, copy), unless they follow each other from
  /// `first_` on, as those of a projection do that is fused with others.
  at::Tensor index_;
  int64_t first_ = 0;
  std::vector<int64_t> sizes_;
};

}  // namespace ddc
