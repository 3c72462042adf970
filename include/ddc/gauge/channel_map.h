#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace ddc {

/// Channel maps for the layouts that attention uses. Each returns c(i) for the indices of one axis.
namespace channel_maps {

/// Every index is channel 0: the whole tensor moves together.
std::vector<int64_t> whole(int64_t size);

/// How the head dimension of a rotary model is paired into planes.
enum class Pairing {
  none,         ///< no rotary embedding: one channel per head
  half_split,   ///< index i turns with i + d/2 (Llama, NeoX)
  interleaved,  ///< index 2i turns with 2i + 1 (GPT-J)
};

/// `heads` blocks of `head_size` indices; `heads / groups` consecutive heads share a channel, as
/// under grouped-query attention. One channel per group, or per group and rotary plane.
std::vector<int64_t> heads(int64_t heads, int64_t head_size, int64_t groups,
                           Pairing pairing = Pairing::none);

}  // namespace channel_maps

/// Channel map bound to one axis, or to pairs of the first axis and another: moves values between channels
/// and indices.
///
/// `gather` takes a tensor whose `axis` runs over channels to one whose `axis` runs over indices;
/// `scatter` is its transpose. Identity and single-channel maps cost no indexing.
class ChannelMap {
 public:
  ChannelMap(const std::vector<int64_t>& channel_of, int64_t channels, int64_t axis, int64_t size,
             int64_t dim, at::Device device, int64_t copies = 1);

  /// values[.., c(i), ..] for every index i, `fill` where the group does not act. The result
  /// broadcasts against the tensor.
  at::Tensor gather(const at::Tensor& values, double fill) const;
  /// The same for one number per channel (a 1-D tensor of length `channels`).
  at::Tensor gather_vector(const at::Tensor& per_channel, double fill) const;
  /// Sums the entries of every channel along the axis.
  at::Tensor scatter(const at::Tensor& values) const;
  /// The mean over the entries of every channel along the axis, of values that may be broadcast
  /// along it.
  at::Tensor mean(const at::Tensor& values) const;
  /// Sums the entries of every channel over all axes: a vector of length `channels`.
  at::Tensor scatter_all(const at::Tensor& values) const;
  /// The mean of them, and its transpose.
  at::Tensor mean_all(const at::Tensor& values) const;
  at::Tensor pull_back_mean(const at::Tensor& per_channel, at::IntArrayRef sizes) const;

  /// Whether all indices belong to one channel.
  bool is_single() const { return form_ == Form::single; }
  int64_t axis() const { return axis_; }
  /// The axes along which the channel varies.
  std::vector<int64_t> axes() const {
    return copies_ == 1 ? std::vector{axis_} : std::vector<int64_t>{0, axis_};
  }
  /// Number of axes of the tensor.
  int64_t dim() const { return dim_; }
  int64_t channels() const { return channels_; }
  /// Number of indices in each channel, as float64.
  const at::Tensor& counts() const { return counts_; }

 private:
  enum class Form { identity, single, general };
  Form form_;
  int64_t channels_;
  int64_t axis_;
  int64_t dim_;
  int64_t size_;
  /// The size of the first axis where channels are pairs; 1 where they are not. Then there are no `gather`
  /// and `scatter` of whole tensors.
  int64_t copies_;
  /// c(i), with `channels` standing for "not acted on".
  at::Tensor index_;
  at::Tensor counts_;
};

}  // namespace ddc
