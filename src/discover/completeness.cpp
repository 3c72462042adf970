#include "ddc/discover/completeness.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "ddc/discover/structural_kernel.h"
#include "ddc/gauge/action.h"
#include "discover/loss_jacobian.h"

namespace ddc {
namespace {

/// How far a tangent of length one may stick out of the kernel. Half of what the kernel's cut leaves room
/// for is far more than rounding, and far less than what a wrong exponent does.
constexpr double in_kernel = 1e-6;
/// Singular values of stacked tangents (each of length one) below this are zero.
constexpr double independent = 1e-8;

/// Orthonormal columns that span the rows.
at::Tensor span_of(const at::Tensor& rows) {
  if (rows.size(0) == 0) return at::zeros({rows.size(1), 0}, at::kDouble);
  const auto [u, sigma, v] = at::linalg_svd(rows, /*full_matrices=*/false);
  const auto rank = (sigma > std::max(sigma[0].item<double>(), 1.0) * independent).sum();
  return v.narrow(0, 0, rank.item<int64_t>()).t();
}

at::Tensor unit_rows(const at::Tensor& rows) {
  return rows / rows.norm(2, {1}, /*keepdim=*/true).clamp_min(1e-300);
}

/// The tangents of all orbits, as far as they leave the other parameters alone.
struct Tangents {
  /// [tangents, trainable parameters], each of length one.
  at::Tensor rows;
  /// By row, the gauge that it is (mostly) of.
  std::vector<std::string> gauge;
};

Tangents tangents_of(const std::vector<Gauge>& gauges, const Parameters& params,
                     const Trainable& trainable) {
  std::vector<std::string> owners;
  std::vector<at::Tensor> parts{at::zeros({0, 0}, at::kDouble)};
  std::vector<at::Tensor> moving{at::zeros({0, trainable.size()}, at::kDouble)};
  std::vector<at::Tensor> frozen;
  for (const auto& gauge : gauges) {
    const auto tangents = orbit_tangents(gauge, params).cpu();
    auto rows = at::zeros({tangents.size(0), trainable.size()}, at::kDouble);
    std::vector<at::Tensor> rest{at::zeros({tangents.size(0), 0}, at::kDouble)};
    int64_t from = 0;
    for (const auto& [name, tensor] : params) {
      const auto columns = tangents.narrow(1, from, tensor.numel());
      from += tensor.numel();
      if (const auto to = trainable.column(name)) {
        rows.narrow(1, *to, tensor.numel()) += columns;
      } else {
        rest.push_back(columns);
      }
    }
    moving.push_back(rows);
    frozen.push_back(at::cat(rest, 1));
    owners.insert(owners.end(), tangents.size(0), gauge.name);
  }
  Tangents result{at::cat(moving), owners};
  if (owners.empty()) return result;
  const auto held = at::cat(frozen);
  if (held.size(1) > 0 && held.any().item<bool>()) {
    // Those combinations of tangents that do not move what is frozen.
    const auto [u, sigma, v] = at::linalg_svd(held, /*full_matrices=*/true);
    const auto rank = (sigma > sigma[0] * independent).sum().item<int64_t>();
    const auto combinations = u.narrow(1, rank, u.size(1) - rank).t();
    result.rows = combinations.matmul(result.rows);
    result.gauge.clear();
    for (int64_t i = 0; i < combinations.size(0); ++i) {
      result.gauge.push_back(owners[combinations[i].abs().argmax().item<int64_t>()]);
    }
  }
  result.rows = unit_rows(result.rows);
  return result;
}

void check_in_kernel(const Tangents& tangents, const StructuralKernel& kernel) {
  if (tangents.gauge.empty()) return;
  const auto outside = tangents.rows - tangents.rows.matmul(kernel.basis).matmul(kernel.basis.t());
  const auto distances = outside.norm(2, {1});
  const auto worst = distances.argmax().item<int64_t>();
  const double distance = distances[worst].item<double>();
  TORCH_CHECK(distance <= in_kernel, "completeness: gauge '", tangents.gauge[worst],
              "' moves what the loss sees: a tangent of length 1 is ", distance,
              " away from the directions that no batch notices (at most ", in_kernel,
              "); gate(gauge, ...) tells more");
}

}  // namespace

Completeness completeness(const std::vector<Gauge>& gauges, const Parameters& params,
                          const Evaluate& evaluate, const CompletenessOptions& options) {
  const Trainable trainable(params);
  const auto tangents = tangents_of(gauges, params, trainable);
  const auto kernel = structural_kernel(params, evaluate, {.seed = options.seed});
  const at::NoGradGuard no_grad;
  check_in_kernel(tangents, kernel);

  Completeness result;
  result.method = "exact";
  result.parameters = kernel.parameters;
  result.kernel = static_cast<double>(kernel.dimension);
  result.gap = kernel.gap;
  result.explained = span_of(tangents.rows).size(1);
  // Dead parameters are axes. Their span with the tangents is that of the axes and of what the tangents
  // have beside them.
  const auto dead = kernel.column_norms.eq(0);
  const auto beside = span_of(tangents.rows * dead.logical_not());
  result.dead = dead.sum().item<int64_t>() + beside.size(1) - result.explained;
  result.unexplained = result.kernel - static_cast<double>(result.explained + result.dead);

  auto rest = kernel.basis * dead.logical_not().unsqueeze(1);
  rest = rest - beside.matmul(beside.t().matmul(rest));
  const auto shares = rest.square().sum(1);
  int64_t column = 0;
  for (const auto& [name, tensor] : trainable.table()) {
    const double share = shares.narrow(0, column, tensor.numel()).sum().item<double>();
    column += tensor.numel();
    if (share > 1e-9) result.per_tensor.push_back({name, share});
  }
  std::stable_sort(result.per_tensor.begin(), result.per_tensor.end(),
                   [](const auto& a, const auto& b) { return a.dimensions > b.dimensions; });
  return result;
}

}  // namespace ddc
