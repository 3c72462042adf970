#include "ddc/measure/leakage.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "gauge/leg_maps.h"

namespace ddc {
namespace {

/// Sums of eigenvalues below this share of the largest belong to directions that are not there.
constexpr double kRank = 1e-12;

void check(const Gauge& gauge, const Parameters& params) {
  validate(gauge, params);
  TORCH_CHECK(gauge.action == Action::scale || gauge.action == Action::rotation, "gauge '",
              gauge.name, "': leakage is known for scales and rotations, this is a ",
              to_string(gauge.action));
  for (const auto& leg : gauge.legs) {
    TORCH_CHECK(leg.through.empty(), "gauge '", gauge.name, "': leg '", leg.tensor,
                "' is seen through '", leg.through.gain,
                "'; leakage is known for weights as they are stored");
  }
}

at::Tensor value_of(const Parameters& table, const Leg& leg, const Parameters& params) {
  const auto& tensor = table[leg.tensor].tensor;
  TORCH_CHECK(tensor.sizes() == params[leg.tensor].tensor.sizes(), "'", leg.tensor, "' has shape ",
              params[leg.tensor].tensor.sizes(), ", got ", tensor.sizes());
  return tensor.detach().to(at::kDouble);
}

/// What the group acts on.
at::Tensor weight_of(const Parameters& params, const Leg& leg) {
  return value_of(params, leg, params) + leg.offset;
}

at::Tensor transposed(const at::Tensor& matrices) { return matrices.transpose(-1, -2); }

at::Tensor skew(const at::Tensor& matrices) { return (matrices - transposed(matrices)) / 2; }

Leakage scale_leakage(const Gauge& gauge, const Parameters& params,
                      const Parameters& preconditioner, const Parameters& momentum) {
  const auto zero = at::zeros({gauge.channels}, at::kDouble);
  Leakage result{zero, zero};
  auto square = zero;
  for (const auto& leg : gauge.legs) {
    const auto w = weight_of(params, leg);
    const auto p = value_of(preconditioner, leg, params);
    const auto product = value_of(momentum, leg, params) * w * leg.exponent;
    const auto map = map_of(gauge, leg, w);
    const auto sum = [&](const at::Tensor& terms) { return map.scatter_all(terms).to(at::kCPU); };
    const auto mean = sum(p) / sum(at::ones_like(p)) * sum(product);
    result.mean = result.mean + mean;
    result.covariance = result.covariance + sum(p * product) - mean;
    square = square + sum((w * leg.exponent).square());
  }
  const auto norm = square.sqrt();
  return {result.mean / norm, result.covariance / norm};
}

Leakage rotation_leakage(const Gauge& gauge, const Parameters& params,
                         const Parameters& preconditioner, const Parameters& momentum) {
  const auto zero = at::zeros({gauge.blocks(), gauge.block, gauge.block}, at::kDouble);
  Leakage result{zero, zero};
  for (const auto& leg : gauge.legs) {
    const auto map = block_map_of(gauge, leg, params[leg.tensor].tensor);
    const auto w = map.take(weight_of(params, leg));
    const auto m = map.take(value_of(momentum, leg, params));
    const auto p = map.take(value_of(preconditioner, leg, params));
    const auto mean = p.mean({1, 2}, /*keepdim=*/true);
    const auto part = [&](const at::Tensor& factor) {
      return skew((factor * m).matmul(transposed(w))).to(at::kCPU);
    };
    result.mean = result.mean + part(mean);
    result.covariance = result.covariance + part(p - mean);
  }
  return result;
}

/// The step per unit of lr.
at::Tensor velocity_of(const Parameters& params, const Parameters& direction, const Leg& leg,
                       const StepSize& step) {
  return -(value_of(direction, leg, params) + step.weight_decay * value_of(params, leg, params));
}

/// value * (1 + first * lr + second * lr^2 + ...), per channel.
struct Series {
  at::Tensor value;
  at::Tensor first;
  at::Tensor second;

