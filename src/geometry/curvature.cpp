#include "ddc/geometry/curvature.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "geometry/loss_jacobian.h"
#include "geometry/output_factor.h"

namespace ddc {
namespace {

/// The parameters of a block.
Parameters block_of(const Parameters& params, const std::vector<std::string>& names) {
  for (const auto& name : names) {
    TORCH_CHECK_VALUE(params.contains(name), "curvature: there is no parameter '", name, "'");
    TORCH_CHECK_VALUE(params[name].tensor.requires_grad(), "curvature: parameter '", name,
                      "' does not require gradients");
  }
  if (names.empty()) return params;
  Parameters block;
  for (const auto& [name, tensor] : params) {
    if (std::find(names.begin(), names.end(), name) != names.end()) block.add(name, tensor);
  }
  return block;
}

at::ScalarType widest(const Parameters& table) {
  auto result = at::kFloat;
  for (const auto& entry : table) {
    if (entry.tensor.scalar_type() == at::kDouble) result = at::kDouble;
  }
  return result;
}

}  // namespace

struct Curvature::Impl {
  Impl(const Parameters& params, Evaluate given, const CurvatureOptions& settings)
      : options(settings),
        trainable(block_of(params, settings.tensors)),
        dtype(widest(trainable.table())),
        evaluate(std::move(given)) {
    TORCH_CHECK_VALUE(trainable.size() > 0,
                      "curvature: there is no parameter that requires gradients");
    TORCH_CHECK_VALUE(options.batches > 0, "option batches must be > 0, got ", options.batches);
    TORCH_CHECK_VALUE(options.labels > 0, "option labels must be > 0, got ", options.labels);
    device = trainable.table().begin()->tensor.device();
    measure_batches_();
  }

  const CurvatureOptions options;
  const Trainable trainable;
  const at::ScalarType dtype;
  const Evaluate evaluate;
  at::Device device = at::kCPU;
  std::vector<OutputMatrix> batches;
  std::vector<double> weights;
  Likelihood likelihood = Likelihood::softmax;
  int64_t samples = 0;
  int64_t rows = 0;
  int64_t outputs = 0;
  std::vector<int64_t> outputs_of;

  void measure_batches_() {
    const at::AutoGradMode enable_grad(true);
    std::vector<int64_t> counts;
    for (int64_t i = 0; i < options.batches; ++i) {
      const auto batch = static_cast<uint64_t>(i);
      const auto evaluation = evaluate(batch);
      if (options.kind == CurvatureKind::hessian) {
        const bool known = evaluation.outputs.defined() && evaluation.outputs.dim() > 0;
        counts.push_back(known ? evaluation.outputs.size(0) : 1);
      } else {
        batches.emplace_back(evaluation, batch);
        batches.back().specialise_(options.kind, evaluation, options.labels, options.seed, batch);
        counts.push_back(batches.back().samples());
        outputs_of.push_back(evaluation.outputs.numel());
        outputs += outputs_of.back();
        likelihood = std::max(likelihood, batches.back().likelihood());
      }
      TORCH_CHECK(counts.back() > 0, "curvature: the loss of batch ", batch,
                  " does not see its outputs");
      samples += counts.back();
    }
    bool has_factor = !batches.empty();
    for (int64_t i = 0; i < options.batches; ++i) {
      weights.push_back(static_cast<double>(counts[i]) / static_cast<double>(samples));
      if (batches.empty()) continue;
      batches[i].set_weight(weights.back());
      rows += batches[i].columns();
      has_factor = has_factor && batches[i].columns() > 0;
    }
    if (!has_factor) rows = 0;
  }

  at::TensorOptions vectors() const { return at::TensorOptions().dtype(dtype).device(device); }

  void check(const at::Tensor& vector, int64_t size) const {
    TORCH_CHECK_VALUE(vector.dim() == 1 && vector.size(0) == size,
                      "curvature: the vector must have shape [", size, "], has ", vector.sizes());
  }

  void add_(at::Tensor& sum, const std::vector<at::Tensor>& parts, double weight = 1) const {
    int64_t column = 0;
    size_t k = 0;
    for (const auto& [name, tensor] : trainable.table()) {
      auto place = sum.narrow(0, column, tensor.numel());
      column += tensor.numel();
      if (parts[k].defined()) place.add_(parts[k].reshape({-1}), weight);
      ++k;
    }
  }

