#pragma once

#include "coordinates/maps/map.h"

namespace ddc {

/// Subtracts what shifts add, and what exchanges give away: the mean that a shift adds to, which is held.
/// Through a gain, weights are centred as they are seen, W -> W - s / gain. The means are constants of a
/// step, so that gradients stay as they are.
class Centre : public CoordinateMap {
 public:
  explicit Centre(const ComponentView& view);

  void read(const ValueOf& outside) override;
  void to_coordinates_(size_t tensor, at::Tensor& x) const override;
  void pull_back_(Tensors& /*g*/) const override {}
  void to_weights_(const std::vector<size_t>& which, Tensors& x) override;

  /// Holds the means that were read, and drops of the centred tensors what is rounding of them.
  void bind_(std::vector<GaugeState>& states, Tensors& x) const;
  /// Takes the shifts out of gradients or steps, given in the innermost coordinates. `ignore_rounding`:
  /// only where they are more than that.
  void project_(Tensors& vectors, bool ignore_rounding);

  /// Changes vectors from the basis of the innermost coordinates to that of the weights, or back, along the
  /// axes on which a gauge is constant: a rotation that leaves the ones alone may have changed it.
  void turn_axes_(size_t gauge, bool back, Tensors& vectors) const;

  /// The mean of a gauge that was read.
  const at::Tensor& shift(size_t gauge) const { return shift_[gauge]; }

 private:
  /// Subtracts the shifts of all gauges before `level` (sign -1), or adds those from `level` on (+1).
  void move_(int sign, size_t level, size_t tensor, at::Tensor& x) const;

  std::vector<size_t> gauges_;
  PerGauge<at::Tensor> shift_{view_};
  /// Gains that weights are shifted through: before shifts are subtracted, and then before they are added.
  Tensors gains_{view_};
};

}  // namespace ddc
