#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ddc/gauge/gauge.h"

// Rescale gauges: what one layer is multiplied by, the next is divided by.

namespace ddc {

/// The layout of a weight matrix.
enum class Layout {
  out_in,  ///< rows are outputs: torch::nn::Linear, and convolutions (further axes are free)
  in_out,  ///< rows are inputs: Conv1D as GPT-2 stores it
};

/// A positively homogeneous activation between two layers:
///
///     y = W_out act(W_in x + b_in),   act(c z) = c^p act(z) for c > 0
///
/// Acts: `in` and its bias +1, every reader in `out` -p. p = 1 for ReLU and leaky ReLU, 2 for
/// squared ReLU. Group (R+)^d_hidden, or R+ when `whole`.
///
/// Broken by: GELU, SiLU, tanh (not homogeneous); a norm between the two layers; a bias that is
/// left out here; an output that something else reads (a residual connection around `out`).
struct ReluRescale {
  NamedTensor in;
  std::optional<NamedTensor> in_bias = {};
  std::vector<NamedTensor> out;
  double degree = 1;
  /// One factor for the whole tensor, as in the paper's experiments, instead of one per unit.
  bool whole = false;
  Layout layout = Layout::out_in;
  /// Default: made from the name of `in`.
  std::string name = {};
};
Gauge relu_rescale(const ReluRescale& spec);

/// A stack of layers with such an activation between each two: the gauges of every adjacent pair,
/// L - 1 of them. They share tensors and couple; the optimizer treats them jointly.
struct ChainedRescale {
  std::vector<NamedTensor> weights;
  /// Empty, or one entry per weight; an unset entry is a layer without bias. The last layer's bias
  /// is not acted on.
  std::vector<std::optional<NamedTensor>> biases = {};
  double degree = 1;
  bool whole = false;
  Layout layout = Layout::out_in;
};
std::vector<Gauge> chained_rescale(const ChainedRescale& spec);

/// A gated MLP, y = W_down (act(W_gate x) * (W_up x + b_up)), for any gate activation (SwiGLU,
/// GEGLU, ReGLU). Acts: `up` and its bias +1, `down` -1. The gate is not acted on.
///
/// Broken by: a norm between the product and `down`; an activation on the up branch.
struct GluRescale {
  NamedTensor up;
  std::optional<NamedTensor> up_bias = {};
  std::vector<NamedTensor> down;
  Layout layout = Layout::out_in;
  std::string name = {};
};
Gauge glu_rescale(const GluRescale& spec);

/// A diagonal linear network, beta = u * v elementwise. Acts: `u` +1, `v` -1, per coordinate.
struct DiagonalLinear {
  NamedTensor u;
  NamedTensor v;
  std::string name = {};
};
Gauge diagonal_linear(const DiagonalLinear& spec);

}  // namespace ddc
