#pragma once

#include "ddc/testbeds/testbed.h"

namespace ddc::testbeds {

/// The paper's load-bearing block (appendix "Keeping or shedding a load-bearing block"):
/// f(x) = W2 (gamma * norm(relu(W1 x + b))), one output, learns the parity of the first `relevant` of
/// `bits` signs; every batch is the full enumeration. Loss: logistic, on targets +-1.
/// Tensors: "hidden.weight", "hidden.bias", "norm.weight", "readout.weight". (The bias is ours: the
/// odd part of a ReLU layer without one is linear, and a parity of signs is odd.)
///
/// The norm breaks the ReLU rescale; what is left is the norm scale.
struct SparseParityOptions {
  int64_t bits = 10;
  int64_t relevant = 3;
  int64_t d_hidden = 512;
  double gain_spread = 0;
  double bias_spread = 0.5;
  /// Store the gain as w and apply 1 + w, so that decay pulls it to 1.
  bool gain_is_offset = false;
};
Testbed sparse_parity(const SparseParityOptions& options = {});

}  // namespace ddc::testbeds
