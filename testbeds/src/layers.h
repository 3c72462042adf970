#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "ddc/testbeds/testbed.h"

// The layers from which all testbeds are built, as functions of a table of parameters. A layer
// called "fc" has the tensors "fc.weight" and, if the table holds it, "fc.bias".

namespace ddc::testbeds {

std::optional<NamedTensor> find(const Parameters& params, const std::string& name);

at::Tensor linear(const Parameters& params, const std::string& layer, const at::Tensor& x);

/// relu(x)^degree, for degree 1 or 2.
at::Tensor relu_power(const at::Tensor& x, int64_t degree);

/// Layers "layers.0" to "layers.<depth - 1>" with relu_power between each two.
at::Tensor relu_stack(const Parameters& params, int64_t depth, int64_t degree, const at::Tensor& x);

at::Tensor layer_norm(const Parameters& params, const std::string& layer, const at::Tensor& x);

/// With the gain as stored, or as (1 + w).
at::Tensor rms_norm(const Parameters& params, const std::string& layer, const at::Tensor& x,
                    bool gain_is_offset);

/// Causal attention of `x` [batch, time, d_model] with the layers `layer`.query, .key, .value and
/// .output. `heads / kv_heads` consecutive query heads share a key and value head. Rotary: position
/// t turns the pair (i, i + d/2) of every head by an angle proportional to t.
struct Attention {
  int64_t heads = 1;
  int64_t kv_heads = 1;
  bool rotary = false;
  /// The result has one position, the last.
  bool last_query_only = false;
};
at::Tensor attention(const Parameters& params, const std::string& layer, const at::Tensor& x,
                     const Attention& shape);

/// `layer`.down of silu(`layer`.gate) * `layer`.up.
at::Tensor swiglu(const Parameters& params, const std::string& layer, const at::Tensor& x);

/// Losses in the form `Testbed` wants them, made from its outputs.
using Outputs = decltype(Testbed::outputs);
using Loss = decltype(Testbed::loss);
Loss mean_squared_error(Outputs outputs);
Loss cross_entropy(Outputs outputs);
/// log(1 + exp(-target * output)), for targets +-1.
Loss logistic(Outputs outputs);

/// Standard normal inputs of shape [samples, d_in] with what a teacher makes of them, in float64
/// and then cast.
Batch teach(const Outputs& network, const Parameters& teacher, int64_t samples, int64_t d_in,
            const at::Generator& source, at::ScalarType dtype);

}  // namespace ddc::testbeds
