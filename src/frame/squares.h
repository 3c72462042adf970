#pragma once

#include <ATen/core/Tensor.h>

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
  /// Summed over all axes but one, which have size 1.
  const at::Tensor& along(int64_t axis) const;
  /// Multiplies the squares by a factor that varies along one axis, and has size 1 along the
  /// others.
  void multiply_(int64_t axis, const at::Tensor& factor);

 private:
  at::Tensor x_;
  /// Per axis; undefined for 1.
  std::vector<at::Tensor> factors_;
  /// Per axis; undefined until asked for.
  mutable std::vector<at::Tensor> sums_;
};

}  // namespace ddc
