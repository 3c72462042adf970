#pragma once

#include <vector>

#include "coordinates/plan.h"

// Shift gauges: the coordinate is the part of the weights that a shift adds to, their mean over a
// channel's indices; horizontal vectors are those whose mean is zero.

namespace ddc {

/// Where several legs act on one tensor, the inverse of the matrix of inner products of what the
/// channels add; undefined elsewhere, since then they are orthogonal.
at::Tensor inverse_gram(const GaugePlan& gauge);

/// The shift s for which `exponent * s` is closest to the vectors (indexed by tensor): their
/// weighted mean over each channel, in float64.
at::Tensor shift_part(const GaugePlan& gauge, const Tensors& vectors);

/// The same with every term's absolute value: what `shift_part` is to be judged against.
at::Tensor shift_scale(const GaugePlan& gauge, const Tensors& vectors);

/// How many entries a channel's shift adds to, shaped to broadcast against the shift.
at::Tensor shift_counts(const GaugePlan& gauge);

/// The shift as a change of one leg's tensor, broadcastable against it.
at::Tensor shift_of_leg(const BoundLeg& leg, const at::Tensor& shift);

/// The same on weights, where a leg may be seen through a gain: the shift that `weights` (indexed by
/// tensor, gains among them) have, and its subtraction or addition in place.
at::Tensor shift_of_weights(const GaugePlan& gauge, const Tensors& weights);
void add_shift_(const GaugePlan& gauge, const at::Tensor& shift, double sign, Tensors& weights);
/// A vector, shaped to lie along one axis of a matrix, or (`dim` = 1) of a vector.
at::Tensor along_axis(const at::Tensor& vector, int64_t axis, int64_t dim = 2);

}  // namespace ddc
