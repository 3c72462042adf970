#pragma once

#include "coordinates/maps/map.h"
#include "coordinates/shift.h"

namespace ddc {

/// Multiplies weights that a gauge acts on through a norm's gain by it: W -> W diag(gain). The gain, in its
/// unit, is a constant of the step: it takes none while such a gauge is active.
class EffectiveWeight : public TensorwiseMap {
 public:
  using TensorwiseMap::TensorwiseMap;

  void read(const ValueOf& outside) override {
    for (const size_t t : component_.tensors) read_one(t, outside);
  }
  /// The same for one tensor.
  void read_one(size_t t, const ValueOf& outside) {
    const auto& through = plan_.tensors[t].through;
    if (!through) return;
    gain_[t] = along_axis(outside(through->gain), through->axis, plan_.tensors[t].tensor.dim());
  }
  void to_coordinates_(size_t tensor, at::Tensor& x) const override {
    if (gain_[tensor].defined()) x.mul_(gain_[tensor]);
  }

 private:
  void to_weights_one_(size_t tensor, at::Tensor& x) const override {
    if (gain_[tensor].defined()) x.div_(gain_[tensor].to(x.options()));
  }

  /// The gain that the tensor is seen through, along its axis.
  Tensors gain_{view_};
};

}  // namespace ddc
