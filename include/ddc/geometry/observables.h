#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ddc/enum_names.h"
#include "ddc/gauge/gauge.h"
#include "ddc/parameters.h"

// Observables of activations, weights and trajectories on the way to a minimum, and the rates at which they vanish.

namespace ddc {

// ---- Activations and weights ---------------------------------------------------------------------

struct ActivationSpectrum {
  /// Smallest singular value of the matrix of activations, one row per input (and position).
  double sigma_min = 0;
  double sigma_max = 0;
  /// exp(H(p)), where p are the singular values over their sum.
  double effective_rank = 0;
};
/// The last axis of the activations is that of channels. Throws if some are not finite.
ActivationSpectrum activation_spectrum(const at::Tensor& activations);

/// Units whose pre-activation never crosses zero over the inputs: the paper's dead units.
struct DeadUnits {
  int64_t units = 0;
  int64_t never_on = 0;
  /// Linear on all of the inputs.
  int64_t always_on = 0;
  int64_t dead() const { return never_on + always_on; }
};
DeadUnits dead_units(const at::Tensor& preactivations);

/// Per unit the norm of what enters times the norm of what leaves it, |in|^degree |out|: what no rescaling changes.
/// The units are the first axis of `in` (biases are a column of it) and the last of `out`. Those below an absolute
/// floor are dead: a collapse that is nearly uniform hides from measures relative to the median.
at::Tensor joint_norms(const at::Tensor& in, const at::Tensor& out, double degree = 1);

/// The mean over directions, the columns of an orthonormal matrix, of the square of the largest entry: 1 if each is
/// an axis. Unset if there is no direction. This is the paper's formula. It depends on the basis: of singular
/// directions with one value, such as zero, that is arbitrary, and a space that axes span may get any value.
std::optional<double> axis_alignment(const at::Tensor& directions);

/// The same of the space and not of its basis: tr(diag(P)^2) / rank(P) with the projection P on it, 1 if and only if
/// axes span it. Columns must be orthonormal. Unset if there is no direction.
std::optional<double> space_alignment(const at::Tensor& directions);

/// The left singular directions of `weight` whose singular value is below `floor` times the largest. Throws if it has
/// fewer columns than rows: directions beyond the number of columns are zero whatever the weight is.
at::Tensor dead_directions(const at::Tensor& weight, double floor);

/// The largest ratio between neighbours of the positive numbers among `values` in their order, and how many lie
/// below it: what separates a cluster.
struct ClusterGap {
  double ratio = 1;
  int64_t below = 0;
};
ClusterGap cluster_gap(const at::Tensor& values);

// ---- Trajectories --------------------------------------------------------------------------------

/// The length of the part of a displacement that is orthogonal to the orbits: what a step adds to the arc length on
/// the quotient. `displacement` has the names of the parameters that moved.
double horizontal_length(const std::vector<Gauge>& gauges, const Parameters& params,
                         const Parameters& displacement);

/// Where the paper's bound on the bias of a discrete step holds (lemma "Validity regime"): lr kappa / tau <= 0.1,
/// with the condition number kappa of the preconditioner and tau = 1 / (1 - beta2), the time scale of second
/// moments.
struct StepValidity {
  double kappa = 0;
  double tau = 0;
  double ratio = 0;
  bool valid() const { return ratio <= 0.1; }
};
StepValidity step_validity(const Parameters& preconditioner, double lr, double beta2);

// ---- Rates ---------------------------------------------------------------------------------------

enum class RateVerdict {
  readable,
  not_asymptotic,  ///< no window in which a power law holds
  ascending,       ///< the observable moves away from the minimum
};

/// Quantity that is fitted, and so what the slope says of the order k.
enum class RateOf {
  curvature,  ///< an eigenvalue of the Fisher matrix: slope 2 (k - 1)
  loss,       ///< slope 2 k
};

struct RateOptions {
  RateOf of = RateOf::curvature;
  /// The arc length at which the minimum is; found by the fit if it is not given.
  std::optional<double> end = {};
  /// A window has at least so many points, and so many decades of the observable and of the distance.
  int64_t min_points = 20;
  double min_decades = 0.5;
  /// Share of the way of log(observable) that is up; how far the slopes of halves of the window may differ; half
  /// width of the confidence interval. The latter two are relative to the slope.
  double max_ascent = 0.02;
  double max_drift = 0.1;
  double max_uncertainty = 0.1;
  /// R squared of the fit; where the minimum is put does not make up for a jump or a second power.
  double min_r_squared = 0.99;
  double confidence = 0.95;
  int64_t resamples = 400;
  uint64_t seed = 0;
};

struct Rate {
  RateVerdict verdict = RateVerdict::not_asymptotic;
  /// In words, of a verdict that is not `readable`.
  std::string reason;
  /// Slope of log(observable) against log(distance to the minimum), with its confidence interval from a bootstrap
  /// over blocks of residuals. If the verdict is not `readable` they are those of the whole trajectory, if it was
  /// tried.
  double slope = 0;
  double low = 0;
  double high = 0;
  /// k, and the learning coefficient 1 / (2 k) of a monomial of that order.
  double order = 0;
  double learning_coefficient = 0;
  /// The arc length at which the minimum is.
  double end = 0;
  /// The window: the first point, and their number.
  int64_t first = 0;
  int64_t points = 0;
  /// 1 - (sum of squares of residuals) / (that of log(observable)); standard deviation of the residuals: the path
  /// noise.
  double r_squared = 0;
  double path_noise = 0;
};

/// The rate at which an observable vanishes along a trajectory. `arc` is the arc length on the quotient at every
/// point, and never falls. The longest window at the end of the trajectory is read in which the observable
/// descends, its local slope stands still, and the slope is known well enough.
Rate rate(const std::vector<double>& arc, const std::vector<double>& values,
          const RateOptions& options = {});

}  // namespace ddc

template <>
inline constexpr std::array ddc::EnumNames<ddc::RateVerdict> = {"readable", "not_asymptotic",
                                                                "ascending"};
template <>
inline constexpr std::array ddc::EnumNames<ddc::RateOf> = {"curvature", "loss"};
