#pragma once

#include <ATen/core/Tensor.h>

// The figures that the library promises, per type, in one place.

namespace ddc::tests {

/// Relative error between a trajectory and the image of another under the group, over 50 steps with
/// each copy's gradients from its own forward and backward pass.
inline double equivariance_tolerance(at::ScalarType type) {
  return type == at::kDouble ? 1e-12 : 1e-5;
}

/// The same in the paper's form, where the gradients of one copy are handed to the other.
constexpr double kFedGradientTolerance = 5e-7;

/// AdamW on the same test must fail by this much, or the test shows nothing.
constexpr double kPlainOptimizerError = 1e-2;

/// Change of a gauge coordinate over the paper's teacher-student runs (4000 steps, float32).
constexpr double kTeacherStudentDrift = 1e-6;
/// Root mean square over the 64 coordinates of the diagonal network.
constexpr double kDiagonalDrift = 3e-6;
/// Over 1000 steps of the transformer blocks.
constexpr double kBlockDrift = 1e-5;

}  // namespace ddc::tests