  /// Back twice: more operations can be differentiated so than forward through the way back.
  at::Tensor hessian_product(const at::Tensor& vector) const {
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> directions;
    int64_t column = 0;
    for (const auto& each : trainable.aliases()) {
      const auto part = vector.narrow(0, column, each.front().numel());
      column += part.numel();
      for (const auto& alias : each) {
        inputs.push_back(alias);
        directions.push_back(part.view(alias.sizes()).to(alias.options().requires_grad(false)));
      }
    }
    auto sum = at::zeros({trainable.size()}, vectors());
    for (int64_t i = 0; i < options.batches; ++i) {
      const auto batch = static_cast<uint64_t>(i);
      const auto evaluation = evaluate(batch);
      const auto gradients =
          torch::autograd::grad({evaluation.loss}, inputs, {}, /*retain_graph=*/true,
                                /*create_graph=*/true, /*allow_unused=*/true);
      at::Tensor along;
      for (size_t k = 0; k < inputs.size(); ++k) {
        if (!gradients[k].defined() || !gradients[k].requires_grad()) continue;
        const auto part = (gradients[k] * directions[k]).sum();
        along = along.defined() ? along + part : part;
      }
      if (along.defined()) add_(sum, trainable.derivatives(along, {}, batch), weights[i]);
    }
    return sum;
  }

  at::Tensor product(const at::Tensor& vector) const {
    check(vector, trainable.size());
    const at::AutoGradMode enable_grad(true);
    if (options.kind == CurvatureKind::hessian) return hessian_product(vector);
    auto sum = at::zeros({trainable.size()}, vectors());
    for (int64_t i = 0; i < options.batches; ++i) {
      const auto batch = static_cast<uint64_t>(i);
      const auto [evaluation, tangent] = trainable.forward(evaluate, batch, vector);
      if (!tangent.defined()) continue;
      const auto cotangent = batches[i].product(evaluation, tangent);
      add_(sum, trainable.derivatives(evaluation.outputs, cotangent, batch));
    }
    return sum;
  }

  /// The outputs' derivative, or a root of the loss's Hessian times it.
  at::Tensor forward_rows(const at::Tensor& vector, bool root) const {
    check(vector, trainable.size());
    const at::AutoGradMode enable_grad(true);
    std::vector<at::Tensor> parts;
    for (int64_t i = 0; i < options.batches; ++i) {
      const auto [evaluation, tangent] =
          trainable.forward(evaluate, static_cast<uint64_t>(i), vector);
      const at::NoGradGuard no_grad;
      const int64_t size = root ? batches[i].columns() : outputs_of[i];
      if (!tangent.defined()) {
        parts.push_back(at::zeros({size}, vectors()));
      } else {
        parts.push_back(
            (root ? batches[i].transposed(evaluation, tangent) : tangent.flatten()).to(vectors()));
      }
    }
    return at::cat(parts);
  }

  at::Tensor backward_rows(const at::Tensor& vector, bool root) const {
    check(vector, root ? rows : outputs);
    const at::AutoGradMode enable_grad(true);
    auto sum = at::zeros({trainable.size()}, vectors());
    int64_t from = 0;
    for (int64_t i = 0; i < options.batches; ++i) {
      const auto batch = static_cast<uint64_t>(i);
      const auto evaluation = evaluate(batch);
      const int64_t size = root ? batches[i].columns() : outputs_of[i];
      const auto part = vector.narrow(0, from, size).to(evaluation.outputs.options());
      from += size;
      const auto cotangent =
          root ? batches[i].times(evaluation, part) : part.reshape(evaluation.outputs.sizes());
      add_(sum, trainable.derivatives(evaluation.outputs, cotangent, batch));
    }
    return sum;
  }

  /// The rows of the factor that belong to a batch, in float64: by columns or by rows, whichever are fewer.
  at::Tensor rows_of(int64_t i) const {
    const auto batch = static_cast<uint64_t>(i);
    const int64_t size = trainable.size();
    const int64_t count = batches[i].columns();
    const auto& matrix = batches[i];
    if (size <= count) {
      std::vector<at::Tensor> columns;
      for (int64_t k = 0; k < size; ++k) {
        auto axis = at::zeros({size}, vectors());
        axis[k].fill_(1);
        const auto [evaluation, tangent] = trainable.forward(evaluate, batch, axis);
        columns.push_back(tangent.defined()
                              ? matrix.transposed(evaluation, tangent).to(at::kCPU, at::kDouble)
                              : at::zeros({count}, at::kDouble));
      }
      return at::stack(columns, 1);
    }
    const auto evaluation = evaluate(batch);
    std::vector<at::Tensor> result;
    for (int64_t k = 0; k < count; ++k) {
      auto axis = at::zeros({count}, evaluation.outputs.options().requires_grad(false));
      axis[k].fill_(1);
      result.push_back(
          trainable.derivative(evaluation.outputs, matrix.times(evaluation, axis), batch));
    }
    return at::stack(result);
  }

