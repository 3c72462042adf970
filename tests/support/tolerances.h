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

/// The same over 40 steps at lr 1e-2 with every gauge of a transformer bound, linear groups of heads
/// and the rotation of the residual stream among them.
constexpr double kWholeModelTolerance = 1e-11;
constexpr double kWholeModelFloatTolerance = 2e-4;

/// Body frames of two legs, 60 steps at lr 2e-2, through crossings of eigenvalues.
constexpr double kBodyFrameTolerance = 1e-12;
/// The same from weights whose Gram matrices fix no eigenvectors, or are zero.
constexpr double kDegenerateFrameTolerance = 1e-12;

/// AdamW on the same test must fail by this much, or the test shows nothing.
constexpr double kPlainOptimizerError = 1e-2;

/// Change of a gauge coordinate over the paper's teacher-student runs (4000 steps, float32).
constexpr double kTeacherStudentDrift = 1e-6;
/// Root mean square over the 64 coordinates of the diagonal network.
constexpr double kDiagonalDrift = 3e-6;
/// Over 1000 steps of the transformer blocks.
constexpr double kBlockDrift = 1e-5;

}  // namespace ddc::tests