  Series pow(double k) const {
    return {value.pow(k), k * first, k * second + k * (k - 1) / 2 * first.square()};
  }
  Series plus(const Series& other) const {
    const auto sum = value + other.value;
    return {sum, (value * first + other.value * other.first) / sum,
            (value * second + other.value * other.second) / sum};
  }
};

/// The joint square of the legs on one side; those with a larger exponent enter by the root that makes
/// all of them move alike (see gauge.h). Undefined if there are none.
Series side_of(const Gauge& gauge, bool positive, const Parameters& params,
               const Parameters& direction, const StepSize& step) {
  std::map<double, Series> by_exponent;
  for (const auto& leg : gauge.legs) {
    if ((leg.exponent > 0) != positive) continue;
    const auto w = weight_of(params, leg);
    const auto v = velocity_of(params, direction, leg, step);
    const auto map = map_of(gauge, leg, w);
    const auto sum = [&](const at::Tensor& terms) { return map.scatter_all(terms).to(at::kCPU); };
    // |w + lr v|^2, of which nothing is left out.
    const auto square = sum(w.square());
    const Series part{square, 2 * sum(w * v) / square, sum(v.square()) / square};
    auto& slot = by_exponent[std::abs(leg.exponent)];
    slot = slot.value.defined() ? slot.plus(part) : part;
  }
  Series result;
  for (const auto& [exponent, series] : by_exponent) {
    const auto part = series.pow(by_exponent.begin()->first / exponent);
    result = result.value.defined() ? result.plus(part) : part;
  }
  return result;
}

PredictedDrift scale_drift(const Gauge& gauge, const Parameters& params,
                           const Parameters& direction, const StepSize& step) {
  const auto zero = at::zeros({gauge.channels}, at::kDouble);
  PredictedDrift drift{zero, zero};
  for (const bool positive : {true, false}) {
    const auto side = side_of(gauge, positive, params, direction, step);
    if (!side.value.defined()) continue;
    // Half of log(1 + x) = x - x^2 / 2.
    const double sign = positive ? 0.5 : -0.5;
    const auto first = side.first * step.lr;
    const auto second = (side.second - side.first.square() / 2) * (step.lr * step.lr);
    drift.first_order = drift.first_order + sign * first;
    drift.second_order = drift.second_order + sign * (first + second);
  }
  return drift;
}

/// The skew A with M A + A M = K - K^T, in the eigenbasis of M.
at::Tensor lyapunov(const at::Tensor& gram, const at::Tensor& matrices) {
  const auto [values, vectors] = at::linalg_eigh(gram);
  auto sums = values.unsqueeze(-1) + values.unsqueeze(-2);
  sums = at::where(sums > sums.amax({1, 2}, true) * kRank, sums,
                   std::numeric_limits<double>::infinity());
  const auto inside = transposed(vectors).matmul(2 * skew(matrices)).matmul(vectors) / sums;
  return vectors.matmul(inside).matmul(transposed(vectors));
}

PredictedDrift rotation_drift(const Gauge& gauge, const Parameters& params,
                              const Parameters& direction, const StepSize& step) {
  auto gram = at::zeros({gauge.blocks(), gauge.block, gauge.block}, at::kDouble);
  auto change = gram;  // of W_after W^T
  for (const auto& leg : gauge.legs) {
    const auto map = block_map_of(gauge, leg, params[leg.tensor].tensor);
    const auto w = map.take(weight_of(params, leg));
    const auto v = map.take(velocity_of(params, direction, leg, step)) * step.lr;
    gram = gram + w.matmul(transposed(w)).to(at::kCPU);
    change = change + v.matmul(transposed(w)).to(at::kCPU);
  }
  // The polar factor exp(A) of M + E, with A = A1 + A2 + ... and a symmetric factor H = M + H1 + H2:
  // A1 M + H1 = E and A2 M + H2 = -A1^2 M / 2 - A1 H1, of which the skew parts are Lyapunov equations.
  const auto first = lyapunov(gram, change);
  const auto second = lyapunov(gram, first.matmul(first).matmul(gram) / 2 - first.matmul(change));
  return {first, first + second};
}

}  // namespace

void AdamWMoments::update(const Parameters& gradients) {
  const at::NoGradGuard no_grad;
  auto settings = settings_;
  settings.lr = 1;
  for (const auto& [name, gradient] : gradients) {
    const TensorView view{name, gradient, {}, {}};
    auto& state = states_[name];
    if (state.steps == 0) state.moments = AdamRule::init(view, settings);
    state.direction =
        -AdamRule::step(gradient.detach(), ++state.steps, view, state.moments, settings);
  }
}

Parameters AdamWMoments::direction() const {
  Parameters result;
  for (const auto& [name, state] : states_) result.add(name, state.direction);
  return result;
}

Parameters AdamWMoments::preconditioner() const {
  Parameters result;
  for (const auto& [name, state] : states_) {
    const double correction = 1 - std::pow(settings_.beta2, static_cast<double>(state.steps));
    const auto root = state.moments.exp_avg_sq.sqrt() / std::sqrt(correction);
    result.add(name, (root + settings_.eps).reciprocal());
  }
  return result;
}

Parameters AdamWMoments::momentum() const {
  Parameters result;
  for (const auto& [name, state] : states_) {
    const double correction = 1 - std::pow(settings_.beta1, static_cast<double>(state.steps));
    result.add(name, state.moments.exp_avg / correction);
  }
  return result;
}

at::Tensor Leakage::total() const { return mean + covariance; }

Leakage leakage(const Gauge& gauge, const Parameters& params, const Parameters& preconditioner,
                const Parameters& momentum) {
  check(gauge, params);
  const at::NoGradGuard no_grad;
  return gauge.action == Action::scale ? scale_leakage(gauge, params, preconditioner, momentum)
                                       : rotation_leakage(gauge, params, preconditioner, momentum);
}

PredictedDrift predicted_drift(const Gauge& gauge, const Parameters& params,
                               const Parameters& direction, const StepSize& step) {
  check(gauge, params);
  TORCH_CHECK(std::isfinite(step.lr) && std::isfinite(step.weight_decay),
              "predicted_drift: lr and weight_decay must be finite, got ", step.lr, " and ",
              step.weight_decay);
  const at::NoGradGuard no_grad;
  return gauge.action == Action::scale ? scale_drift(gauge, params, direction, step)
                                       : rotation_drift(gauge, params, direction, step);
}

}  // namespace ddc
