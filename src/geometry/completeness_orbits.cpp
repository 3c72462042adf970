#include "geometry/completeness_orbits.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "ddc/gauge/action.h"
#include "geometry/kernel_probe.h"

namespace ddc {
namespace {

/// Settings of least squares with the tangents: what is left of the gradient, and when to give up.
constexpr double tolerance = 1e-6;
constexpr int64_t most_iterations = 500;
/// What is frozen must hold still to rounding: a charge that it takes part in is no charge without it.
constexpr double frozen_tolerance = 1e-13;
/// Random vectors that measure the lengths of tangents.
constexpr int64_t length_probes = 8;
/// Overlaps between orbits that are counted one by one.
constexpr int64_t most_overlaps = 16;
/// The square of a random vector's part in a kernel of one dimension is about one.
constexpr double nothing = 1e-6;

at::Tensor random_signs(int64_t size, const at::Generator& generator) {
  return at::randint(0, 2, {size}, generator, at::kDouble).mul_(2).sub_(1);
}

/// The dimension of the kernel of `matrix` in the space that `draw` draws from, with variance one in
/// every direction: as many vectors as have independent parts in it. Of a large one, an estimate.
int64_t kernel_dimension(const LinearOperator& matrix, const std::function<at::Tensor()>& draw) {
  std::vector<at::Tensor> basis;
  double squares = 0;
  for (int64_t i = 0; i < most_overlaps; ++i) {
    auto part = kernel_part(matrix, draw(), most_iterations, tolerance).vector;
    squares += part.square().sum().item<double>();
    for (int64_t again = 0; again < 2; ++again) {
      for (const auto& known : basis) part = part - known * at::dot(known, part);
    }
    const auto length = part.norm();
    if (length.item<double>() < std::sqrt(nothing)) return std::ssize(basis);
    basis.push_back(part / length);
  }
  return std::llround(squares / static_cast<double>(most_overlaps));
}

}  // namespace

Orbits::Orbits(const std::vector<Gauge>& gauges, const Parameters& params,
               const Trainable& trainable, const at::Tensor& scale, const at::Generator& generator)
    : trainable_size_(trainable.size()), all_size_(trainable.size()) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : params) {
    params_.add(name, tensor.detach().to(at::kCPU, at::kDouble));
    if (const auto column = trainable.column(name)) column_[name] = *column;
  }
  for (const auto& gauge : gauges) {
    const auto zero = identity_element(gauge, params_).zero_();
    parts_.push_back({gauge, algebra_size_, zero.sizes().vec()});
    algebra_size_ += zero.numel();
    for (const auto& moved : orbit_tangent(gauge, zero, params_)) {
      if (column_.emplace(moved.first, all_size_).second) all_size_ += moved.second.numel();
    }
  }
  scale_ = at::cat({scale, at::ones({all_size_ - trainable_size_}, at::kDouble)});
  units_ = at::ones({algebra_size_}, at::kDouble);
  units_ = with_unit_tangents(generator);
}

at::Tensor Orbits::with_unit_tangents(const at::Generator& generator) const {
  // The product of random signs with a tangent has the square of its length as its expected square.
  auto squares = at::zeros({algebra_size_}, at::kDouble);
  for (int64_t i = 0; i < length_probes; ++i) {
    squares += charges_of_all(random_signs(all_size_, generator)).square();
  }
  for (const auto& [gauge, from, shape] : parts_) {
    if (gauge.action != Action::rotation) continue;
    auto part = squares.narrow(0, from, c10::multiply_integers(shape)).view(shape);
    part.copy_(part.mean({1, 2}, /*keepdim=*/true).expand(shape).clone());
  }
  const auto lengths = (squares / length_probes).sqrt();
  return at::where(lengths > 0, lengths.reciprocal(), 0.0);
}

at::Tensor Orbits::in_algebra(const at::Tensor& elements) const {
  auto result = elements.clone();
  for (const auto& [gauge, from, shape] : parts_) {
    if (gauge.action != Action::rotation) continue;
    auto part = result.narrow(0, from, c10::multiply_integers(shape)).view(shape);
    part.copy_((part - part.transpose(1, 2)) / 2);
    if (!gauge.fixes_ones) continue;
    part.sub_(part.mean(1, /*keepdim=*/true));
    part.sub_(part.mean(2, /*keepdim=*/true));
  }
  return result;
}

at::Tensor Orbits::tangent_of_all(const at::Tensor& elements) const {
  const auto scaled = elements * units_;
  auto result = at::zeros({all_size_}, at::kDouble);
  for (const auto& [gauge, from, shape] : parts_) {
    const auto element = scaled.narrow(0, from, c10::multiply_integers(shape)).view(shape);
    for (const auto& [name, moved] : orbit_tangent(gauge, element, params_)) {
      result.narrow(0, column_.at(name), moved.numel()) += moved.flatten();
    }
  }
  return result.mul_(scale_);
}

