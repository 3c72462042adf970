#include "geometry/loss_jacobian.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <algorithm>
#include <limits>

namespace ddc {
namespace {

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

double epsilon(const at::Tensor& values) {
  return values.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                             : std::numeric_limits<float>::epsilon();
}

/// Whether each row of the last axis sums to zero, at the precision of the largest row. (A row of one
/// example that is fitted almost perfectly is all rounding.)
bool sums_to_zero(const at::Tensor& gradient) {
  if (gradient.dim() == 0 || gradient.size(-1) < 2) return false;
  const auto sums = gradient.sum(-1).abs().max();
  return (sums <= 64 * epsilon(gradient) * gradient.abs().sum(-1).max()).item<bool>();
}

}  // namespace

Visible::Visible(const at::Tensor& loss_by_outputs)
    : mask(loss_by_outputs.ne(0).to(loss_by_outputs.scalar_type())),
      sums_to_zero(ddc::sums_to_zero(loss_by_outputs)) {}

at::Tensor Visible::project(const at::Tensor& outputs) const {
  const auto seen = outputs * mask;
  if (!sums_to_zero) return seen;
  return (seen - seen.sum(-1, true) / mask.sum(-1, true).clamp_min(1)) * mask;
}

at::Tensor loss_by_outputs(const Evaluation& evaluation, uint64_t batch) {
  const auto& [loss, outputs] = evaluation;
  TORCH_CHECK(loss.defined() && loss.numel() == 1, "the loss of batch ", batch,
              " must be a scalar, has shape ", loss.defined() ? loss.sizes() : at::IntArrayRef());
  TORCH_CHECK(loss.requires_grad(), "the loss of batch ", batch,
              " does not depend on any parameter that requires gradients");
  if (!outputs.defined() || !outputs.requires_grad()) return {};
  return torch::autograd::grad({loss}, {outputs}, {}, /*retain_graph=*/true,
                               /*create_graph=*/false, /*allow_unused=*/true)[0];
}

Trainable::Trainable(const Parameters& params) {
  for (const auto& [name, tensor] : params) {
    if (!tensor.requires_grad()) continue;
    size_t k = 0;
    for (const auto& entry : table_) {
      if (entry.tensor.is_same(tensor) ||
          (tensor.numel() > 0 && entry.tensor.const_data_ptr() == tensor.const_data_ptr())) {
        break;
      }
      ++k;
    }
    if (k == table_.size()) {
      table_.add(name, tensor);
      names_.push_back({name});
      aliases_.push_back({tensor});
      size_ += tensor.numel();
      continue;
    }
    const auto& first = names_[k].front();
    TORCH_CHECK(table_[first].tensor.sizes() == tensor.sizes(), "parameter '", name,
                "' shares memory with '", first, "' but has shape ", tensor.sizes(), ", not ",
                table_[first].tensor.sizes(), "; tied parameters must have the same shape");
    names_[k].push_back(name);
    bool known = false;
    for (const auto& alias : aliases_[k]) known = known || alias.is_same(tensor);
    if (!known) aliases_[k].push_back(tensor);
  }
}

double Trainable::precision() const {
  double result = std::numeric_limits<double>::epsilon();
  for (const auto& entry : table_) result = std::max(result, epsilon(entry.tensor));
  return result;
}

std::optional<int64_t> Trainable::column(const std::string& name) const {
  int64_t column = 0;
  size_t k = 0;
  for (const auto& entry : table_) {
    const auto& names = names_[k++];
    if (std::find(names.begin(), names.end(), name) != names.end()) return column;
    column += entry.tensor.numel();
  }
  return std::nullopt;
}

std::vector<at::Tensor> Trainable::derivatives(const at::Tensor& outputs,
                                               const at::Tensor& cotangent, uint64_t batch) const {
  std::vector<at::Tensor> inputs;
  for (const auto& each : aliases_) inputs.insert(inputs.end(), each.begin(), each.end());
  const auto gradients = torch::autograd::grad(
      {outputs}, inputs, cotangent.defined() ? std::vector{cotangent} : std::vector<at::Tensor>{},
      /*retain_graph=*/true, /*create_graph=*/false, /*allow_unused=*/true);
  std::vector<at::Tensor> result;
  size_t next = 0;
  for (size_t k = 0; k < aliases_.size(); ++k) {
    at::Tensor sum;
    for (size_t i = 0; i < aliases_[k].size(); ++i) {
      const auto& gradient = gradients[next++];
      if (gradient.defined()) sum = sum.defined() ? sum + gradient : gradient.to_dense();
    }
    TORCH_CHECK(!sum.defined() || sum.isfinite().all().item<bool>(), "the gradient of '",
                names_[k].front(), "' on batch ", batch, " has NaN or Inf entries");
    result.push_back(sum);
  }
  return result;
}

at::Tensor Trainable::derivative(const at::Tensor& outputs, const at::Tensor& cotangent,
                                 uint64_t batch) const {
  std::vector<at::Tensor> parts{at::zeros({0}, at::kDouble)};
  const auto gradients = derivatives(outputs, cotangent, batch);
  size_t k = 0;
  for (const auto& [name, tensor] : table_) {
    const auto& gradient = gradients[k++];
    parts.push_back(gradient.defined() ? gradient.flatten().to(at::kCPU, at::kDouble)
                                       : at::zeros({tensor.numel()}, at::kDouble));
  }
  return at::cat(parts);
}

std::pair<Evaluation, at::Tensor> Trainable::forward(const Evaluate& evaluate, uint64_t batch,
                                                     const at::Tensor& direction) const {
  // Gone before the way back, which would differentiate itself otherwise.
  const ForwardLevel level;
  int64_t column = 0;
  for (const auto& each : aliases_) {
    const int64_t size = each.front().numel();
    const auto part = direction.narrow(0, column, size).view(each.front().sizes());
    column += size;
    for (const auto& alias : each) {
      alias._set_fw_grad(part.to(alias.options()).clone(), level.index(), /*is_inplace_op=*/false);
    }
  }
  auto evaluation = evaluate(batch);
  at::Tensor derivative = evaluation.outputs._fw_grad(level.index());
  if (derivative.defined()) derivative = derivative.detach();
  return {std::move(evaluation), derivative};
}

LossJacobian::LossJacobian(const Parameters& params, Evaluate evaluate, uint64_t seed)
    : trainable_(params),
      evaluate_(std::move(evaluate)),
      generator_(at::make_generator<at::CPUGeneratorImpl>(seed)) {}

at::Tensor LossJacobian::rows(uint64_t batch, int64_t count) {
  const at::AutoGradMode enable_grad(true);
  const auto evaluation = evaluate_(batch);
  const auto& loss = evaluation.loss;
  const auto& outputs = evaluation.outputs;
  const auto seen = loss_by_outputs(evaluation, batch);
  if (!seen.defined()) return trainable_.derivative(loss, {}, batch).unsqueeze(0);

  std::vector<at::Tensor> rows;
  const Visible visible(seen);
  for (int64_t i = 0; i < count; ++i) {
    const auto drawn = at::randn(seen.sizes(), generator_, at::kDouble).to(seen.options());
    rows.push_back(trainable_.derivative(outputs, visible.project(drawn), batch));
  }
  if (beside_outputs_.value_or(true)) {
    const auto all = trainable_.derivative(loss, {}, batch);
    const auto through = trainable_.derivative(outputs, seen, batch);
    if (!beside_outputs_) {
      const double rest = (all - through).norm().item<double>();
      beside_outputs_ = rest > 1e3 * epsilon(seen) * all.norm().item<double>();
    }
    if (*beside_outputs_) {
      // As large as the other rows, whose cotangents have entries of size one.
      rows.push_back(all * seen.ne(0).sum().to(at::kDouble).sqrt().cpu() /
                     seen.norm().to(at::kDouble).cpu().clamp_min(1e-300));
    }
  }
  return at::stack(rows);
}

}  // namespace ddc
