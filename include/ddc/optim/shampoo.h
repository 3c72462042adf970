#pragma once

#include "ddc/optim/lifted.h"

namespace ddc {

/// Options of Shampoo.
struct ShampooOptions {
  double lr = 1e-3;
  /// Decay of the average of gradients that is preconditioned; 0 is the paper's rule.
  double beta1 = 0.9;
  /// Decay of the factors. 1 is the paper's plain sum; less is an average, with Adam's bias correction.
  double beta2 = 0.999;
  /// Added to the factors' eigenvalues, and like them the square of a gradient: absolute, as in the
  /// paper, where the sums start at eps I.
  double eps = 1e-12;
  /// A longer side gets no factor.
  int64_t max_dim = 8192;
  /// The roots are recomputed at steps 1, 1 + precondition_every, ..., and when they do not fit the
  /// gradients that come (see below). Whether they do is asked once per tensor and step in between, for
  /// which the host of an accelerator waits.
  int64_t precondition_every = 1;
  double weight_decay = 0;
  bool maximize = false;

  OptionList options();
};

/// Tensors that the shape and the settings do not call for are not defined. Factors and roots have
/// one matrix for a matrix and a stack of them for a stack; they are float64 for float64 gradients,
/// float32 otherwise.
struct ShampooMoments {
  at::Tensor exp_avg;
  /// Moments G G^T of the rows and G^T G of the columns, in units of `unit` squared.
  at::Tensor left;
  at::Tensor right;
  /// The moments of the entries, where neither side has a factor.
  at::Tensor diagonal;
  /// The inverse roots in use.
  at::Tensor left_root;
  at::Tensor right_root;
  /// A power of two near the size of the gradients, one per matrix, so that squares of small and of
  /// large float32 gradients are in range; 0 while there were none but zeros.
  at::Tensor unit;
  /// The unit when the roots were computed, and the norm that the preconditioned average had then.
  at::Tensor root_unit;
  at::Tensor root_norm;

  StateTensors tensors();
};

/// Shampoo (Gupta, Koren, Singer 2018, arXiv:1802.09568, Algorithm 1) with an average M of the gradients
/// in the place of G: the displacement is
///
///     -lr (L + eps I)^(-1/4) M (R + eps I)^(-1/4)
///
/// Rotating the rows and the columns of all gradients rotates the displacements.
///
/// - Only one side has a factor: the exponent is -1/2. It is the paper's -1/(2k) for k = 1 factors,
///   and as with two the displacement does not depend on the scale of the gradients (up to eps).
/// - A vector is one column. Up to max_dim it has the factor of its rows, which is full-matrix AdaGrad
///   for beta2 = 1; this costs what the factor of a matrix of that height does, and keeps the rule
///   equivariant. What is longer (and a matrix with both sides longer) has the moments of its entries
///   only, as in AdaGrad and RMSprop, and is not equivariant.
/// - Three axes are a stack of matrices, each by itself. More are flattened to a matrix from the second
///   axis on.
/// - Eigenvalues of a factor below 1e-6 of the largest (in float32, below its rounding errors), whose
///   roots would blow up the errors of M, are raised to that.
/// - Old roots can make a step much too long: they were made of zeros (of a layer in front of one that
///   starts at zero, say) or of few gradients, and now one comes in a direction in which there was none.
///   Where a step would be more than 4 times as long as that with which the roots came, they are
///   recomputed before they are due, matrix by matrix.
///
/// Gradients must be finite.
struct ShampooRule {
  static constexpr const char* name = "DDCShampoo";
  static constexpr const char* help = "Shampoo that respects gauges";
  using Options = ShampooOptions;
  using State = ShampooMoments;

  static State init(const TensorView& view, const Options& options);
  static at::Tensor step(const at::Tensor& gradient, int64_t step, const TensorView& view,
                         State& state, const Options& options);
};
using DDCShampoo = Lifted<ShampooRule>;

}  // namespace ddc
