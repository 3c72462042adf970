#include "probe.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>

namespace ddc {
namespace {

/// Gradients of tensors with at most so many entries are kept as they are.
constexpr int64_t small_entries = 1 << 14;

double epsilon_of(at::ScalarType type) {
  return type == at::kDouble ? std::numeric_limits<double>::epsilon()
                             : std::numeric_limits<float>::epsilon();
}

/// Sum over all axes but one.
at::Tensor sum_except(const at::Tensor& values, int64_t axis) {
  return values.movedim(axis, 0).reshape({values.size(axis), -1}).sum(1);
}

double root_mean_square(const at::Tensor& values) {
  return std::sqrt(values.to(at::kDouble).square().mean().item<double>());
}

at::Tensor stacked(const std::vector<std::vector<at::Tensor>>& per_batch, size_t k) {
  std::vector<at::Tensor> rows;
  rows.reserve(per_batch.size());
  for (const auto& batch : per_batch) rows.push_back(batch[k].to(at::kDouble));
  return at::stack(rows);
}

}  // namespace

Probe::Probe(const Parameters& params, Evaluate evaluate, uint64_t seed)
    : params_(params), evaluate_(std::move(evaluate)), restore_(params), seed_(seed) {
  size_t index = 0;
  for (const auto& [name, tensor] : params_) {
    epsilon_ = std::max(epsilon_, epsilon_of(tensor.scalar_type()));
    for (int64_t axis = 0; axis < tensor.dim(); ++axis) {
      slots_.push_back({index, axis, tensor.size(axis)});
    }
    ++index;
  }
}

void Probe::move_to(uint64_t batch) const {
  const at::NoGradGuard no_grad;
  const auto generator = at::detail::createCPUGenerator(seed_ + batch);
  size_t k = 0;
  for (const auto& [name, tensor] : params_) {
    const auto& value = restore_.saved()[k++];
    const double size = root_mean_square(value);
    auto noise = at::empty(tensor.sizes(), at::kFloat);
    noise.normal_(0, size > 0 ? size / 4 : 0.2, generator);
    at::Tensor(tensor).copy_(value).add_(noise.to(tensor.options()));
  }
}

double Probe::zero() const { return epsilon_ < 1e-10 ? 1e-9 : 2e-4; }

Parameters Probe::gradients(uint64_t batch) const {
  move_to(batch);
  const at::AutoGradMode enable_grad(true);
  const auto loss = evaluate_(batch).loss;
  const auto tensors = params_.tensors();
  const auto found = torch::autograd::grad({loss}, tensors, {}, /*retain_graph=*/std::nullopt,
                                           /*create_graph=*/false, /*allow_unused=*/true);
  Parameters result;
  for (size_t k = 0; k < tensors.size(); ++k) {
    result.add(parameter(k).name, found[k].defined() ? found[k] : at::zeros_like(tensors[k]));
    TORCH_CHECK(result[parameter(k).name].tensor.isfinite().all().item<bool>(),
                "discover: the gradient of '", parameter(k).name, "' on batch ", batch,
                " is not finite");
  }
  return result;
}

void Probe::draw(int64_t wanted) {
  while (batches() < wanted) {
    const auto table = gradients(static_cast<uint64_t>(batches()));
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> scale;
    std::vector<at::Tensor> shift;
    std::vector<double> shift_scale;
    std::vector<at::Tensor> small;
    std::vector<double> rms;
    for (size_t k = 0; k < params_.size(); ++k) {
      const auto& weight = parameter(k).tensor;
      const auto& gradient = table[parameter(k).name].tensor;
      // Sums in float64 would need a copy of the gradient; those of float32 lose less than what the
      // gradient has lost already.
      const auto product = weight.detach() * gradient;
      const auto size = gradient.abs();
      for (int64_t axis = 0; axis < weight.dim(); ++axis) {
        scale.push_back(sum_except(product, axis));
        shift.push_back(gradient.sum(axis).flatten());
        shift_scale.push_back(root_mean_square(size.sum(axis)));
      }
      small.push_back(is_small(k) ? gradient.flatten().clone() : at::Tensor());
      rms.push_back(root_mean_square(gradient));
    }
    scale_.push_back(std::move(scale));
    shift_.push_back(std::move(shift));
    shift_scale_.push_back(std::move(shift_scale));
    small_.push_back(std::move(small));
    rms_.push_back(std::move(rms));
  }
}

at::Tensor Probe::scale_charge(size_t slot) const { return stacked(scale_, slot); }
at::Tensor Probe::shift_charge(size_t slot) const { return stacked(shift_, slot); }
at::Tensor Probe::small_gradient(size_t tensor) const { return stacked(small_, tensor); }

double Probe::shift_scale(size_t slot) const {
  double sum = 0;
  for (const auto& batch : shift_scale_) sum += batch[slot] * batch[slot];
  return std::sqrt(sum / static_cast<double>(batches()));
}

bool Probe::is_small(size_t tensor) const {
  return parameter(tensor).tensor.numel() <= small_entries;
}

double Probe::gradient_size(size_t tensor) const {
  double sum = 0;
  for (const auto& batch : rms_) sum += batch[tensor] * batch[tensor];
  return std::sqrt(sum / static_cast<double>(batches()));
}

void Probe::each_batch(int64_t count,
                       const std::function<void(const Parameters& gradients)>& use) const {
  for (int64_t batch = 0; batch < count; ++batch) use(gradients(static_cast<uint64_t>(batch)));
}

void Probe::each_charge(const std::vector<Gauge>& gauges, int64_t count,
                        const std::function<void(size_t, const Charge&)>& use) const {
  if (gauges.empty()) return;
  each_batch(count, [&](const Parameters& table) {
    for (size_t k = 0; k < gauges.size(); ++k) use(k, noether_charge(gauges[k], params_, table));
  });
}

std::vector<double> Probe::relative_charges(const std::vector<Gauge>& gauges) const {
  std::vector<double> result(gauges.size(), 0);
  each_charge(gauges, 3, [&](size_t k, const Charge& charge) {
    const double scale = charge.scale.max().item<double>();
    const double value = charge.value.abs().max().item<double>();
    if (scale > 0) result[k] = std::max(result[k], value / scale);
  });
  return result;
}

}  // namespace ddc