at::Tensor Orbits::charges_of_all(const at::Tensor& vector) const {
  const auto scaled = vector * scale_;
  Parameters table;
  for (const auto& [name, tensor] : params_) {
    const auto column = column_.find(name);
    table.add(name, column == column_.end()
                        ? at::zeros({1}, at::kDouble).expand(tensor.sizes())
                        : scaled.narrow(0, column->second, tensor.numel()).view(tensor.sizes()));
  }
  auto result = at::zeros({algebra_size_}, at::kDouble);
  for (const auto& [gauge, from, shape] : parts_) {
    const auto charge = noether_charge(gauge, params_, table).value.flatten();
    // An antisymmetric charge has every derivative twice.
    const double weight = gauge.action == Action::rotation ? 0.5 : 1;
    result.narrow(0, from, charge.numel()).add_(charge, weight);
  }
  return result.mul_(units_);
}

at::Tensor Orbits::tangent(const at::Tensor& elements) const {
  return tangent_of_all(elements).narrow(0, 0, trainable_size_);
}

at::Tensor Orbits::moves_frozen(const at::Tensor& elements) const {
  auto moved = tangent_of_all(elements);
  moved.narrow(0, 0, trainable_size_).zero_();
  return charges_of_all(moved);
}

at::Tensor Orbits::holding_still(const at::Tensor& elements) const {
  if (all_size_ == trainable_size_) return elements;
  const auto frozen = LinearOperator::symmetric(
      algebra_size_, [&](const at::Tensor& each) { return moves_frozen(each); });
  return kernel_part(frozen, elements, most_iterations, frozen_tolerance).vector;
}

at::Tensor Orbits::charges(const at::Tensor& vector) const {
  if (all_size_ == trainable_size_) return charges_of_all(vector);
  const auto frozen = at::zeros({all_size_ - trainable_size_}, at::kDouble);
  return holding_still(charges_of_all(at::cat({vector, frozen})));
}

const std::string& Orbits::gauge_of(int64_t entry) const {
  size_t k = parts_.size() - 1;
  while (parts_[k].from > entry) --k;
  return parts_[k].gauge.name;
}

at::Tensor Orbits::without(const at::Tensor& vector) const {
  const at::NoGradGuard no_grad;
  const auto along = [&](const at::Tensor& each) { return tangent(charges(each)); };
  // An iteration on a part that is rounding would divide rounding by rounding.
  if ((along(vector).norm() <= 1e-13 * vector.norm()).item<bool>()) return vector.clone();
  return kernel_part(LinearOperator::symmetric(trainable_size_, along), vector, most_iterations,
                     tolerance)
      .vector;
}

at::Tensor Orbits::random_tangent(const at::Generator& generator) const {
  const at::NoGradGuard no_grad;
  const auto drawn = in_algebra(at::randn({algebra_size_}, generator, at::kDouble));
  return tangent(holding_still(drawn));
}

int64_t Orbits::dimension(const at::Generator& generator) const {
  const at::NoGradGuard no_grad;
  const auto draw = [&] { return in_algebra(at::randn({algebra_size_}, generator, at::kDouble)); };
  int64_t result = 0;
  auto moving = at::zeros({algebra_size_}, at::kDouble);
  if (all_size_ > trainable_size_) {
    auto frozen = at::randn({all_size_}, generator, at::kDouble);
    frozen.narrow(0, 0, trainable_size_).zero_();
    moving = charges_of_all(frozen).ne(0).to(at::kDouble);
  }
  for (const auto& [gauge, from, shape] : parts_) {
    const auto part = moving.narrow(0, from, c10::multiply_integers(shape)).view(shape);
    if (gauge.action == Action::rotation) {
      part.copy_(part.amax({1, 2}, /*keepdim=*/true).expand(shape).clone());
      const auto still = part.select(1, 0).select(1, 0).eq(0).sum().item<int64_t>();
      result += still * (ddc::dimension(gauge, params_) / gauge.blocks());
    } else {
      result += part.eq(0).sum().item<int64_t>();
    }
  }
  if (moving.any().item<bool>()) {
    const auto frozen = LinearOperator::symmetric(
        algebra_size_, [&](const at::Tensor& each) { return moves_frozen(each) * moving; });
    result += kernel_dimension(frozen, [&] { return draw() * moving; });
  }
  const auto lengths = LinearOperator::symmetric(
      algebra_size_, [&](const at::Tensor& each) { return charges(tangent(each)); });
  return result - kernel_dimension(lengths, [&] { return holding_still(draw()); });
}

}  // namespace ddc
