#include "geometry/kernel_probe.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace ddc {
namespace {

/// Rows per parameter that the batches must have between them, and how many there must be at least; and
/// how many it takes to tell a parameter that is dead.
constexpr double rows_per_parameter = 1.5;
constexpr int64_t least_batches = 4;
constexpr int64_t sampled_batches = 64;
/// Positions that a small batch counts for: its time is not in multiplications, but in reading parameters.
constexpr double least_positions = 32;

double product_of(const at::Tensor& a, const at::Tensor& b) { return at::dot(a, b).item<double>(); }

Visible seen_of(const Evaluation& evaluation, int64_t parameters, uint64_t batch) {
  const auto seen = loss_by_outputs(evaluation, batch);
  TORCH_CHECK(seen.defined(), "completeness: the estimate for more than exact_up_to parameters (",
              parameters, " here) needs `outputs` that the loss is computed from; batch ", batch,
              " has none");
  return Visible(seen);
}

/// What the iteration multiplies with, rather than divides by: zero where nothing is seen.
at::Tensor units_of(const at::Tensor& scale) {
  return at::where(scale > 0, scale.reciprocal(), 0.0);
}

}  // namespace

KernelPart kernel_part(const LinearOperator& matrix, const at::Tensor& start, int64_t iterations,
                       double tolerance) {
  KernelPart result{start.clone()};
  auto& rest = result.vector;
  at::Tensor direction;
  double square = 0;
  double first = 0;
  for (; result.iterations < iterations; ++result.iterations) {
    auto image = matrix.product(rest);
    const double next = product_of(rest, image);
    if (result.iterations == 0) first = next;
    result.converged = next <= tolerance * tolerance * first;
    if (result.converged) break;
    direction = direction.defined() ? image.add_(direction, next / square) : image;
    square = next;
    rest.sub_(direction, square / product_of(direction, direction));
  }
  return result;
}

KernelProbe::KernelProbe(const Trainable& trainable, const Evaluate& evaluate,
                         const at::Generator& generator)
    : trainable_(trainable),
      evaluate_(evaluate),
      scale_(at::zeros({trainable.size()}, at::kDouble)) {
  const at::AutoGradMode enable_grad(true);
  double rows = 0;
  double positions = 0;
  for (int64_t i = 0; i < sampled_batches; ++i) {
    const auto batch = static_cast<uint64_t>(i);
    const auto evaluation = evaluate(batch);
    const auto visible = seen_of(evaluation, trainable.size(), batch);
    const auto& mask = visible.mask;
    const auto drawn = at::randn(mask.sizes(), generator, at::kDouble).to(mask.options());
    const auto row = trainable.derivative(evaluation.outputs, visible.project(drawn), batch);
    scale_.addcmul_(row, row);
    if (samples_.size() < 4) samples_.push_back(row);
    const double count = mask.sum().item<double>();
    TORCH_CHECK(count > 0, "completeness: the loss of batch ", batch, " does not see its outputs");
    const double classes = mask.dim() > 0 ? static_cast<double>(mask.size(-1)) : 1;
    rows += visible.sums_to_zero ? count * (1 - 1 / classes) : count;
    positions += static_cast<double>(mask.numel()) / classes;
  }
  scale_.sqrt_();
  const double wanted = rows_per_parameter * static_cast<double>(trainable.size());
  batches_ = std::max(least_batches, static_cast<int64_t>(wanted * sampled_batches / rows) + 1);
  work_ = static_cast<double>(batches_) * static_cast<double>(trainable.size()) *
          std::max(positions / sampled_batches, least_positions);
}

LinearOperator KernelProbe::as_operator() const {
  return LinearOperator::symmetric(trainable_.size(),
                                   [this](const at::Tensor& vector) { return product(vector); });
}

at::Tensor KernelProbe::product(const at::Tensor& direction) const {
  const at::AutoGradMode enable_grad(true);
  const auto units = units_of(scale_);
  const auto moved = direction * units;
  auto sum = at::zeros_like(moved);
  for (int64_t i = 0; i < batches_; ++i) {
    const auto batch = static_cast<uint64_t>(i);
    const auto [evaluation, derivative] = trainable_.forward(evaluate_, batch, moved);
    if (!derivative.defined()) continue;
    const auto visible = seen_of(evaluation, trainable_.size(), batch);
    sum += trainable_.derivative(evaluation.outputs, visible.project(derivative), batch);
  }
  return sum.mul_(units);
}

}  // namespace ddc
