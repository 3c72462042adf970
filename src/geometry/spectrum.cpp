#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <ostream>

#include "ddc/geometry/curvature.h"
#include "geometry/completeness_orbits.h"
#include "geometry/loss_jacobian.h"
#include "geometry/tangents.h"

namespace ddc {
namespace {

/// Labels drawn from the model estimate a spectrum from so many samples per parameter on (paper, "Experimental
/// details").
constexpr double least_samples = 100;
/// Eigenvalues below this, relative to the largest, can be zero: of a factor's squared singular values, and of a
/// matrix that is known to rounding.
constexpr double small_of_factor = 1e-12;
constexpr double small_of_float = 1e-6;

/// A smaller gap than this does not tell zeros from what is small.
constexpr double clear_gap = 1e3;

/// The number of values (largest first) that count: down to the largest gap among those that are small, as
/// `structural_kernel` decides, or, where that is not clear, all that are above rounding. Below `noise` gaps mean
/// nothing.
struct Cut {
  int64_t rank = 0;
  double gap = 0;
};
Cut cut_of(const std::vector<double>& values, double small, double noise) {
  const auto size = static_cast<int64_t>(values.size());
  if (size == 0 || values.front() <= 0) return {};
  const double floor = noise * values.front();
  const auto value = [&](int64_t k) { return std::max(k < size ? values[k] : 0, floor); };
  if (values.back() > small * values.front()) return {size, value(size - 1) / value(size)};
  Cut best;
  for (int64_t k = 1; k < size; ++k) {
    const double gap = value(k - 1) / value(k);
    if (values[k] <= small * values.front() && gap > best.gap) best = {k, gap};
  }
  if (best.gap >= clear_gap) return best;
  while (best.rank < size && values[best.rank] > floor) ++best.rank;
  return best;
}

std::vector<double> doubles_of(const at::Tensor& values) {
  const auto contiguous = values.to(at::kCPU, at::kDouble).contiguous();
  const auto* data = contiguous.const_data_ptr<double>();
  return {data, data + contiguous.numel()};
}

/// Sums over tensors, largest first.
std::vector<std::pair<std::string, double>> by_tensor(const at::Tensor& shares,
                                                      const Parameters& table) {
  std::vector<std::pair<std::string, double>> result;
  int64_t column = 0;
  for (const auto& [name, tensor] : table) {
    const double share = shares.narrow(0, column, tensor.numel()).sum().item<double>();
    column += tensor.numel();
    if (share > 1e-9) result.emplace_back(name, share);
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return result;
}

constexpr const char* negative_note =
    "there are negative eigenvalues: no log-determinant and no effective rank, which would skip "
    "them; smallest is the most negative";

/// What all eigenvalues that are not zero give exactly.
void summarise_(Spectrum& result) {
  if (result.eigenvalues.empty()) return;
  double trace = 0;
  double log_determinant = 0;
  for (const double value : result.eigenvalues) {
    trace += value;
    log_determinant += std::log(std::max(value, std::numeric_limits<double>::min()));
  }
  double entropy = 0;
  for (const double value : result.eigenvalues) {
    const double share = value / trace;
    if (share > 0) entropy -= share * std::log(share);
  }
  result.smallest.value = result.eigenvalues.front();
  result.largest.value = result.eigenvalues.back();
  result.trace.value = trace;
  const bool positive = result.smallest.value > 0;
  const double unknown = std::numeric_limits<double>::quiet_NaN();
  result.log_determinant.value = positive ? log_determinant : unknown;
  result.effective_rank.value = positive ? std::exp(entropy) : unknown;
  if (!positive) result.notes.emplace_back(negative_note);
}

Spectrum dense_spectrum(const Curvature& curvature, const OrbitSpace& orbits) {
  const at::NoGradGuard no_grad;
  Spectrum result;
  result.method = "dense";
  const int64_t size = curvature.size();
  const bool single = curvature.dtype() != at::kDouble;
  const double rounding =
      single ? std::numeric_limits<float>::epsilon() : std::numeric_limits<double>::epsilon();
  auto matrix = curvature.triangle();
  const bool is_factor = matrix.defined();
  if (!is_factor) matrix = curvature.dense();
  const auto columns = matrix.norm(2, {0});
  // Axes that nothing depends on are told apart from the rest by being exactly zero.
  const auto alive = columns.ne(0).to(at::kDouble);
  std::vector<at::Tensor> removed{
      at::diag(1 - alive).index_select(1, alive.eq(0).nonzero().flatten())};
  const int64_t axes = removed.front().size(1);
  if (orbits.dimension > 0) removed.push_back(orbits.basis);
  const auto known = span_of(at::cat(removed, 1).t());
  result.dead = known.size(1) - orbits.dimension;
  // What is orthogonal to both. (The full factor: columns beyond the known ones.)
  auto rest = at::eye(size, at::kDouble);
  if (known.size(1) > 0) {
    rest = std::get<0>(at::linalg_qr(known, "complete"))
               .narrow(1, known.size(1), size - known.size(1));
  }
  if (axes > result.dead) {
    result.notes.emplace_back(std::to_string(axes) + " axes that no batch depends on, " +
                              std::to_string(axes - result.dead) + " of them along orbits");
  }
  if (rest.size(1) == 0) {
    result.zeros = 0;
    return result;
  }
  at::Tensor nulls;
  std::vector<double> values;
  if (is_factor) {
    const auto [u, sigma, v] = at::linalg_svd(matrix.matmul(rest), /*full_matrices=*/true);
    auto squares = sigma.square();
    if (squares.numel() < rest.size(1)) {
      squares = at::cat({squares, at::zeros({rest.size(1) - squares.numel()}, at::kDouble)});
    }
    values = doubles_of(squares);
    const double noise = static_cast<double>(size) * rounding;
    const auto cut = cut_of(values, single ? 1e-8 : small_of_factor, noise * noise);
    result.gap = cut.gap;
    nulls = rest.matmul(v.t().narrow(1, cut.rank, rest.size(1) - cut.rank));
    result.zeros = rest.size(1) - cut.rank;
    values.resize(cut.rank);
    std::reverse(values.begin(), values.end());
  } else {
    const auto small = rest.t().matmul(matrix).matmul(rest);
    const auto [all, vectors] = at::linalg_eigh((small + small.t()) / 2);
    const auto order = all.abs().argsort(-1, /*descending=*/true);
    const auto sizes = doubles_of(all.abs().index_select(0, order));
    const auto cut =
        cut_of(sizes, single ? small_of_float : 1e-11, static_cast<double>(size) * rounding);
    result.gap = cut.gap;
    result.zeros = rest.size(1) - cut.rank;
    nulls = rest.matmul(vectors.index_select(1, order.narrow(0, cut.rank, *result.zeros)));
    values = doubles_of(all.index_select(0, order.narrow(0, 0, cut.rank)));
    std::sort(values.begin(), values.end());
  }
  if (result.gap < clear_gap) {
    result.notes.emplace_back(
        "no clear gap between what is zero and what is small: only what is below rounding counts "
        "as zero");
  }
  result.zeros_in = by_tensor(nulls.square().sum(1), curvature.table());
  result.eigenvalues = std::move(values);
  result.errors.assign(result.eigenvalues.size(), 0);
  summarise_(result);
  return result;
}

Spectrum iterative_spectrum(const Curvature& curvature, const OrbitSpace& orbits,
                            const SpectrumOptions& options) {
  const at::NoGradGuard no_grad;
  Spectrum result;
  const int64_t left = curvature.size() - orbits.dimension;
  auto matrix = curvature.as_operator();
  Deflation projection = orbits.without;
  int64_t dimension = left;
  const auto factor = curvature.factor();
  const bool in_outputs = factor && factor->rows < left;
  if (in_outputs) {
    // R R^T has the eigenvalues of R^T R that are not zero, and vectors that are as short as there are outputs.
    result.method = "lanczos in the space of outputs";
    matrix = LinearOperator::symmetric(
        factor->rows,
        [factor](const at::Tensor& v) { return factor->product(factor->transposed(v)); },
        factor->dtype);
    projection = {};
    dimension = factor->rows;
  } else {
    result.method = "lanczos";
  }
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  const auto start = at::randn({matrix.columns}, generator, at::kDouble).to(matrix.dtype);
  const auto ritz =
      lanczos(matrix, start, options.iterations, options.tolerance, projection, Exhausted::restart);
  result.products = ritz.products;
  if (ritz.values.empty()) {
    result.zeros = left;
    return result;
  }
  const double scale = std::max(std::abs(ritz.values.front()), std::abs(ritz.values.back()));
  const double small = matrix.dtype == at::kDouble ? 1e-13 : 1e-6;
  const double zero = small * scale;
  const auto counts = [&](double value, double error) {
    return std::abs(value) > zero && std::abs(value) > error;
  };
  for (size_t k = 0; k < ritz.values.size(); ++k) {
    const bool converged = ritz.errors[k] <= std::max(options.tolerance, small) * scale;
    if (!converged || !counts(ritz.values[k], ritz.errors[k])) continue;
    result.eigenvalues.push_back(ritz.values[k]);
    result.errors.push_back(ritz.errors[k]);
  }
  result.largest = {ritz.values.back(), ritz.errors.back()};
  // No Ritz value is below the smallest eigenvalue: a negative one is no error of the estimate.
  bool indefinite = ritz.values.front() < -zero;
  for (size_t k = 0; k < ritz.values.size(); ++k) {
    if (!indefinite && !(ritz.values[k] > zero)) continue;
    result.smallest = {ritz.values[k], ritz.errors[k]};
    break;
  }
  if (ritz.complete) {
    int64_t above = 0;
    for (const double value : ritz.values) above += std::abs(value) > zero ? 1 : 0;
    result.zeros = left - above;
    result.notes.emplace_back(
        "what is orthogonal to all vectors is null: all eigenvalues were found, as often as they "
        "are there");
  } else {
    result.notes.emplace_back(
        "zeros were not counted, and an eigenvalue that is there several times may be listed once; "
        "a smallest eigenvalue that has not converged is an upper bound");
  }
  const auto quadrature = lanczos_quadrature(
      matrix, dimension, options.probes, options.quadrature_steps, options.seed + 1, projection);
  result.products += quadrature.products;
  result.density = quadrature.density;
  result.trace = quadrature.trace_of([](double value) { return value; });
  indefinite = indefinite || quadrature.density.front().first < -zero;
  if (indefinite) {
    const double unknown = std::numeric_limits<double>::quiet_NaN();
    result.log_determinant.value = unknown;
    result.effective_rank.value = unknown;
    result.notes.emplace_back(negative_note);
    return result;
  }
  result.log_determinant =
      quadrature.trace_of([&](double value) { return value > zero ? std::log(value) : 0; });
  const auto entropy =
      quadrature.trace_of([&](double value) { return value > zero ? value * std::log(value) : 0; });
  const double trace = result.trace.value;
  const double exponent = std::log(trace) - entropy.value / trace;
  result.effective_rank.value = std::exp(exponent);
  result.effective_rank.error =
      result.effective_rank.value *
      std::hypot(entropy.error / trace, result.trace.error * (1 + entropy.value / trace) / trace);
  return result;
}

}  // namespace

OrbitSpace orbit_space(const std::vector<Gauge>& gauges, const Parameters& params,
                       const Curvature& curvature, const std::vector<NamedDirection>& others,
                       int64_t memory) {
  const at::NoGradGuard no_grad;
  const Trainable trainable(curvature.table());
  const int64_t size = trainable.size();
  OrbitSpace result;
  int64_t most = std::ssize(others);
  for (const auto& gauge : gauges) most += dimension(gauge, params);
  if (most == 0) return result;
  const auto all = static_cast<double>(most) * 8 * 4;
  int64_t entries = 0;
  for (const auto& entry : params) entries += entry.tensor.numel();
  if (all * static_cast<double>(entries) <= static_cast<double>(memory)) {
    std::vector<at::Tensor> rows{at::zeros({0, size}, at::kDouble)};
    for (const auto& gauge : gauges) rows.push_back(tangents_of({gauge}, params, trainable).rows);
    // Sums of tangents of several gauges may leave alone what each of them moves.
    const auto together = tangents_of(gauges, params, trainable);
    std::vector<std::string> names;
    for (const auto& gauge : gauges) names.push_back(gauge.name);
    names.emplace_back("several gauges together");
    rows.push_back(together.rows);
    for (const auto& other : others) {
      TORCH_CHECK_VALUE(other.direction.dim() == 1 && other.direction.numel() == size,
                        "direction '", other.name, "' must have shape [", size, "], has ",
                        other.direction.sizes());
      names.push_back(other.name);
      const auto row = other.direction.to(at::kCPU, at::kDouble).view({1, -1});
      rows.push_back(row / row.norm());
    }
    check_null(
        curvature,
        [&](std::optional<size_t> k, const at::Generator& generator) {
          const auto of = k ? rows[*k + 1] : at::cat(rows);
          return at::randn({1, of.size(0)}, generator, at::kDouble).matmul(of).squeeze(0);
        },
        names);
    result.basis = at::zeros({size, 0}, at::kDouble);
    for (size_t k = 0; k + 1 < rows.size(); ++k) {
      auto fresh = rows[k + 1];
      if (fresh.size(0) > 0) {
        for (int64_t again = 0; again < 2; ++again) {
          fresh = fresh - fresh.matmul(result.basis).matmul(result.basis.t());
        }
        const auto span = span_of(fresh);
        result.basis = at::cat({result.basis, span}, 1);
      }
      const int64_t added = result.basis.size(1) - result.dimension;
      if (added > 0 || k < gauges.size()) result.gauges.emplace_back(names[k], added);
      result.dimension += added;
    }
    // Once more together: what was orthogonal to rounding piece by piece is so as a whole.
    result.basis = std::get<0>(at::linalg_qr(result.basis, "reduced"));
    result.without = [basis = result.basis](const at::Tensor& vector) {
      const auto wide = vector.to(at::kDouble);
      return (wide - basis.mv(basis.t().mv(wide))).to(vector.scalar_type());
    };
    return result;
  }
  TORCH_CHECK_VALUE(others.empty(), "direction '", others.front().name,
                    "': tangents of all orbits take more than option memory (", memory,
                    " bytes), and without a matrix only gauges can be removed");
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(0);
  const auto orbits =
      std::make_shared<Orbits>(gauges, params, trainable, at::ones({size}, at::kDouble), generator);
  result.dimension = orbits->dimension(generator);
  std::vector<std::string> names;
  for (const auto& gauge : gauges) {
    result.gauges.emplace_back(gauge.name, dimension(gauge, params));
    names.push_back(gauge.name);
  }
  check_null(
      curvature,
      [&](std::optional<size_t> k, const at::Generator& drawing) {
        if (!k) return orbits->random_tangent(drawing);
        return Orbits({gauges[*k]}, params, trainable, at::ones({size}, at::kDouble), drawing)
            .random_tangent(drawing);
      },
      names);
  result.without = [orbits](const at::Tensor& vector) {
    return orbits->without(vector.to(at::kCPU, at::kDouble)).to(vector.options());
  };
  return result;
}

namespace {

/// Independent samples per direction that is left. Labels are drawn for the same sample, whose rows span no more than
/// its classes whatever their number.
double samples_per_parameter(const Curvature& curvature, const OrbitSpace& orbits) {
  const int64_t left = curvature.size() - orbits.dimension;
  return static_cast<double>(curvature.samples()) / static_cast<double>(std::max<int64_t>(1, left));
}

bool too_few(const Curvature& curvature, const OrbitSpace& orbits) {
  return curvature.kind() == CurvatureKind::monte_carlo_fisher &&
         samples_per_parameter(curvature, orbits) < least_samples;
}

}  // namespace

void check_samples(const Curvature& curvature, const OrbitSpace& orbits,
                   const SpectrumOptions& options) {
  TORCH_CHECK_VALUE(!too_few(curvature, orbits) || options.few_samples,
                    "monte_carlo_fisher: ", curvature.samples(), " samples are ",
                    samples_per_parameter(curvature, orbits), " per parameter (",
                    curvature.size() - orbits.dimension, "), and a spectrum needs ", least_samples,
                    " (several labels of one sample are no further samples): take more data, a "
                    "smaller block, the exact Fisher matrix (gauss_newton), or allow few_samples");
}

Spectrum spectrum(const Curvature& curvature, const OrbitSpace& orbits,
                  const SpectrumOptions& options) {
  check_samples(curvature, orbits, options);
  const bool dense =
      curvature.size() <= options.dense_up_to && (orbits.dimension == 0 || orbits.basis.defined());
  auto result =
      dense ? dense_spectrum(curvature, orbits) : iterative_spectrum(curvature, orbits, options);
  result.parameters = curvature.size();
  result.removed = orbits.dimension;
  result.removed_by = orbits.gauges;
  result.samples = curvature.samples();
  result.samples_per_parameter = samples_per_parameter(curvature, orbits);
  result.few_samples = too_few(curvature, orbits);
  if (result.few_samples) {
    result.notes.emplace_back(
        "few_samples was allowed: the ends of this spectrum are of the sample, not of "
        "the model");
  }
  return result;
}

std::ostream& operator<<(std::ostream& out, const Spectrum& spectrum) {
  const auto number = [&](const char* name, const Bounded& bounded) {
    out << name << ' ' << bounded.value;
    if (bounded.error > 0) out << " +- " << bounded.error;
    out << '\n';
  };
  out << spectrum.parameters << " parameters, " << spectrum.samples << " samples, "
      << spectrum.method;
  if (spectrum.products > 0) out << ", " << spectrum.products << " products";
  out << '\n';
  number("largest", spectrum.largest);
  number("smallest above zero", spectrum.smallest);
  number("trace", spectrum.trace);
  number("log-determinant", spectrum.log_determinant);
  number("effective rank", spectrum.effective_rank);
  out << spectrum.removed << " directions along orbits removed";
  for (const auto& [name, count] : spectrum.removed_by) {
    if (count > 0) out << "\n  " << count << "  " << name;
  }
  out << '\n';
  if (spectrum.dead > 0) out << spectrum.dead << " axes that no batch depends on\n";
  if (spectrum.zeros) {
    out << *spectrum.zeros << " zeros left";
    if (spectrum.gap > 0 && *spectrum.zeros > 0) out << " (gap " << spectrum.gap << ")";
    for (const auto& [name, share] : spectrum.zeros_in) out << "\n  " << share << "  " << name;
    out << '\n';
  }
  for (const auto& note : spectrum.notes) out << "note: " << note << '\n';
  return out;
}

}  // namespace ddc
