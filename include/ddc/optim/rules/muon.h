#pragma once

#include <ATen/core/Tensor.h>

#include "ddc/linalg/polar_factor.h"

namespace ddc {

/// What the polar factor of a rows x cols matrix M is multiplied by:
///   original         sqrt(max(1, rows / cols)), K. Jordan's,
///                    https://kellerjordan.github.io/posts/muon
///   match_rms_adamw  0.2 sqrt(max(rows, cols)): entries of the size of AdamW's steps, so that its
///                    learning rates fit; "Muon is Scalable for LLM Training", arXiv:2502.16982
///   frobenius        ||M||_F / sqrt(min(rows, cols)): the step has the Frobenius norm of M, and so
///                    follows the size of the gradient; the paper's
enum class UpdateScale { original, match_rms_adamw, frobenius };

const char* to_string(UpdateScale scale);

namespace rules {

struct MuonSettings {
  double lr = 0.02;
  double momentum = 0.95;
  bool nesterov = true;
  PolarMethod method = PolarMethod::exact;
  UpdateScale scale = UpdateScale::original;
};

/// The direction of which Muon takes the polar factor. Updates the buffer, which is allocated at
/// the first step; without `nesterov` the result is the buffer itself, not to be changed. The
/// operations are those of torch.optim.Muon: a moving average, where the original has a sum, which
/// differs by a factor that the polar factor does not see.
at::Tensor muon_momentum(const at::Tensor& gradient, at::Tensor& momentum_buffer,
                         const MuonSettings& settings);

/// The displacement that Muon makes for `direction`, a matrix or a stack of them [..., rows, cols],
/// each scaled by itself; without decay.
at::Tensor muon_displacement(const at::Tensor& direction, const MuonSettings& settings);

}  // namespace rules
}  // namespace ddc
