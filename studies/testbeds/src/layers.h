#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>

#include "ddc/gauge/attention.h"
#include "ddc/gauge/channel_map.h"
#include "ddc/testbeds/testbed.h"

// The layers from which all testbeds are built, as functions of a table of parameters. A layer
// called "fc" has the tensors "fc.weight" and, if the table holds it, "fc.bias".

namespace ddc::testbeds {

std::optional<NamedTensor> find(const Parameters& params, const std::string& name);

at::Tensor linear(const Parameters& params, const std::string& layer, const at::Tensor& x);

/// relu(x)^degree, for degree 1 or 2.
at::Tensor relu_power(const at::Tensor& x, int64_t degree);

/// Layers "layers.0" to "layers.<depth - 1>" with relu_power between each two.
at::Tensor relu_stack(const Parameters& params, int64_t depth, int64_t degree, const at::Tensor& x,
                      const Trace& trace = {});

/// Added to the variance, or mean square, of what a norm divides.
inline constexpr double default_norm_eps = 1e-5;

at::Tensor layer_norm(const Parameters& params, const std::string& layer, const at::Tensor& x,
                      double eps = default_norm_eps);

/// With the gain as stored, or as (1 + w).
at::Tensor rms_norm(const Parameters& params, const std::string& layer, const at::Tensor& x,
                    bool gain_is_offset, double eps = default_norm_eps);

/// Position t turns each plane of a head by an angle proportional to t.
struct Rotary {
  /// How coordinates are paired into planes; none: attention does not know positions.
  channel_maps::Pairing pairing = channel_maps::Pairing::none;
  /// Only the first coordinates of each head, as many as this, are turned, the others pass through
  /// (GPT-J, NeoX). Unset: all are.
  std::optional<int64_t> size = {};

  bool on() const { return pairing != channel_maps::Pairing::none; }
};

/// Attention of `x` [batch, time, d_model] with the layers `layer`.query, .key, .value and .output.
/// `heads / kv_heads` consecutive query heads share a key and value head. Packed projections are one
/// layer, `layer`.qkv.
struct Attention {
  int64_t heads = 1;
  int64_t kv_heads = 1;
  Rotary rotary = {};
  Packing packing = Packing::separate;
  /// Each query and key head is divided by the root of its mean square (plus this), before it is
  /// turned, and multiplied by `layer`.query_norm and .key_norm if the table holds them.
  std::optional<double> qk_norm_eps = {};
  /// Positions see none that come after them.
  bool causal = true;
  /// The result has this position alone. Unset: all of them.
  std::optional<int64_t> only_position = {};
};
at::Tensor attention(const Parameters& params, const std::string& layer, const at::Tensor& x,
                     const Attention& shape);

/// `layer`.down of activation(`layer`.gate) * `layer`.up. The two may be one layer, `layer`.gate_up,
/// the gate first.
at::Tensor gated(const Parameters& params, const std::string& layer, const at::Tensor& x,
                 const std::function<at::Tensor(const at::Tensor&)>& activation);

using Outputs = decltype(Testbed::outputs);
/// Sets `traced`, and the outputs with it.
void set_network(Testbed& bed, decltype(Testbed::traced) network);
using Criterion = decltype(Testbed::criterion);
/// Sets `criterion`, and `loss` to that of the outputs.
void set_criterion(Testbed& testbed, Criterion criterion);
at::Tensor mean_squared_error(const at::Tensor& outputs, const at::Tensor& targets);
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets);
/// With a weight times the mean square of the logits' logsumexp.
Criterion cross_entropy_with_z_loss(double weight);
/// log(1 + exp(-target * output)), for targets +-1.
at::Tensor logistic(const at::Tensor& outputs, const at::Tensor& targets);

/// Standard normal inputs of shape [samples, d_in] with what a teacher makes of them, in float64
/// and then cast.
Batch teach(const Outputs& network, const Parameters& teacher, int64_t samples, int64_t d_in,
            const at::Generator& source, at::ScalarType dtype);

}  // namespace ddc::testbeds
