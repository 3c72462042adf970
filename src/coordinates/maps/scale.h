#pragma once

#include "coordinates/maps/map.h"

namespace ddc {

/// Divides by the units of scale gauges: X = W / u[c(i)]^e on every leg, one factor per axis.
class Scale : public TensorwiseMap {
 public:
  explicit Scale(const ComponentView& view) : TensorwiseMap(view) {
    for (const size_t k : component_.gauges) {
      if (plan_.gauges[k].is_scale()) log_move[k] = at::zeros_like(view.states[k].log_unit);
    }
  }

  void to_coordinates_(size_t tensor, at::Tensor& x) const override {
    for (const auto& use : plan_.tensors[tensor].scales) {
      x.mul_(plan_.leg(use).factor(view_.states[use.gauge].log_unit, -1, x.options()));
    }
  }

  /// log c of the group element that takes stepped coordinates back to their section; applied when they are
  /// lifted.
  PerGauge<at::Tensor> log_move{view_};

 private:
  void to_weights_one_(size_t tensor, at::Tensor& x) const override {
    for (const auto& use : plan_.tensors[tensor].scales) {
      const auto log_unit = view_.states[use.gauge].log_unit + log_move[use.gauge];
      x.mul_(plan_.leg(use).factor(log_unit, +1, x.options()));
    }
  }
};

}  // namespace ddc
