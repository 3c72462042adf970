#include "geometry/tangents.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "ddc/gauge/action.h"

namespace ddc {
namespace {

at::Tensor unit_rows(const at::Tensor& rows) {
  return rows / rows.norm(2, {1}, /*keepdim=*/true).clamp_min(1e-300);
}

double norm_of(const at::Tensor& vector) { return vector.norm().item<double>(); }

/// How much of a direction is seen, as a share of the most that could be.
class Sight {
 public:
  Sight(const Curvature& curvature, const at::Generator& generator) : curvature_(curvature) {
    // Where the gradient is not zero these see tangents of a symmetry, too: H t = -(derivative of t)^T gradient.
    by_loss_ = curvature.kind() == CurvatureKind::hessian ||
               (curvature.kind() == CurvatureKind::gauss_newton &&
                curvature.likelihood() == Likelihood::other);
    const auto drawn = at::randn({curvature.size()}, generator, at::kDouble);
    const auto image = times(drawn / drawn.norm());
    const double length = norm_of(image);
    largest_ = length > 0 ? norm_of(times(image / length)) : 0;
    if (by_loss_) gradients_ = curvature.gradients();
  }

  double of(const at::Tensor& direction) const {
    const double length = norm_of(direction);
    if (length == 0) return 0;
    const auto unit = direction / length;
    if (!by_loss_) return largest_ > 0 ? norm_of(times(unit)) / largest_ : 0;
    double seen = 0;
    for (const auto& gradient : gradients_) {
      // At a minimum gradients are rounding, of which curvature has the scale.
      const double scale = norm_of(gradient) + largest_;
      if (scale == 0) continue;
      seen = std::max(seen, std::abs(at::dot(gradient, unit).item<double>()) / scale);
    }
    return seen;
  }

  bool by_loss() const { return by_loss_; }

 private:
  at::Tensor times(const at::Tensor& vector) const {
    const auto device = curvature_.table().begin()->tensor.device();
    return curvature_.product(vector.to(device, curvature_.dtype())).to(at::kCPU, at::kDouble);
  }

  const Curvature& curvature_;
  bool by_loss_ = false;
  double largest_ = 0;
  std::vector<at::Tensor> gradients_;
};

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

void check_null(const Curvature& curvature, const RandomTangent& tangent,
                const std::vector<std::string>& names) {
  const at::NoGradGuard no_grad;
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(0);
  const Sight sight(curvature, generator);
  const double rounding = std::sqrt(Trainable(curvature.table()).precision());
  if (sight.of(tangent(std::nullopt, generator)) <= rounding) return;
  for (size_t k = 0; k < names.size(); ++k) {
    const double seen = sight.of(tangent(k, generator));
    TORCH_CHECK_VALUE(seen <= rounding, "'", names[k], "' is no symmetry of this loss: ",
                      sight.by_loss() ? "the derivative of the loss" : to_string(curvature.kind()),
                      " along a tangent of its orbit is ", seen,
                      " of what it can be, and must be rounding; is it that of another model, or "
                      "of another loss?");
  }
}

}  // namespace ddc
