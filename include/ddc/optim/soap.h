#pragma once

#include <optional>

#include "ddc/optim/lifted.h"

namespace ddc {

/// Options of SOAP. The defaults are those of the authors' implementation (github.com/nikhilvyas/SOAP), but for max_dim
/// (theirs is 10000).
struct SoapOptions {
  double lr = 3e-3;
  double beta1 = 0.95;
  double beta2 = 0.95;
  /// Decay of Shampoo's factors; beta2 if not given.
  std::optional<double> shampoo_beta = std::nullopt;
  double eps = 1e-8;
  /// A longer side keeps its own basis.
  int64_t max_dim = 8192;
  /// The basis is recomputed at steps 1, 1 + precondition_every, ...
  int64_t precondition_every = 10;
  /// Whether a vector has a factor, as if it were a matrix of one column. If not, it gets plain Adam.
  bool precondition_vectors = false;
  double weight_decay = 0;
  bool maximize = false;

  OptionList options();
};

/// Tensors that the shape and the settings do not call for are not defined. Those of factors have one
/// matrix for a matrix and a stack of them for a stack; they are float64 for float64 gradients, float32
/// otherwise.
struct SoapMoments {
  /// In the basis of the gradient.
  at::Tensor exp_avg;
  /// In the basis of eigenvectors, in units of `unit` squared. Shaped like the gradient seen as
  /// matrices, and of its type.
  at::Tensor exp_avg_sq;
  /// Moments G G^T of the rows and G^T G of the columns, in units of `unit` squared.
  at::Tensor left;
  at::Tensor right;
  /// The eigenvectors in use, in columns, and their eigenvalues when they were computed: 0 where they
  /// did not stand out of rounding errors.
  at::Tensor left_basis;
  at::Tensor right_basis;
  at::Tensor left_values;
  at::Tensor right_values;
  /// A power of two near the size of the gradients, one per matrix, so that squares of small and of
  /// large float32 gradients are in range; 0 while there were none but zeros.
  at::Tensor unit;
  /// All matrices are known to have a basis. Not saved: asking again makes the host of an accelerator
  /// wait once.
  bool has_bases = false;

  StateTensors tensors();
};

/// SOAP (Vyas et al. 2024, arXiv:2409.11321, Algorithm 3): Adam, bias-corrected, in the eigenbasis of Shampoo's
/// factors. Three axes are a stack of matrices, each by itself; more are flattened to a matrix from the second on.
///
/// It commutes with rotations of the rows and the columns of all gradients. For this it differs from
/// the authors' implementation:
///
/// - The first gradient makes the basis and a step; there, the basis only. (A matrix that has seen
///   nothing but zeros gets its basis with the first gradient that is not zero.)
/// - The basis is recomputed by an eigendecomposition in float64, not by a step of power iteration and
///   QR, and from factors that know the present gradient. The first one is made of the gradient's own
///   products in float64, whatever its type.
/// - The second moments go along with the basis: each becomes the average of the old ones, weighted
///   with the squared cosines between the new eigenvector and the old ones. These do not know the
///   signs and the order of eigenvectors, which an eigensolver chooses as it likes.
/// - Eigenvectors whose eigenvalues are within 1e-5 of the largest of each other, or that
///   are 0 (as a tall matrix has them at the beginning), are not told apart by an eigensolver, which
///   chooses any rotation of them. They share the mean of their second moments, and then it makes no
///   difference which.
/// - An entry whose second moment is that of rounding errors does not move: it is 0 in exact
///   arithmetic, as off the diagonal in the first step, where the basis diagonalises the gradient, or
///   in directions in which gradients never point. Adam's quotient of the errors may be of any size.
///
/// Gradients must be finite.
struct SoapRule {
  static constexpr const char* name = "DDCSoap";
  static constexpr const char* help = "SOAP that respects gauges";
  using Options = SoapOptions;
  using State = SoapMoments;

  static State init(const TensorView& view, const Options& options);
  static at::Tensor step(const at::Tensor& gradient, int64_t step, const TensorView& view,
                         State& state, const Options& options);
};
using DDCSoap = Lifted<SoapRule>;

}  // namespace ddc
