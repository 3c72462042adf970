#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddc/discover/evaluate.h"
#include "ddc/enum_names.h"
#include "ddc/gauge/gauge.h"
#include "ddc/parameters.h"

// Curvature of a model as linear operators, and what can be read off their spectra, modulo a group of symmetries.
//
//     const ddc::Curvature fisher(params, evaluate, {.batches = 8});
//     const auto orbits = ddc::orbit_space(gauges, params, fisher);
//     std::cout << ddc::spectrum(fisher, orbits).smallest;
//
// Nothing is stored as a matrix but for blocks that are small enough (SpectrumOptions::dense_up_to).

namespace ddc {

/// A linear map, given by two functions: its product with a vector, and that of its transpose. A symmetric one
/// has the same twice.
struct LinearOperator {
  int64_t rows = 0;
  int64_t columns = 0;
  std::function<at::Tensor(const at::Tensor& vector)> product;
  std::function<at::Tensor(const at::Tensor& vector)> transposed;
  at::ScalarType dtype = at::kDouble;

  static LinearOperator symmetric(int64_t size,
                                  std::function<at::Tensor(const at::Tensor&)> product,
                                  at::ScalarType dtype = at::kDouble);
};

enum class CurvatureKind {
  /// J^T H J with the Hessian H of the loss by the outputs. Of cross-entropy it is the exact Fisher matrix.
  gauss_newton,
  /// The same with labels that are drawn from the model in place of their expectation ("true" Fisher).
  monte_carlo_fisher,
  /// With the labels of the data. It is no Fisher matrix.
  empirical_fisher,
  hessian,
};

/// Kind of the loss as a function of the outputs. It is found from its second derivative.
enum class Likelihood {
  softmax,   ///< cross-entropy of classes, any weights, masks, shifts and label smoothing
  diagonal,  ///< a sum over outputs: squared error, logistic loss
  other,
};

struct CurvatureOptions {
  CurvatureKind kind = CurvatureKind::gauss_newton;
  /// Batches 0 to batches - 1 are summed over, each with a weight by how many samples it has: the loss of a
  /// batch must be the mean over its samples. (Of a sum the weights would be wrong, and nothing here can tell: what
  /// the loss of two batches together is, only their owner knows. The Python package looks.)
  int64_t batches = 1;
  /// A block: the parameters with these names; empty: all that require gradients.
  std::vector<std::string> tensors = {};
  /// Labels that monte_carlo_fisher draws per sample, and their seed.
  int64_t labels = 1;
  uint64_t seed = 0;
};

/// Curvature of the mean loss over some batches, by the parameters that require gradients (tied ones count once),
/// at the values that they have: after a step it is made anew. Vectors have the entries of all tensors, flattened,
/// in the order of the table, in the widest dtype of the parameters.
///
/// A product takes one evaluation of every batch, forward differentiation and a way back. Needed at once are the
/// graph of one batch and about four vectors.
class Curvature {
 public:
  /// Evaluates every batch once. Throws if outputs are missing, or not finite; if labels are to be drawn and the loss
  /// is not the cross-entropy of classes; and if `tensors` has a name that no parameter has.
  Curvature(const Parameters& params, Evaluate evaluate, const CurvatureOptions& options = {});
  ~Curvature();
  Curvature(Curvature&&) noexcept;

  CurvatureKind kind() const;
  Likelihood likelihood() const;
  /// Number of parameters, and which.
  int64_t size() const;
  const Parameters& table() const;
  at::ScalarType dtype() const;
  /// Terms of the mean: positions with a label, or samples.
  int64_t samples() const;
  int64_t labels() const;
  /// Rows of `factor`; 0 if there is none.
  int64_t rows() const;

  at::Tensor product(const at::Tensor& vector) const;
  LinearOperator as_operator() const;
  /// Gradients of the loss of every batch, in float64.
  std::vector<at::Tensor> gradients() const;
  /// The Jacobian of the outputs of all batches, one after the other.
  LinearOperator jacobian() const;
  /// R with R^T R = this: the Jacobian of the outputs times a root of the Hessian of the loss. All kinds but
  /// the Hessian have one, if the likelihood is not `other`.
  std::optional<LinearOperator> factor() const;

