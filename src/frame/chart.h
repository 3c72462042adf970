#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ddc/optim/lifted.h"
#include "frame/plan.h"
#include "frame/squares.h"

namespace ddc {

/// First and second moments of a scalar rule, elementwise over channels. Undefined where no scalar rule
/// moves anything.
struct ScalarMoments {
  at::Tensor first;
  at::Tensor second;
  Counter step;
};

/// Where on its orbit each channel of a gauge is kept. All tensors float64.
struct GaugeState {
  /// log u per channel (scale gauges).
  at::Tensor log_unit;
  /// The value at which the section is held in coordinates: what `section()` returns on X. Linear
  /// gauges: the factor, per block, that balances X; the identity if it was balanced when bound.
  at::Tensor target;
  /// The value at which the gauge coordinate of the weights is held: r, or a shift's mean.
  at::Tensor held;
  /// Channels for which both of the above mean something; the others are in a degenerate stratum.
  at::Tensor bound;
  /// Channels that have been bound at some time, so that there is a place to go back to.
  at::Tensor known;
  ScalarMoments vertical;
  /// Gauges that mix channels: F per block (frame/blocks.h), and the diagonal of the Gram matrix in it
  /// as it was when the frame was found.
  at::Tensor frame;
  at::Tensor eigenvalues;
  /// Steps since the last time that all frames were computed again, and how often any was.
  Counter age;
  Counter recomputed;
  /// What the last step corrected: the largest |section - target|, or the largest entry of the shift
  /// or of the generator of a rotation that was projected out of the step.
  double imbalance = 0;
};

/// One component's weights and gradients in invariant coordinates, during one step.
///
/// A rotation of the residual stream makes a whole model one component. So nothing of the size of a
/// tensor is kept longer than it is needed: before the step, coordinates are computed from the weights
/// where they are wanted (Frame::coordinates_of); gradients turn into steps one by one, steps into
/// stepped coordinates, and these into weights.
///
/// Vectors are indexed as in the plan (by tensor, gauge, drain, node); entries outside the
/// component, and of tensors without a gradient, stay empty.
struct Chart {
  const Component* component = nullptr;
  /// Per gauge: every leg has a gradient in this step. Otherwise its units are used and nothing of
  /// it is moved: the orbit of a tensor that is not being trained is not ours to move along.
  std::vector<bool> active;
  /// The stepped coordinates, float64 (the parameter itself where no gauge acts). Freed tensor by
  /// tensor as they are lifted.
  std::vector<at::Tensor> x;
  /// Gradient with respect to x. Freed once the base rule has seen it.
  std::vector<at::Tensor> g;
  /// Per tensor.
  std::vector<bool> has_gradient;
  /// Per shift gauge: the mean that was subtracted from the weights.
  std::vector<at::Tensor> shift;
  /// Per drain: what was read of its source. Per tensor that drains fill: the weights, filled.
  std::vector<at::Tensor> emptied;
  std::vector<at::Tensor> filled;
  /// Per gauge: derivative of the loss along the orbit, and the sum of its absolute terms.
  std::vector<at::Tensor> charge;
  std::vector<at::Tensor> charge_scale;
  /// Per tensor: squares of x, kept up to date while re-balancing.
  std::vector<AxisSquares> squares;
  /// Per gauge that mixes channels: the rotation that the steps contain, to be taken out of them.
  std::vector<at::Tensor> angles;
  /// Per tensor: takes no step of its own, because weights read through it and take them instead.
  std::vector<bool> passive;
  /// Per drain of the plan: made in this step.
  std::vector<bool> drained;
  /// Per tensor that is seen through a gain: the gain in units, along the tensor's axis.
  std::vector<at::Tensor> through;
  /// Per tensor: x before the step, where a gauge asks for it.
  std::vector<at::Tensor> before;
  /// Per shift, rotation and linear gauge: the largest entry of what the last projection removed.
  std::vector<double> projected;
  /// Per gauge: log c of the group element that takes the stepped x back to its section.
  std::vector<at::Tensor> log_move;

  /// Polar coordinates, per node. `log_rho`: log of the joint norm, 0 where not bound. `norm_square`:
  /// of x as it is here. `charge`: <g, x>. `live`: bound and active. `log_factor`: by how much the
  /// step changes the norm.
  struct Node {
    at::Tensor log_rho;
    at::Tensor norm_square;
    at::Tensor charge;
    at::Tensor live;
    at::Tensor log_factor;
  };
  std::vector<Node> nodes;
};

}  // namespace ddc
