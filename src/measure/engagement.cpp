#include "ddc/measure/engagement.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/adamw.h>

#include <cmath>

#include "coordinates/coordinate_system.h"
#include "ddc/optim/adam.h"
#include "discover/restore.h"
#include "geometry/loss_jacobian.h"
#include "linalg/rotation.h"

namespace ddc {
namespace {

/// The same memory with gradients of its own, each tied parameter once.
Parameters aliases_of(const Parameters& params, const Trainable& trainable) {
  Parameters aliases;
  for (const auto& [name, tensor] : params) {
    const bool tied = trainable.column(name).has_value() && !trainable.table().contains(name);
    if (!tied) aliases.add(name, tensor.detach());
  }
  return aliases;
}

/// The sum of squares of a gauge's coordinates, and how many of them mean something.
struct Movement {
  double squares = 0;
  double count = 0;

  double root_mean_square() const { return count > 0 ? std::sqrt(squares / count) : 0; }
};

/// Follows the coordinates of all gauges in a coordinate system.
class Tracker {
 public:
  explicit Tracker(const CoordinateSystem& system) : system_(system) {
    for (size_t k = 0; k < gauges().size(); ++k) {
      start_.push_back(system_.gauge_coordinate(k).clone());
      const auto& gauge = gauges()[k].gauge;
      const int64_t size = gauge.block - (gauge.fixes_ones ? 1 : 0);
      turned_.push_back(at::eye(size, at::kDouble).expand({gauge.blocks(), size, size}).clone());
    }
  }

  /// Gradients must be there: which biases take up what is exchanged depends on them.
  void before_step() { before_ = parts(); }
  void after_step() {
    const auto after = parts();
    for (size_t k = 0; k < after.size(); ++k) {
      if (!after[k].defined() || !before_[k].defined()) continue;
      turned_[k] = best_rotation(before_[k], after[k]).matmul(turned_[k]);
    }
  }

  std::vector<Movement> movements() const {
    std::vector<Movement> result(gauges().size());
    for (size_t k = 0; k < gauges().size(); ++k) {
      auto& [squares, count] = result[k];
      const auto moved = system_.gauge_coordinate(k) - start_[k];
      const auto known = moved.isfinite();
      squares = at::where(known, moved, 0).square().sum().item<double>();
      count = known.sum().item<double>();
      if (!gauges()[k].gauge.mixes()) continue;
      const int64_t size = turned_[k].size(-1);
      // log S has as many entries as the generators of linear maps; a rotation has its planes.
      if (!gauges()[k].is_linear()) {
        count = static_cast<double>(turned_[k].size(0) * size * (size - 1));
      }
      for (int64_t b = 0; b < turned_[k].size(0); ++b) {
        squares += std::pow(rotation_angle(turned_[k][b]), 2);
      }
    }
    return result;
  }

 private:
  const std::vector<GaugePlan>& gauges() const { return system_.plan().gauges; }

  /// What each rotation or linear gauge turns, in the other gauges' units: [blocks, block, entries].
  /// Undefined for other gauges, and for those that do not act.
  std::vector<at::Tensor> parts() const {
    const at::NoGradGuard no_grad;
    const auto& plan = system_.plan();
    std::vector<bool> has_gradient;
    for (const auto& tensor : plan.tensors) {
      has_gradient.push_back(tensor.tensor.grad().defined());
    }
    std::vector<at::Tensor> result(gauges().size());
    for (const auto& component : plan.components) {
      bool mixes = false;
      for (const size_t k : component.gauges) mixes = mixes || gauges()[k].gauge.mixes();
      if (!mixes) continue;
      CoordinateMaps maps(ComponentView(plan, component, system_.gauge_states(), has_gradient));
      maps.read_();
      for (const size_t k : component.gauges) {
        if (gauges()[k].gauge.mixes() && maps.view.active[k]) result[k] = part(k, maps);
      }
    }
    return result;
  }

  at::Tensor part(size_t k, const CoordinateMaps& maps) const {
    const auto& gauge = gauges()[k];
    std::vector<at::Tensor> plus;
    std::vector<at::Tensor> minus;
    for (const auto& leg : gauge.legs) {
      auto x = maps.coordinates(leg.tensor);
      multiply_(leg, leg_matrix(leg, system_.gauge_states()[k].frame), x);
      const auto rows = leg.blocks->take(x).cpu();
      (gauge.is_linear() && leg.exponent < 0 ? minus : plus).push_back(rows);
    }
    if (!minus.empty()) return balanced_sides(at::cat(plus, -1), at::cat(minus, -1));
    const auto all = at::cat(plus, -1);
    if (!gauge.gauge.fixes_ones) return all;
    // A basis of what is orthogonal to the ones.
    const auto ones = at::ones({gauge.gauge.block, 1}, at::kDouble);
    const auto basis = std::get<0>(at::linalg_qr(ones, "complete"));
    return basis.narrow(1, 1, gauge.gauge.block - 1).t().matmul(all);
  }

  const CoordinateSystem& system_;
  std::vector<at::Tensor> start_;
  std::vector<at::Tensor> before_;
  std::vector<at::Tensor> turned_;
};

}  // namespace

std::vector<Engagement> engagement(const std::vector<Gauge>& gauges, const Parameters& params,
                                   const Evaluate& evaluate, const EngagementOptions& options) {
  TORCH_CHECK(options.steps > 0, "engagement: steps must be at least 1, is ", options.steps);
  std::vector<Engagement> result(gauges.size());
  if (gauges.empty()) return result;
  const Trainable trainable(params);
  const auto aliases = aliases_of(params, trainable);
  const Restore restore(params);

  const auto train = [&](torch::optim::Optimizer& optimizer, const CoordinateSystem& system) {
    Tracker tracker(system);
    for (int64_t step = 0; step < options.steps; ++step) {
      const uint64_t batch = options.first_batch + static_cast<uint64_t>(step);
      {
        const at::AutoGradMode enable_grad(true);
        const auto loss = evaluate(batch).loss;
        const auto gradients = trainable.derivatives(loss, {}, batch);
        size_t k = 0;
        for (const auto& [name, tensor] : trainable.table()) {
          aliases[name].tensor.mutable_grad() = gradients[k++];
        }
      }
      tracker.before_step();
      optimizer.step();
      tracker.after_step();
    }
    auto movements = tracker.movements();
    restore.now();
    return movements;
  };

  std::vector<GroupedParameter> grouped;
  for (const auto& alias : aliases) grouped.push_back({alias, 0});
  const CoordinateSystem observer(grouped, gauges);
  torch::optim::AdamW plain(
      aliases.tensors(), torch::optim::AdamWOptions(options.lr).weight_decay(options.weight_decay));
  const auto by_plain = train(plain, observer);
  DDCAdam lifted(aliases, gauges, {.lr = options.lr, .weight_decay = options.weight_decay},
                 Treatment{.placement = Place::in_place});
  const auto by_lifted = train(lifted, lifted.coordinate_system());

  const double rounding =
      std::sqrt(trainable.precision()) * options.lr * static_cast<double>(options.steps);
  for (size_t k = 0; k < gauges.size(); ++k) {
    result[k].plain = by_plain[k].root_mean_square();
    result[k].lifted = by_lifted[k].root_mean_square();
    result[k].engaged = result[k].plain > rounding;
  }
  return result;
}

}  // namespace ddc
