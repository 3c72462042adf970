#include "geometry/tangents.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "ddc/gauge/action.h"

namespace ddc {
namespace {

at::Tensor unit_rows(const at::Tensor& rows) {
  return rows / rows.norm(2, {1}, /*keepdim=*/true).clamp_min(1e-300);
}

}  // namespace

at::Tensor span_of(const at::Tensor& rows) {
  if (rows.size(0) == 0) return at::zeros({rows.size(1), 0}, at::kDouble);
  // Far fewer rows than columns: the singular values are those of a small triangle.
  const auto [q, r] = at::linalg_qr(rows.t(), "reduced");
  const auto [u, sigma, v] = at::linalg_svd(r, /*full_matrices=*/false);
  const auto rank = (sigma > std::max(sigma[0].item<double>(), 1.0) * independent_tangents).sum();
  return q.matmul(u.narrow(1, 0, rank.item<int64_t>()));
}

Tangents tangents_of(const std::vector<Gauge>& gauges, const Parameters& params,
                     const Trainable& trainable) {
  std::vector<std::string> owners;
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
    // Those combinations of tangents that do not move what is frozen. (The triangle is small, however much is frozen.)
    const auto triangle = std::get<1>(at::linalg_qr(held.t(), "r"));
    const auto [u, sigma, v] = at::linalg_svd(triangle.t(), /*full_matrices=*/true);
    const auto rank = (sigma > sigma[0] * independent_tangents).sum().item<int64_t>();
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

}  // namespace ddc
