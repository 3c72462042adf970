#pragma once

#include <ATen/ATen.h>

#include <limits>

#include "frame/plan.h"

// What the stages of a step share about legs. Not installed.

namespace ddc {

/// u^(sign * e) along a leg's axis.
inline at::Tensor leg_factor(const BoundLeg& leg, const at::Tensor& log_unit, double sign,
                             const at::TensorOptions& options) {
  return leg.map.gather_vector((log_unit * (sign * leg.exponent)).exp().to(options), 1);
}

/// What a drain gives of its source, which is given per index of the matrix's axis or of the sink.
inline at::Tensor read_through(const Drain& drain, const at::Tensor& matrix,
                               const at::Tensor& source) {
  return drain.matrix ? (matrix * source).sum(drain.map.axis()) : source;
}

/// Of the least precise of the tensors that a gauge acts on.
inline double precision(const Plan& plan, const GaugePlan& gauge) {
  for (const auto& leg : gauge.legs) {
    if (plan.tensors[leg.tensor].compute_type() != at::kDouble) {
      return std::numeric_limits<float>::epsilon();
    }
  }
  return std::numeric_limits<double>::epsilon();
}

}  // namespace ddc