  /// An upper triangular matrix with R^T R = this, in float64; undefined if there is no factor. Its small
  /// singular values are known to rounding, where eigenvalues are to its square root.
  at::Tensor triangle() const;
  /// As a matrix, in float64.
  at::Tensor dense() const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// Directions along which nothing changes, with their names: the tangents of orbits.
struct OrbitSpace {
  /// Columns, orthonormal, float64: [parameters, dimension]. Undefined if it would take more than `memory`.
  at::Tensor basis;
  int64_t dimension = 0;
  /// Gauges in their order, and what each adds to the span of those before it.
  std::vector<std::pair<std::string, int64_t>> gauges;
  /// The part of a vector that is orthogonal to all orbits.
  std::function<at::Tensor(const at::Tensor& vector)> without;
};

/// A direction that is no gauge's, found by somebody else (norm_input_scale).
struct NamedDirection {
  std::string name;
  /// One entry per parameter of the table.
  at::Tensor direction;
};

/// The tangents of the gauges' orbits, as far as they leave alone what is not in the operator's block, in the
/// metric of the weights as they stand. (Put them at their canonical place for one that does not depend on where on
/// the orbit they were.) Up to `memory` bytes as a matrix, otherwise least squares at every use. `params` are those
/// of the whole model.
///
/// Throws, naming the gauge or direction, if the curvature along a random tangent is more than rounding: names and
/// shapes of another model's group may fit by chance, and what is no symmetry of this loss must not be removed. A
/// Hessian, and a Gauss-Newton matrix of likelihood `other`, may see tangents where the gradient is not zero; of these
/// it is the loss of every batch that must not change along them.
OrbitSpace orbit_space(const std::vector<Gauge>& gauges, const Parameters& params,
                       const Curvature& curvature, const std::vector<NamedDirection>& others = {},
                       int64_t memory = int64_t{1} << 30);

struct SpectrumOptions {
  /// Up to so many parameters all eigenvalues are found, above it both ends.
  int64_t dense_up_to = 2048;
  /// Steps of Lanczos' method at most, and the residual, relative to the largest eigenvalue, that counts as zero.
  int64_t iterations = 200;
  double tolerance = 1e-8;
  /// Random vectors of the estimates of trace, log-determinant and effective rank, and steps for each.
  int64_t probes = 8;
  int64_t quadrature_steps = 50;
  uint64_t seed = 0;
  /// Whether an estimate from fewer than 100 samples per parameter is allowed (monte_carlo_fisher). Several labels of
  /// one sample are not independent samples, and do not count.
  bool few_samples = false;
};

/// A number, and how far from the truth it may be: zero if it is exact to rounding, a bound for the ends of the
/// spectrum (an eigenvalue is within `error`), a standard error for what is estimated with random vectors.
struct Bounded {
  double value = 0;
  double error = 0;
};

struct Spectrum {
  /// "dense", "lanczos", or "lanczos in the space of outputs", which has the same eigenvalues above zero.
  std::string method;
  int64_t parameters = 0;
  /// Directions that were removed before: the dimension of the orbits.
  int64_t removed = 0;
  std::vector<std::pair<std::string, int64_t>> removed_by;
  /// Axes of parameters that no batch depends on (dense only).
  int64_t dead = 0;
  /// Eigenvalues that are zero, beside `removed` and `dead`; unset if they were not counted.
  std::optional<int64_t> zeros;
  /// The tensors these are in: the sum over them of what each has there. Largest first.
  std::vector<std::pair<std::string, double>> zeros_in;
  /// Smallest eigenvalue above zero over the largest that counts as zero: how clear the cut is (dense only).
  double gap = 0;
  /// All that are not zero, smallest first; of "lanczos" those that have converged, from both ends.
  std::vector<double> eigenvalues;
  std::vector<double> errors;
  Bounded smallest;
  Bounded largest;
  Bounded trace;
  /// Log-determinant of what is above zero; NaN, with a note, if there are negative eigenvalues. `smallest` is the
  /// most negative one then.
  Bounded log_determinant;
  /// exp(entropy) of the eigenvalues over their sum; NaN as above.
  Bounded effective_rank;
  /// Nodes and weights of the density (lanczos only); weights sum to the number of directions.
  std::vector<std::pair<double, double>> density;
  int64_t samples = 0;
  double samples_per_parameter = 0;
  /// Whether these were too few, and `few_samples` allowed them.
  bool few_samples = false;
  int64_t products = 0;
  std::vector<std::string> notes;
};

/// In words: both ends, what was removed and what is null, with names.
std::ostream& operator<<(std::ostream& out, const Spectrum& spectrum);

/// The spectrum of the curvature on what is orthogonal to the orbits.
Spectrum spectrum(const Curvature& curvature, const OrbitSpace& orbits = {},
                  const SpectrumOptions& options = {});

/// Throws if `spectrum` would refuse the number of samples.
void check_samples(const Curvature& curvature, const OrbitSpace& orbits = {},
                   const SpectrumOptions& options = {});

// ---- Eigenvalues of symmetric operators ----------------------------------------------------------

/// The projection on what is left when known null directions are taken out; empty: on everything.
using Deflation = std::function<at::Tensor(const at::Tensor&)>;

struct Ritz {
  /// Smallest first; an eigenvalue is within `errors` of each.
  std::vector<double> values;
  std::vector<double> errors;
  /// Squares of the first components: the weights of Gauss' quadrature with the start vector's measure.
  std::vector<double> weights;
  int64_t products = 0;
  /// The Krylov space is exhausted: the values are all eigenvalues that the start vector has a part in, each once.
  bool exhausted = false;
  /// There is nothing else: what is orthogonal to all vectors is null. Values then come as often as they are
  /// eigenvalues, but for zero.
  bool complete = false;
};

/// Way on for Lanczos' method when the Krylov space of its start vector is exhausted.
enum class Exhausted {
  stop,
  /// Goes on from a random vector that is orthogonal to all before. A Krylov space has one vector per distinct
  /// eigenvalue; this finds the others of a multiple one.
  restart,
};

/// Lanczos' method with full reorthogonalisation (twice), from `start`; memory: `iterations` vectors. It ends early
/// when both ends (of what has no negative eigenvalue, the largest and the smallest above zero) have converged to
/// `tolerance` times the largest in size, unless that is negative.
Ritz lanczos(const LinearOperator& matrix, const at::Tensor& start, int64_t iterations,
             double tolerance, const Deflation& projection = {},
             Exhausted exhausted = Exhausted::stop);

struct EigenPairs {
  std::vector<double> values;
  std::vector<double> errors;
  /// Orthonormal columns.
  at::Tensor vectors;
  int64_t products = 0;
};

/// The smallest eigenvalues by LOBPCG (Knyazev, 2001), on the range of the projection: what is known to be null is
/// deflated, and neither it nor anything inverted can turn up. Memory: nine vectors per eigenvalue.
EigenPairs lobpcg_smallest(const LinearOperator& matrix, int64_t count, int64_t iterations,
                           double tolerance, uint64_t seed = 0, const Deflation& projection = {});

struct Quadrature {
  /// (eigenvalue, number of eigenvalues there), smallest first.
  std::vector<std::pair<double, double>> density;
  /// The trace of a function of the matrix, from the random vectors.
  Bounded trace_of(const std::function<double(double)>& function) const;
  /// Per random vector.
  std::vector<std::vector<std::pair<double, double>>> nodes;
  int64_t products = 0;
};

/// Stochastic Lanczos quadrature (Ubaru, Chen, Saad, 2017): the density of `dimension` eigenvalues, from random
/// vectors.
Quadrature lanczos_quadrature(const LinearOperator& matrix, int64_t dimension, int64_t probes,
                              int64_t steps, uint64_t seed = 0, const Deflation& projection = {});

}  // namespace ddc

template <>
inline constexpr std::array ddc::EnumNames<ddc::CurvatureKind> = {
    "gauss_newton", "monte_carlo_fisher", "empirical_fisher", "hessian"};
template <>
inline constexpr std::array ddc::EnumNames<ddc::Likelihood> = {"softmax", "diagonal", "other"};
