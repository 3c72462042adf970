#pragma once

#include "ddc/testbeds/testbed.h"

// The paper's two teacher-student tasks (appendices "The ReLU-rescale gauge testbed" and "The
// LayerNorm-scale gauge testbed"): a student learns a teacher of its own form by full-batch mean
// squared error. Teacher and samples depend on `data_seed` alone, the student on the seed of
// `init`.

namespace ddc::testbeds {

/// f(x) = W2 relu(W1 x), without biases. Tensors: "layers.0.weight", "layers.1.weight".
struct ReluTeacherStudentOptions {
  int64_t d_in = 8;
  int64_t d_hidden = 16;
  int64_t d_out = 4;
  int64_t samples = 128;
  /// Standard deviations of the weights' entries.
  double teacher_scale = 1.0;
  double student_scale = 0.5;
  /// One gauge channel per hidden unit instead of the paper's one for the whole tensor.
  bool per_channel = false;
  uint64_t data_seed = 0;
};
Testbed relu_teacher_student(const ReluTeacherStudentOptions& options = {});

/// f(x) = W (gamma * norm(x)), a LayerNorm without shift. Tensors: "norm.weight", "readout.weight".
struct NormTeacherStudentOptions {
  int64_t d_in = 16;
  int64_t d_out = 8;
  int64_t samples = 128;
  /// Gains are drawn from N(1, gain_spread).
  double gain_spread = 0.5;
  /// Standard deviations of the readout's entries. The paper does not give them; with these AdamW
  /// ends at the loss it reports (1e-6).
  double teacher_scale = 1.0;
  double student_scale = 0.5;
  uint64_t data_seed = 0;
};
Testbed norm_teacher_student(const NormTeacherStudentOptions& options = {});

}  // namespace ddc::testbeds
