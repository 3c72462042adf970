#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddc/discover/evaluate.h"
#include "ddc/parameters.h"

namespace ddc {

/// The parameters that training moves, as one vector: the tensors that require gradients, flattened in
/// the order of the table. Tensors that share their memory (tied ones) are there once, by the first
/// name.
class Trainable {
 public:
  explicit Trainable(const Parameters& params);

  const Parameters& table() const { return table_; }
  int64_t size() const { return size_; }
  /// By entry: tensors of their own graph that share its memory.
  const std::vector<std::vector<at::Tensor>>& aliases() const { return aliases_; }
  /// Relative rounding of the least precise of them.
  double precision() const;
  /// Where the entries of the tensor with this name begin; nothing if it does not require gradients.
  std::optional<int64_t> column(const std::string& name) const;

  /// The derivatives of `outputs` (times `cotangent`, unless they are a scalar) by the entries of the
  /// table; undefined where there is none. Throws, naming the tensor, if one is not finite. The graph
  /// stays.
  std::vector<at::Tensor> derivatives(const at::Tensor& outputs, const at::Tensor& cotangent,
                                      uint64_t batch) const;
  /// The same as one vector, in float64.
  at::Tensor derivative(const at::Tensor& outputs, const at::Tensor& cotangent,
                        uint64_t batch) const;
  /// A batch, and the derivative of its outputs in a direction of the entries; undefined if there is none.
  std::pair<Evaluation, at::Tensor> forward(const Evaluate& evaluate, uint64_t batch,
                                            const at::Tensor& direction) const;

 private:
  Parameters table_;
  std::vector<std::vector<std::string>> names_;
  /// Their gradients add up.
  std::vector<std::vector<at::Tensor>> aliases_;
  int64_t size_ = 0;
};

/// What a loss sees of the outputs of one batch.
struct Visible {
  /// One where dL/doutputs is not exactly zero.
  at::Tensor mask;
  /// dL/doutputs sums to zero over the last axis: a constant added to a row is not seen.
  bool sums_to_zero = false;

  explicit Visible(const at::Tensor& loss_by_outputs);
  /// The orthogonal projection on what is seen.
  at::Tensor project(const at::Tensor& outputs) const;
};

/// dL/doutputs; undefined if the outputs are, or if the loss is not computed from them.
at::Tensor loss_by_outputs(const Evaluation& evaluation, uint64_t batch);

/// Rows of the derivative of what a loss sees of a model; see completeness.h.
class LossJacobian {
 public:
  LossJacobian(const Parameters& params, Evaluate evaluate, uint64_t seed);

  const Trainable& trainable() const { return trainable_; }
  /// [up to count (+ 1), parameters], float64.
  at::Tensor rows(uint64_t batch, int64_t count);

 private:
  Trainable trainable_;
  Evaluate evaluate_;
  at::Generator generator_;
  /// Whether something reaches the loss beside the outputs (an auxiliary loss). Found on the first batch.
  std::optional<bool> beside_outputs_;
};

}  // namespace ddc
