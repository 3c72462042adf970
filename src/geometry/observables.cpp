#include "ddc/geometry/observables.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "geometry/completeness_orbits.h"
#include "geometry/loss_jacobian.h"

namespace ddc {

ActivationSpectrum activation_spectrum(const at::Tensor& activations) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK_VALUE(activations.dim() > 0 && activations.numel() > 0,
                    "activations must have an axis of channels, have shape ", activations.sizes());
  TORCH_CHECK_VALUE(activations.isfinite().all().item<bool>(), "activations of shape ",
                    activations.sizes(), " have NaN or Inf entries");
  const auto matrix =
      activations.detach().reshape({-1, activations.size(-1)}).to(at::kCPU, at::kDouble);
  const auto values = at::linalg_svdvals(matrix);
  const auto shares = values / values.sum();
  return {.sigma_min = values.min().item<double>(),
          .sigma_max = values.max().item<double>(),
          .effective_rank = at::xlogy(shares, shares).sum().neg().exp().item<double>()};
}

DeadUnits dead_units(const at::Tensor& preactivations) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK_VALUE(preactivations.dim() > 0 && preactivations.numel() > 0,
                    "preactivations must have an axis of units, have shape ",
                    preactivations.sizes());
  TORCH_CHECK_VALUE(preactivations.isfinite().all().item<bool>(), "preactivations of shape ",
                    preactivations.sizes(), " have NaN or Inf entries");
  const auto rows = preactivations.detach().reshape({-1, preactivations.size(-1)});
  const auto off = rows.le(0).all(0);
  const auto on = rows.gt(0).all(0);
  return {rows.size(1), off.sum().item<int64_t>(), on.sum().item<int64_t>()};
}

at::Tensor joint_norms(const at::Tensor& in, const at::Tensor& out, double degree) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK_VALUE(in.dim() > 0 && out.dim() > 0 && in.size(0) == out.size(-1),
                    "joint_norms: the first axis of in and the last of out must be the units, got ",
                    in.sizes(), " and ", out.sizes());
  const auto entering = in.detach().to(at::kDouble).reshape({in.size(0), -1}).norm(2, {1});
  const auto leaving = out.detach().to(at::kDouble).reshape({-1, out.size(-1)}).norm(2, {0});
  return entering.pow(degree) * leaving;
}

std::optional<double> axis_alignment(const at::Tensor& directions) {
  TORCH_CHECK_VALUE(directions.dim() == 2, "axis_alignment: directions must be columns, got shape ",
                    directions.sizes());
  if (directions.size(1) == 0) return std::nullopt;
  return directions.to(at::kDouble).square().amax(0).mean().item<double>();
}

std::optional<double> space_alignment(const at::Tensor& directions) {
  TORCH_CHECK_VALUE(directions.dim() == 2,
                    "space_alignment: directions must be columns, got shape ", directions.sizes());
  if (directions.size(1) == 0) return std::nullopt;
  const auto columns = directions.detach().to(at::kCPU, at::kDouble);
  const auto overlaps = columns.t().matmul(columns) - at::eye(columns.size(1), at::kDouble);
  TORCH_CHECK_VALUE(overlaps.abs().max().item<double>() < 1e-3,
                    "space_alignment: directions must be orthonormal");
  const auto diagonal = columns.square().sum(1);
  return diagonal.square().sum().item<double>() / static_cast<double>(columns.size(1));
}

at::Tensor dead_directions(const at::Tensor& weight, double floor) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK_VALUE(weight.dim() == 2, "dead_directions: weight must be a matrix, has shape ",
                    weight.sizes());
  TORCH_CHECK_VALUE(floor > 0 && floor < 1, "option floor must be between 0 and 1, got ", floor);
  TORCH_CHECK_VALUE(weight.size(1) >= weight.size(0), "dead_directions: ", weight.size(1),
                    " columns span at most as many of ", weight.size(0), " directions, so that ",
                    weight.size(0) - weight.size(1),
                    " would count as dead whatever the weight is: take more columns (inputs)");
  const auto [u, sigma, v] =
      at::linalg_svd(weight.detach().to(at::kCPU, at::kDouble), /*full_matrices=*/true);
  const auto alive = sigma.ge(floor * sigma[0]).logical_and(sigma > 0).sum().item<int64_t>();
  return u.narrow(1, alive, u.size(1) - alive);
}

ClusterGap cluster_gap(const at::Tensor& values) {
  const auto flat = values.detach().to(at::kCPU, at::kDouble).flatten();
  const auto sorted = std::get<0>(flat.masked_select(flat > 0).sort());
  ClusterGap gap;
  gap.below = 0;
  const auto entries = sorted.accessor<double, 1>();
  const int64_t zeros = flat.numel() - sorted.numel();
  for (int64_t k = 1; k < sorted.numel(); ++k) {
    const double ratio = entries[k] / entries[k - 1];
    if (ratio > gap.ratio) gap = {ratio, k + zeros};
  }
  return gap;
}

double horizontal_length(const std::vector<Gauge>& gauges, const Parameters& params,
                         const Parameters& displacement) {
  const at::NoGradGuard no_grad;
  Parameters moving;
  std::vector<at::Tensor> parts;
  for (const auto& [name, tensor] : params) {
    if (!displacement.contains(name)) continue;
    const auto& moved = displacement[name].tensor;
    TORCH_CHECK_VALUE(moved.sizes() == tensor.sizes(), "horizontal_length: the displacement of '",
                      name, "' has shape ", moved.sizes(), ", the parameter ", tensor.sizes());
    moving.add(name, tensor.detach().clone().requires_grad_(true));
    parts.push_back(moved.detach().to(at::kCPU, at::kDouble).flatten());
  }
  TORCH_CHECK_VALUE(!parts.empty(), "horizontal_length: the displacement has no parameter");
  const auto vector = at::cat(parts);
  if (gauges.empty()) return vector.norm().item<double>();
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(0);
  const Trainable trainable(moving);
  const Orbits orbits(gauges, params, trainable, at::ones({trainable.size()}, at::kDouble),
                      generator);
  return orbits.without(vector).norm().item<double>();
}

StepValidity step_validity(const Parameters& preconditioner, double lr, double beta2) {
  TORCH_CHECK_VALUE(beta2 >= 0 && beta2 < 1, "option beta2 must be in [0, 1), got ", beta2);
  double smallest = std::numeric_limits<double>::infinity();
  double largest = 0;
  for (const auto& [name, tensor] : preconditioner) {
    if (tensor.numel() == 0) continue;
    smallest = std::min(smallest, tensor.min().item<double>());
    largest = std::max(largest, tensor.max().item<double>());
  }
  TORCH_CHECK_VALUE(smallest > 0 && std::isfinite(largest) && largest > 0,
                    "step_validity: the preconditioner must be positive");
  StepValidity result;
  result.kappa = largest / smallest;
  result.tau = 1 / (1 - beta2);
  result.ratio = lr * result.kappa / result.tau;
  return result;
}

}  // namespace ddc