  at::Tensor triangle() const {
    if (rows == 0) return {};
    const at::AutoGradMode enable_grad(true);
    auto result = at::zeros({0, trainable.size()}, at::kDouble);
    std::vector<at::Tensor> waiting;
    int64_t count = 0;
    for (int64_t i = 0; i < options.batches; ++i) {
      waiting.push_back(rows_of(i));
      count += waiting.back().size(0);
      // Few rows are added at the price of many.
      if (count < trainable.size() && i + 1 < options.batches) continue;
      const at::NoGradGuard no_grad;
      waiting.push_back(result);
      result = std::get<1>(at::linalg_qr(at::cat(waiting), "r"));
      waiting.clear();
      count = 0;
    }
    return result;
  }
};

LinearOperator LinearOperator::symmetric(int64_t size,
                                         std::function<at::Tensor(const at::Tensor&)> product,
                                         at::ScalarType dtype) {
  return {size, size, product, product, dtype};
}

Curvature::Curvature(const Parameters& params, Evaluate evaluate, const CurvatureOptions& options)
    : impl_(std::make_unique<Impl>(params, std::move(evaluate), options)) {}
Curvature::~Curvature() = default;
Curvature::Curvature(Curvature&&) noexcept = default;

CurvatureKind Curvature::kind() const { return impl_->options.kind; }
Likelihood Curvature::likelihood() const { return impl_->likelihood; }
int64_t Curvature::size() const { return impl_->trainable.size(); }
const Parameters& Curvature::table() const { return impl_->trainable.table(); }
at::ScalarType Curvature::dtype() const { return impl_->dtype; }
int64_t Curvature::samples() const { return impl_->samples; }
int64_t Curvature::labels() const { return impl_->options.labels; }
int64_t Curvature::rows() const { return impl_->rows; }

at::Tensor Curvature::product(const at::Tensor& vector) const { return impl_->product(vector); }

std::vector<at::Tensor> Curvature::gradients() const {
  const at::AutoGradMode enable_grad(true);
  std::vector<at::Tensor> result;
  for (int64_t i = 0; i < impl_->options.batches; ++i) {
    const auto batch = static_cast<uint64_t>(i);
    result.push_back(impl_->trainable.derivative(impl_->evaluate(batch).loss, {}, batch));
  }
  return result;
}

LinearOperator Curvature::as_operator() const {
  return LinearOperator::symmetric(
      size(), [this](const at::Tensor& vector) { return product(vector); }, dtype());
}

LinearOperator Curvature::jacobian() const {
  TORCH_CHECK_VALUE(kind() != CurvatureKind::hessian,
                    "a Hessian does not go through the outputs: take the jacobian of gauss_newton");
  return {impl_->outputs, size(),
          [this](const at::Tensor& v) { return impl_->forward_rows(v, /*root=*/false); },
          [this](const at::Tensor& u) { return impl_->backward_rows(u, /*root=*/false); }, dtype()};
}

std::optional<LinearOperator> Curvature::factor() const {
  if (rows() == 0) return std::nullopt;
  return LinearOperator{
      rows(), size(), [this](const at::Tensor& v) { return impl_->forward_rows(v, true); },
      [this](const at::Tensor& u) { return impl_->backward_rows(u, true); }, dtype()};
}

at::Tensor Curvature::triangle() const { return impl_->triangle(); }

at::Tensor Curvature::dense() const {
  if (const auto root = triangle(); root.defined()) return root.t().matmul(root);
  const auto result = at::zeros({size(), size()}, at::kDouble);
  for (int64_t k = 0; k < size(); ++k) {
    auto axis = at::zeros({size()}, impl_->vectors());
    axis[k].fill_(1);
    result[k].copy_(product(axis));
  }
  return (result + result.t()) / 2;
}

}  // namespace ddc
