#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

namespace ddc {

/// Sums of squares of a tensor's coordinates along its axes, while factors are multiplied on.
///
/// The factors are remembered and the coordinates are not copied: they must stay as they are. A
/// factor along one axis changes the sums along the others, which are then taken again when asked
/// for.
class AxisSquares {
 public:
  AxisSquares() = default;
  explicit AxisSquares(at::Tensor x);

  bool empty() const { return !x_.defined(); }
  at::Device device() const { return x_.device(); }
  /// An axis, or several.
  using Axes = std::vector<int64_t>;

  /// Summed over all other axes, which then have size 1.
  const at::Tensor& along(const Axes& axes) const;
  /// Multiplies the squares by a factor that varies along some axes, and has size 1 along the
  /// others.
  void multiply_(const Axes& axes, const at::Tensor& factor);

 private:
  at::Tensor x_;
  std::map<Axes, at::Tensor> factors_;
  /// What has been asked for.
  mutable std::map<Axes, at::Tensor> sums_;
};

}  // namespace ddc
