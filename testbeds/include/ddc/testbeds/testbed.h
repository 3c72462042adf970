#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ddc/gauge/gauge.h"
#include "ddc/parameters.h"

namespace ddc::testbeds {

/// Inputs with what the network should make of them. Tokens and class labels are int64 whatever
/// the dtype of the parameters.
struct Batch {
  at::Tensor inputs;
  at::Tensor targets;
};

/// A network and a task, as functions of a table of parameters: two copies of the parameters, one
/// moved by a group element, can be trained side by side.
///
///     const auto bed = ddc::testbeds::layer_norm_block();
///     const auto params = bed.init(/*seed=*/1, at::kDouble);
///     const auto gauges = bed.gauges(params);
///     bed.loss(params, bed.batch(/*seed=*/7, at::kDouble)).backward();
///
/// Everything is a pure function of its arguments. Numbers are drawn in float64 and then cast, so
/// float32 and float64 start from the same point up to rounding.
struct Testbed {
  std::string name;
  /// Leaf tensors that require gradients.
  std::function<Parameters(uint64_t seed, at::ScalarType dtype)> init;
  /// A fresh batch for every seed; full-batch tasks return the same one for all.
  std::function<Batch(uint64_t seed, at::ScalarType dtype)> batch;
  /// A scalar.
  std::function<at::Tensor(const Parameters& params, const Batch& batch)> loss;
  /// Every abelian gauge of the network that can be written as legs. (Inside an attention head
  /// only the scale of the whole head, or of a rotary plane: single coordinates may be scaled too,
  /// but those scales are part of the head's linear group, which is not abelian.)
  std::function<std::vector<Gauge>(const Parameters& params)> gauges;
  /// What the loss compares with the targets: predictions, or logits with the classes last.
  std::function<at::Tensor(const Parameters& params, const at::Tensor& inputs)> outputs;
};

/// The share of targets that the outputs get right: the largest logit against a class label, or
/// the sign of a single output against +-1.
double accuracy(const at::Tensor& outputs, const at::Tensor& targets);

}  // namespace ddc::testbeds
