#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ddc/discover/evaluate.h"
#include "ddc/enum_names.h"
#include "ddc/gauge/gauge.h"
#include "ddc/parameters.h"

namespace ddc::testbeds {

/// Inputs with what the network should make of them. Tokens and class labels are int64 whatever
/// the dtype of the parameters.
struct Batch {
  at::Tensor inputs;
  at::Tensor targets;
};

/// Which of its gauges a transformer testbed lists. Each contains the ones before it, where the groups
/// do: the linear group of a head contains its scale and its rotation.
enum class GaugeSet {
  abelian,    ///< scales and shifts; of a head the scale, or that of its rotary planes
  rotations,  ///< also the rotations of heads, or those of rotary planes
  full,       ///< the linear groups of heads, and the gauges of biases and of norm kernels
  /// Also the rotation of the residual stream, where no fixed embedding and no norm without a bias
  /// behind it breaks it. The norms' gains then hold still.
  with_residual_rotation,
};

/// Numbers that tell how training goes, by name: "test_accuracy", "gauge_fraction", ...
using Observations = std::map<std::string, double>;

/// Callback that is told what happens inside a network, at the positions that are computed: what the hidden units of a
/// layer get, under its name ("layers.0.mlp.up"), the residual stream after the embedding ("stream.embedding") and
/// after every branch ("stream.layers.0.mlp"), and what the readout, or the norm before it, reads ("stream").
using Trace = std::function<void(const std::string& name, const at::Tensor& values)>;

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
  /// A scalar: `criterion` of `outputs`.
  std::function<at::Tensor(const Parameters& params, const Batch& batch)> loss;
  /// The gauges of the network: for transformers those of the GaugeSet that was asked for.
  std::function<std::vector<Gauge>(const Parameters& params)> gauges;
  /// What the loss compares with the targets: predictions, or logits with the classes last.
  std::function<at::Tensor(const Parameters& params, const at::Tensor& inputs)> outputs;
  /// The loss of outputs.
  std::function<at::Tensor(const at::Tensor& outputs, const at::Tensor& targets)> criterion;
  /// What there is to see at these parameters besides the loss of a batch. May be empty.
  std::function<Observations(const Parameters& params)> observe = {};
  /// The same outputs, with a trace of what is inside, and by operations that can be differentiated forward. May be
  /// empty.
  std::function<at::Tensor(const Parameters& params, const at::Tensor& inputs, const Trace& trace)>
      traced = {};
  /// `batch` returns the same for all seeds.
  bool full_batch = false;
};

/// Evaluates batches of the testbed at the values that `params` has, for discovery.
Evaluate evaluation_of(const Testbed& testbed, const Parameters& params);

/// The class label of positions at which nothing is asked: neither the cross-entropy nor `accuracy` counts
/// them.
inline constexpr int64_t ignored_target = -100;

/// The share of targets that the outputs get right: the largest logit against a class label, or
/// the sign of a single output against +-1.
double accuracy(const at::Tensor& outputs, const at::Tensor& targets);

}  // namespace ddc::testbeds

template <>
inline constexpr std::array ddc::EnumNames<ddc::testbeds::GaugeSet> = {
    "abelian", "rotations", "full", "with_residual_rotation"};
