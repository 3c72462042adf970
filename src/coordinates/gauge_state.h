#pragma once

#include <ATen/core/Tensor.h>

#include "ddc/optim/lifted.h"

namespace ddc {

/// First and second moments of a scalar rule, elementwise over channels. Undefined where no scalar rule
/// moves anything.
struct ScalarMoments {
  at::Tensor first;
  at::Tensor second;
  Counter step;

  void start(const at::Tensor& like);
  /// One step of Adam on numbers that each stand for a whole direction (a gauge coordinate, a joint
  /// scale). Returns the displacement. Without `divide` the second moment is not used.
  at::Tensor make_step(const at::Tensor& gradient, const StepSettings& settings,
                       bool divide = true);
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
  /// Gauges that mix channels: F per block (coordinates/blocks.h), and the diagonal of the Gram matrix in it
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

}  // namespace ddc
