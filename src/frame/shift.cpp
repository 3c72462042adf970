#include "ddc/frame/shift.h"

#include <ATen/ATen.h>

#include <cmath>

namespace ddc {

namespace {

/// Sum over legs of |exponent|^power times the number of a channel's indices.
at::Tensor weights(const GaugePlan& gauge, double power, int64_t dim) {
  auto sum = at::zeros({gauge.gauge.channels}, at::kDouble);
  for (const auto& leg : gauge.legs) {
    sum += leg.map.counts().to(at::kCPU) * std::pow(std::abs(leg.exponent), power);
  }
  std::vector<int64_t> shape(dim, 1);
  shape[gauge.legs.front().map.axis()] = gauge.gauge.channels;
  return sum.view(shape);
}

}  // namespace

at::Tensor shift_part(const GaugePlan& gauge, const std::vector<at::Tensor>& vectors) {
  at::Tensor sum;
  for (const auto& leg : gauge.legs) {
    const auto part = leg.map.scatter(vectors[leg.tensor].to(at::kDouble)) * leg.exponent;
    sum = sum.defined() ? sum + part : part;
  }
  return sum / weights(gauge, 2, sum.dim()).to(sum.device());
}

at::Tensor shift_counts(const GaugePlan& gauge) {
  return weights(gauge, 0, gauge.legs.front().map.dim());
}

at::Tensor shift_of_leg(const BoundLeg& leg, const at::Tensor& shift) {
  return leg.map.gather(shift, 0) * leg.exponent;
}

}  // namespace ddc
