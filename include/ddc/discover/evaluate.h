#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <utility>

namespace ddc {

/// One batch, evaluated at the values that the parameters have now.
struct Evaluation {
  /// Implicit, so that a function that returns a loss will do.
  Evaluation(at::Tensor of_batch, at::Tensor predicted = {})  // NOLINT(google-explicit-constructor)
      : loss(std::move(of_batch)), outputs(std::move(predicted)) {}

  /// A differentiable scalar.
  at::Tensor loss;
  /// Outputs that the loss is computed from: predictions, or logits with the classes last. Undefined if
  /// the model does not tell; the loss alone is looked at then.
  at::Tensor outputs;
};

/// All that discovery knows of a model: how to evaluate batch number `batch`. The same number must
/// give the same batch, and twice the same loss; another number gives another batch.
///
///     ddc::Evaluate evaluate = [&](uint64_t batch) {
///       const auto [inputs, targets] = draw(batch);
///       const auto logits = model->forward(inputs);
///       return ddc::Evaluation(at::cross_entropy_loss(logits, targets), logits);
///     };
using Evaluate = std::function<Evaluation(uint64_t batch)>;

/// Exception that an `evaluate` throws if its user wants no more evaluations.
struct Interrupted : std::exception {
  const char* what() const noexcept override { return "interrupted"; }
};

/// For a loss that draws its batch from torch's default generator (the CPU's): seeds it with the number of the
/// batch before every call, and leaves it as it was.
Evaluate reseeded(std::function<Evaluation()> evaluate);

}  // namespace ddc
