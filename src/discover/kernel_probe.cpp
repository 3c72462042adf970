#include "discover/kernel_probe.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/forward_grad.h>

namespace ddc {
namespace {

/// Rows per parameter that the batches must have between them, and how many there must be at least; and
/// how many it takes to tell a parameter that is dead.
constexpr double rows_per_parameter = 1.5;
constexpr size_t least_batches = 4;
constexpr int64_t sampled_batches = 64;

/// A level of forward differentiation. All derivatives of the level are gone with it.
class ForwardLevel {
 public:
  ForwardLevel() : index_(torch::autograd::ForwardADLevel::get_next_idx()) {}
  ForwardLevel(const ForwardLevel&) = delete;
  ForwardLevel& operator=(const ForwardLevel&) = delete;
  ~ForwardLevel() { torch::autograd::ForwardADLevel::release_idx(index_); }
  uint64_t index() const { return index_; }

 private:
  uint64_t index_;
};

double dot(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += (a[i].to(at::kDouble) * b[i].to(at::kDouble)).sum().item<double>();
  }
  return sum;
}

}  // namespace

KernelProbe::KernelProbe(const Trainable& trainable, const Evaluate& evaluate, uint64_t seed)
    : trainable_(trainable),
      evaluate_(evaluate),
      generator_(at::make_generator<at::CPUGeneratorImpl>(seed)),
      scale_(at::zeros({trainable.size()}, at::kDouble)) {
  const at::AutoGradMode enable_grad(true);
  double rows = 0;
  const double wanted = rows_per_parameter * static_cast<double>(trainable.size());
  std::vector<at::Tensor> samples;
  for (int64_t i = 0; i < sampled_batches || rows < wanted; ++i) {
    const auto batch = static_cast<uint64_t>(i);
    const auto evaluation = evaluate(batch);
    const auto seen = loss_by_outputs(evaluation, batch);
    TORCH_CHECK(seen.defined(), "completeness: the estimate for more than exact_up_to parameters (",
                trainable.size(), " here) needs `outputs` that the loss is computed from; batch ",
                batch, " has none");
    const Visible visible(seen);
    const auto drawn = at::randn(seen.sizes(), generator_, at::kDouble).to(seen.options());
    const auto row = trainable.derivative(evaluation.outputs, visible.project(drawn), batch);
    scale_ += row.square();
    if (samples.size() < 4) samples.push_back(row);
    if (rows >= wanted && visible_.size() >= least_batches) continue;
    const double count = visible.mask.sum().item<double>();
    TORCH_CHECK(count > 0, "completeness: the loss of batch ", batch, " does not see its outputs");
    rows += visible.sums_to_zero ? count * (1 - 1 / static_cast<double>(seen.size(-1))) : count;
    visible_.push_back(visible);
  }
  scale_ = scale_.sqrt();
  samples_ = at::stack(samples);
}

at::Tensor KernelProbe::seen_of(const at::Tensor& tangents) const {
  return (tangents.matmul(samples_.t()) / samples_.norm(2, {1})).abs().amax(1);
}

std::vector<at::Tensor> KernelProbe::forward(const at::Tensor& direction) const {
  const at::AutoGradMode enable_grad(true);
  const auto moved = at::where(scale_ > 0, direction / scale_, 0.0);
  std::vector<at::Tensor> result;
  for (size_t batch = 0; batch < visible_.size(); ++batch) {
    const ForwardLevel level;
    trainable_.set_tangent(moved, level.index());
    const auto outputs = evaluate_(batch).outputs;
    const auto& derivative = outputs._fw_grad(level.index());
    result.push_back(visible_[batch].project(derivative.defined() ? derivative.detach()
                                                                  : at::zeros_like(outputs)));
  }
  return result;
}

at::Tensor KernelProbe::backward(const std::vector<at::Tensor>& cotangents) const {
  const at::AutoGradMode enable_grad(true);
  auto sum = at::zeros({trainable_.size()}, at::kDouble);
  for (size_t batch = 0; batch < visible_.size(); ++batch) {
    sum += trainable_.derivative(evaluate_(batch).outputs, cotangents[batch], batch);
  }
  return at::where(scale_ > 0, sum / scale_, 0.0);
}

at::Tensor KernelProbe::unseen_part(const at::Tensor& known, int64_t iterations) {
  const auto orthogonal = [&](const at::Tensor& vector) {
    return vector - known.matmul(known.t().matmul(vector));
  };
  auto rest = orthogonal(at::randn({trainable_.size()}, generator_, at::kDouble) * scale_.ne(0));
  auto gradient = forward(rest);
  auto direction = gradient;
  double square = dot(gradient, gradient);
  const double first = square;
  for (int64_t i = 0; i < iterations && square > 1e-24 * first; ++i) {
    const auto row = orthogonal(backward(direction));
    const double length = row.square().sum().item<double>();
    if (length == 0) break;
    rest = rest - row * (square / length);
    gradient = forward(rest);
    const double next = dot(gradient, gradient);
    for (size_t b = 0; b < direction.size(); ++b) {
      direction[b] = gradient[b] + direction[b] * (next / square);
    }
    square = next;
  }
  return rest;
}

}  // namespace ddc
