#include "ddc/frame/shift.h"

#include <ATen/ATen.h>

#include <cmath>

namespace ddc {

namespace {

/// Sum over legs of |exponent|^power times the number of a channel's indices.
at::Tensor weights(const GaugePlan& gauge, double power, int64_t dim) {
  auto sum = at::zeros({gauge.gauge.channels}, at::kDouble);
  for (size_t l = 0; l < gauge.shift_legs(); ++l) {
    const auto& leg = gauge.legs[l];
    sum += leg.map.counts().to(at::kCPU) * std::pow(std::abs(leg.exponent), power);
  }
  std::vector<int64_t> shape(dim, 1);
  shape[gauge.legs.front().map.axis()] = gauge.gauge.channels;
  return sum.view(shape);
}

template <class Terms>
at::Tensor weighted_mean(const GaugePlan& gauge, const Terms& terms) {
  at::Tensor sum;
  for (size_t l = 0; l < gauge.shift_legs(); ++l) {
    const auto& leg = gauge.legs[l];
    const auto part = leg.map.scatter(terms(leg));
    sum = sum.defined() ? sum + part : part;
  }
  return sum / weights(gauge, 2, sum.dim()).to(sum.device());
}

}  // namespace

at::Tensor shift_part(const GaugePlan& gauge, const std::vector<at::Tensor>& vectors) {
  return weighted_mean(gauge, [&](const BoundLeg& leg) {
    return vectors[leg.tensor].to(at::kDouble) * leg.exponent;
  });
}

at::Tensor shift_scale(const GaugePlan& gauge, const std::vector<at::Tensor>& vectors) {
  return weighted_mean(gauge, [&](const BoundLeg& leg) {
    return vectors[leg.tensor].to(at::kDouble).abs() * std::abs(leg.exponent);
  });
}

at::Tensor shift_counts(const GaugePlan& gauge) {
  return weights(gauge, 0, gauge.legs.front().map.dim());
}

at::Tensor shift_of_leg(const BoundLeg& leg, const at::Tensor& shift) {
  return leg.map.gather(shift, 0) * leg.exponent;
}

at::Tensor along_axis(const at::Tensor& vector, int64_t axis, int64_t dim) {
  if (dim == 1) return vector;
  return axis == 0 ? vector.unsqueeze(1) : vector.unsqueeze(0);
}

at::Tensor shift_of_weights(const GaugePlan& gauge, const std::vector<at::Tensor>& weights) {
  const auto& first = gauge.legs.front();
  if (!first.gain) return shift_part(gauge, weights);
  std::vector<at::Tensor> seen(weights.size());
  seen[first.tensor] =
      weights[first.tensor] * along_axis(weights[*first.gain], first.map.axis(), first.map.dim());
  return shift_part(gauge, seen);
}

void add_shift_(const GaugePlan& gauge, const at::Tensor& shift, double sign,
                std::vector<at::Tensor>& weights) {
  for (size_t l = 0; l < gauge.shift_legs(); ++l) {
    const auto& leg = gauge.legs[l];
    auto change = shift_of_leg(leg, shift);
    if (leg.gain) change = change / along_axis(weights[*leg.gain], leg.map.axis(), leg.map.dim());
    weights[leg.tensor].add_(change, sign);
  }
}

}  // namespace ddc
