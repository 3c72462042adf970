#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "ddc/gauge/gauge.h"
#include "ddc/optim/adam.h"
#include "ddc/parameters.h"

// How far an optimizer that divides coordinate by coordinate moves along orbits, in closed form: from
// the weights and its update direction D alone, before the step is made.
//
// The step is W -> (1 - lr decay) W - lr D, with D = P * m for Adam: m the momentum, P one number per
// coordinate. For scale gauges and for rotations of weights as they are stored; tables of the same
// names as the parameters' hold D, P and m. Everything is computed in float64.
//
//     ddc::AdamWMoments moments;
//     moments.update(gradients);
//     const auto drift = ddc::predicted_drift(gauge, params, moments.direction(), {.lr = 1e-3});

namespace ddc {

/// Repeats what torch::optim::AdamW makes of gradients.
class AdamWMoments {
 public:
  /// `settings.lr` is not used.
  explicit AdamWMoments(const AdamOptions& settings = {}) : settings_(settings) {}

  /// Takes the gradients of a step. A tensor that is not among them is left alone.
  void update(const Parameters& gradients);

  /// D = P * m of the last step that a tensor took part in.
  Parameters direction() const;
  /// P, one over the root of the second moment (plus eps).
  Parameters preconditioner() const;
  /// m, the first moment, both corrected for their bias.
  Parameters momentum() const;

 private:
  struct State {
    AdamMoments moments;
    int64_t steps = 0;
    at::Tensor direction;
  };
  AdamOptions settings_;
  std::map<std::string, State> states_;
};

/// Part of an update direction that points along the orbit, in two parts. With P = mean + rest, for every
/// leg and channel (or block) by itself:
///
///     scale      [channels]                 <P * m, v>, v the unit vector along the channel's orbit
///     rotation   [blocks, block, block]     the skew part of the sum over legs of (P * m) W^T
///
/// (Lemmas adam_projection_bias and adam_projection_bias_rotation of the paper, for any number of legs
/// and exponents. Its lower bound in the former, by the sum of the sides' covariances, holds only
/// where they do not cancel.) Zero where P is constant and m a gradient of an invariant loss.
struct Leakage {
  /// Part of the means: there even if every tensor had one number for P.
  at::Tensor mean;
  /// The rest: how the entries of P go with those of the product of m and W.
  at::Tensor covariance;

  at::Tensor total() const;
};
Leakage leakage(const Gauge& gauge, const Parameters& params, const Parameters& preconditioner,
                const Parameters& momentum);

struct StepSize {
  double lr = 1e-3;
  double weight_decay = 0;
};

/// The change of the gauge coordinate in one step, up to the first and up to the second order of lr.
///
///     scale      [channels]               of r = log rho_plus - log rho_minus, in the stored weights;
///                                         NaN where a side is zero
///     rotation   [blocks, block, block]   the skew matrix A such that exp(A) turns the weights as
///                                         near as can be to where the step takes them
///
/// The first order of r is the leakage only where both sides are equally large; elsewhere steps that
/// are orthogonal to the orbit move r too, those of SGD among them. The second order is that of the
/// logarithm (of the polar factor): the step itself is linear in lr. (The paper's Lemma eta2_correction
/// has derivatives of the loss there. They are what a step differs by from the continuous flow.)
///
/// Decay multiplies both sides alike and so does not move r by itself. It does where legs of one side
/// have different exponents, where there is one side only, and for a gain that is stored as (1 + w). Of
/// a rotation it changes the second order.
struct PredictedDrift {
  at::Tensor first_order;
  at::Tensor second_order;
};
PredictedDrift predicted_drift(const Gauge& gauge, const Parameters& params,
                               const Parameters& direction, const StepSize& step);

}  // namespace ddc
