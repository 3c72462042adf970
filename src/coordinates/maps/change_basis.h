#pragma once

#include "coordinates/maps/map.h"

namespace ddc {

/// Turns blocks that rotations and linear gauges mix into their frames: W = F X on legs with exponent 1,
/// W = F^-T X on those with -1 (coordinates/blocks.h).
class ChangeBasis : public TensorwiseMap {
 public:
  using TensorwiseMap::TensorwiseMap;

  void to_coordinates_(size_t tensor, at::Tensor& x) const override;

  /// Finds the rotations that vectors (steps, or momenta) contain, of all gauges that are projected `when`
  /// and all of whose tensors have a vector. `x`: the coordinates before the step.
  void find_angles_(const ValueOf& x, const Tensors& vectors, Projection when);
  /// Takes them out of all vectors, after which there are none; or out of one.
  void take_out_(const ValueOf& x, Tensors& vectors);
  void take_out_one_(size_t tensor, const at::Tensor& x, at::Tensor& vector) const;

 private:
  /// Calls visit(leg, F, inverse()) for all frames that act on a tensor.
  template <class Visit>
  void for_each_leg(size_t tensor, const Visit& visit) const;
  void pull_back_one_(size_t tensor, at::Tensor& g) const override;
  void to_weights_one_(size_t tensor, at::Tensor& x) const override;

  /// Generator of the rotation that is to be taken out.
  PerGauge<at::Tensor> angle_{view_};
};

}  // namespace ddc
