#pragma once

#include "coordinates/maps/map.h"
#include "coordinates/section.h"

namespace ddc {

/// Innermost map: the paper's coordinates for scale gauges ("ReLU rescale gauge" and "Radial update modes"
/// of its pseudocode). On top of balanced units, each side of a gauge (a *node*) is divided by its norm rho:
/// the base rule works on the direction, and the norm moves only with the joint scale of the gauge.
///
/// The norm is restored after the step on the direction, before the new joint scale is applied; the
/// paper adds the two, and the Pythagorean error of that is the drift it reports.
class Polar : public TensorwiseMap {
 public:
  using TensorwiseMap::TensorwiseMap;

  /// Notes the nodes' norms.
  void read(const ValueOf& outside) override;
  void to_coordinates_(size_t tensor, at::Tensor& x) const override;

  /// Notes <g, x> per node, with which the joint scales move.
  void measure_charges_(const Tensors& g, const ValueOf& x);
  /// Removes the radial part of vectors (gradients or steps) in place.
  void project_(const ValueOf& x, Tensors& vectors) const;
  /// 1 on entries whose norm belongs to no live node, 0 on the others; broadcastable. Undefined if
  /// the tensor is in no node.
  at::Tensor outside_nodes(size_t tensor) const;
  /// Restores the norms that the step on the directions changed, then moves the joint scales. `squares`, of
  /// the stepped coordinates, become those outside this map.
  void restore_and_move_radius_(Squares& squares, std::vector<ScalarMoments>& radial,
                                const std::vector<StepSettings>& settings);

 private:
  struct Node {
    /// log rho; 0 where the node is not live.
    at::Tensor log_rho;
    /// Sums over the coordinates inside this map.
    at::Tensor norm_square;
    at::Tensor charge;
    /// Channels that have a norm and all of whose gauges are active and bound.
    at::Tensor live;
    /// By how much the step changes the norm.
    at::Tensor log_factor;
  };

  void to_weights_one_(size_t tensor, at::Tensor& x) const override;
  void restore_norms_(Squares& squares);
  void move_radius_(const RadialMode& mode, Squares& squares, ScalarMoments& moments,
                    const StepSettings& settings);

  PerNode<Node> nodes_{view_};
};

}  // namespace ddc
