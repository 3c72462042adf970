#pragma once

#include <functional>
#include <vector>

#include "coordinates/component_view.h"

namespace ddc {

/// Value of one tensor, float64, a copy that may be changed.
using ValueOf = std::function<at::Tensor(size_t tensor)>;

/// One change of coordinates of a component's tensors. Coordinates are a list of these, from outside in
/// (coordinates/coordinate_maps.h).
///
/// A map depends on the state of its gauges, which is bound to the weights once, and on *notes* that it
/// takes of the weights at the start of every step. With both fixed:
///
///     round trip   to_weights(to_coordinates(W)) = W
///     adjoint      <pull_back(g), dX> = <g, dW>   for dW = d to_weights(dX)
///     invariance   to_coordinates(h W) = to_coordinates(W),   state bound to each, h in the map's gauges
///
/// Coordinates are computed tensor by tensor, when they are wanted: with a rotation of the residual stream a
/// whole model is one component.
class CoordinateMap {
 public:
  explicit CoordinateMap(const ComponentView& view)
      : view_(view), plan_(view.plan), component_(view.component) {}
  virtual ~CoordinateMap() = default;

  /// Takes notes. `outside` gives tensors in the coordinates of the maps outside this one.
  virtual void read(const ValueOf& /*outside*/) {}
  virtual void to_coordinates_(size_t tensor, at::Tensor& x) const = 0;
  /// Gradients, or any covectors, of all tensors that have one.
  virtual void pull_back_(Tensors& g) const = 0;
  /// The inverse, for some tensors at a time: first all that others depend on (gains, and the vectors and
  /// biases of drains), which stay in `x`, then the others one by one. Those without a gradient are in `x`
  /// as they were. Notes become those of the point that is lifted.
  virtual void to_weights_(const std::vector<size_t>& which, Tensors& x) = 0;

  /// The largest entry of what was last projected out along the gauge's orbit.
  double projected(size_t gauge) const { return projected_[gauge]; }

 protected:
  const ComponentView& view_;
  const Plan& plan_;
  const Component& component_;
  PerGauge<double> projected_{view_};
};

/// Map that treats every tensor by itself, once its notes are taken, and linearly.
class TensorwiseMap : public CoordinateMap {
 public:
  using CoordinateMap::CoordinateMap;

  void pull_back_(Tensors& g) const final {
    for (const size_t t : component_.tensors) {
      if (g[t].defined()) pull_back_one_(t, g[t]);
    }
  }
  void to_weights_(const std::vector<size_t>& which, Tensors& x) final {
    for (const size_t t : which) {
      if (view_.has_gradient[t]) to_weights_one_(t, x[t]);
    }
  }

 private:
  virtual void to_weights_one_(size_t tensor, at::Tensor& x) const = 0;
  /// Before a step, the transposed of `to_weights_one_`: the same, where entries are multiplied one by one.
  virtual void pull_back_one_(size_t tensor, at::Tensor& g) const { to_weights_one_(tensor, g); }
};

}  // namespace ddc
