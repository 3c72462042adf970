#include "ddc/geometry/completeness.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "geometry/completeness_orbits.h"
#include "geometry/kernel_probe.h"
#include "geometry/loss_jacobian.h"
#include "geometry/rank.h"
#include "geometry/tangents.h"

namespace ddc {
namespace {

/// How far a tangent of length one may stick out of the kernel in float64: far more than rounding, and
/// far less than what a wrong exponent does.
constexpr double in_kernel = 1e-6;
/// Settings of the estimate: the iteration ends where so little is seen, relative to the start; the share of
/// all parameters above which a bound says nothing.
constexpr double nothing_seen = 1e-12;
constexpr double too_loose = 0.2;

void check_in_kernel(const std::string& gauge, double distance, double tolerance) {
  TORCH_CHECK(distance <= tolerance, "completeness: gauge '", gauge,
              "' moves what the loss sees: a tangent of length 1 is ", distance,
              " away from the directions that no batch notices (at most ", tolerance,
              "); gate(gauge, ...) tells more");
}

/// Sums of `shares`, one per entry, over tensors.
std::vector<Completeness::Share> by_tensor(const at::Tensor& shares, const Trainable& trainable) {
  std::vector<Completeness::Share> result;
  int64_t column = 0;
  for (const auto& [name, tensor] : trainable.table()) {
    const double share = shares.narrow(0, column, tensor.numel()).sum().item<double>();
    column += tensor.numel();
    if (share > 1e-9) result.push_back({name, share});
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const auto& a, const auto& b) { return a.dimensions > b.dimensions; });
  return result;
}

/// Counts what the tangents explain and what is dead. Returns the span of tangents beside the dead axes.
at::Tensor count_known_(const Tangents& tangents, const at::Tensor& alive, Completeness& result) {
  auto span = span_of(tangents.rows);
  result.explained = span.size(1);
  const int64_t dead = alive.eq(0).sum().item<int64_t>();
  if (dead == 0) return span;
  // Dead parameters are axes. Their span with the tangents is that of the axes and of what the tangents
  // have beside them.
  auto beside = span_of(tangents.rows * alive);
  result.dead = dead + beside.size(1) - result.explained;
  return beside;
}

Completeness exact(const Tangents& tangents, const Parameters& params, const Trainable& trainable,
                   const Evaluate& evaluate, const CompletenessOptions& options) {
  const auto kernel = structural_kernel(params, evaluate, {.seed = options.seed});
  const at::NoGradGuard no_grad;
  const auto outside = tangents.rows - tangents.rows.matmul(kernel.basis).matmul(kernel.basis.t());
  if (!tangents.gauge.empty()) {
    const auto distances = outside.norm(2, {1});
    const auto worst = distances.argmax().item<int64_t>();
    // Noise turns the kernel by about the inverse of the gap.
    check_in_kernel(tangents.gauge[worst], distances[worst].item<double>(),
                    std::max(in_kernel, 30 / kernel.gap));
  }

  Completeness result;
  result.method = "exact";
  result.parameters = kernel.parameters;
  result.kernel = static_cast<double>(kernel.dimension);
  result.gap = kernel.gap;
  const auto alive = kernel.column_norms.ne(0).to(at::kDouble);
  const auto beside = count_known_(tangents, alive, result);
  result.unexplained = result.kernel - static_cast<double>(result.explained + result.dead);
  auto rest = kernel.basis * alive.unsqueeze(1);
  rest = rest - beside.matmul(beside.t().matmul(rest));
  result.per_tensor = by_tensor(rest.square().sum(1), trainable);
  return result;
}

/// J^T J, of rows as they come. The upper triangle is not looked at.
class Square {
 public:
  explicit Square(int64_t size) : sum_(at::zeros({size, size}, at::kDouble)) {}
  void add(const at::Tensor& rows) {
    constexpr int64_t columns = 1024;
    const int64_t size = sum_.size(0);
    for (int64_t from = 0; from < size; from += columns) {
      const int64_t count = std::min(columns, size - from);
      sum_.narrow(0, from, size - from)
          .narrow(1, from, count)
          .addmm_(rows.narrow(1, from, size - from).t(), rows.narrow(1, from, count));
    }
  }
  at::Tensor& matrix() { return sum_; }

 private:
  at::Tensor sum_;
};

/// An orthonormal basis of the directions that a positive matrix, of which the triangle is given, makes
/// shortest: powers of its inverse.
at::Tensor shortest(const at::Tensor& triangle, int64_t count, const at::Generator& generator) {
  auto basis = at::randn({triangle.size(0), count}, generator, at::kDouble);
  for (int64_t power = 0; power < 8; ++power) {
    basis = std::get<0>(at::linalg_qr(at::cholesky_solve(basis, triangle), "reduced"));
  }
  return basis;
}

/// The same count, of more parameters. What no batch sees, and is neither on an orbit nor dead, is what J^T J plus
/// the projectors on those makes as good as zero. A square has half the digits; so the directions that it makes
/// shortest are only taken from it, and measured with rows of J that were kept.
Completeness exact_by_square(const Tangents& tangents, const Parameters& params,
                             const Trainable& trainable, const Evaluate& evaluate,
                             const CompletenessOptions& options) {
  const StructuralKernelOptions rows{.seed = options.seed};
  LossJacobian jacobian(params, evaluate, rows.seed);
  const int64_t size = trainable.size();
  const at::NoGradGuard no_grad;
  Square square(size);
  std::vector<at::Tensor> waiting;
  int64_t batch = 0;
  const auto draw = [&](int64_t wanted, int64_t batches) {
    int64_t count = 0;
    const int64_t end = batch + batches;
    waiting.clear();
    while (count < wanted || batch < end) {
      waiting.push_back(jacobian.rows(static_cast<uint64_t>(batch++), rows.rows_per_batch));
      count += waiting.back().size(0);
    }
    waiting = {at::cat(waiting)};
    square.add(waiting[0]);
    return waiting[0];
  };
  // No more of them at once than there is room for.
  constexpr int64_t parts = 10;
  const auto wanted = static_cast<int64_t>(rows.rows_per_parameter * static_cast<double>(size));
  for (int64_t k = 0; k < parts; ++k) draw(wanted / parts + 1, rows.min_batches / parts + 1);
  auto kept = draw(size / 8, (rows.min_batches + 1) / 2);

  const auto norms = square.matrix().diagonal().sqrt();
  const auto alive = norms.ne(0).to(at::kDouble);
  if (!tangents.gauge.empty()) {
    const auto seen = kept.matmul(tangents.rows.t()).norm(2, {0}) / kept.norm();
    const auto worst = seen.argmax().item<int64_t>();
    check_in_kernel(tangents.gauge[worst], seen[worst].item<double>(),
                    std::max(in_kernel, 1e4 * trainable.precision()));
  }
  Completeness result;
  result.method = "exact";
  result.parameters = size;
  const auto beside = count_known_(tangents, alive, result);

  // In units in which every column has length one, but for those that are all rounding.
  const auto noise = norms.max() * trainable.precision() * static_cast<double>(size);
  const auto unit = at::where(norms > noise, norms, norms.max().clamp_min(1e-300));
  kept = kept / unit;
  auto& matrix = square.matrix();
  matrix.div_(unit).div_(unit.unsqueeze(1));
  const auto known = std::get<0>(at::linalg_qr(beside * unit.unsqueeze(1), "reduced"));
  const double largest = at::linalg_matrix_norm(kept, 2).item<double>();
  const auto whole = static_cast<double>(batch) / static_cast<double>((rows.min_batches + 1) / 2);
  // What is known is made as long as the longest, to be found neither among the shortest nor null.
  const double longest = largest * largest * whole;
  matrix.addmm_(known, known.t(), 1, longest);
  matrix.diagonal().add_((1 - alive) * longest);
  at::Tensor triangle;
  at::Tensor failed = at::ones({}, at::kInt);
  for (double shift = 1e-15 * longest; failed.item<int>() != 0; shift *= 10) {
    matrix.diagonal().add_(shift);
    std::tie(triangle, failed) = at::linalg_cholesky_ex(matrix);
  }
  square = Square(0);

  const auto generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  int64_t null = 0;
  at::Tensor basis;
  for (int64_t count = std::min<int64_t>(64, size);; count = std::min(4 * count, size)) {
    basis = shortest(triangle, count, generator);
    const auto seen = at::cat({kept.matmul(basis), largest * known.t().matmul(basis),
                               largest * basis.index({alive.eq(0)})});
    const auto [u, sigma, v] = at::linalg_svd(seen, /*full_matrices=*/false);
    std::vector<double> values(sigma.const_data_ptr<double>(),
                               sigma.const_data_ptr<double>() + sigma.numel());
    // What is known is null, and the largest gap may be that before it.
    values.push_back(0);
    const auto [rank, gap] = rank_of(values, rows.threshold * largest,
                                     rows.rounding * static_cast<double>(size) * largest);
    null = count - rank;
    result.gap = gap;
    basis = basis.matmul(v.narrow(0, rank, sigma.numel() - rank).t());
    if (null <= count / 2) break;
    TORCH_CHECK(4 * count < kept.size(0), "completeness: of ", size, " parameters more than ",
                count / 2, " directions are unexplained, too many to count");
  }
  result.unexplained = static_cast<double>(null);
  result.kernel = result.unexplained + static_cast<double>(result.explained + result.dead);
  auto rest = basis / unit.unsqueeze(1);
  rest = rest - beside.matmul(beside.t().matmul(rest));
  result.per_tensor =
      by_tensor(std::get<0>(at::linalg_qr(rest, "reduced")).square().sum(1), trainable);
  return result;
}

/// Throws if a gauge moves what some rows of the Jacobian see.
void check_in_kernel(const Orbits& orbits, const std::vector<at::Tensor>& rows, double tolerance) {
  for (const auto& row : rows) {
    const auto charges = orbits.charges(row).abs() / row.norm();
    if (charges.numel() == 0) continue;
    const auto worst = charges.argmax().item<int64_t>();
    check_in_kernel(orbits.gauge_of(worst), charges[worst].item<double>(), tolerance);
  }
}

Completeness estimate(const std::vector<Gauge>& gauges, const Parameters& params,
                      const Trainable& trainable, const Evaluate& evaluate,
                      const CompletenessOptions& options) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  const KernelProbe probe(trainable, evaluate, generator);
  const at::NoGradGuard no_grad;
  const auto orbits_in_units = [&](const at::Tensor& scale) {
    return Orbits(gauges, params, trainable, scale, generator);
  };
  // Rounding of a product with a row that is orthogonal in exact arithmetic.
  check_in_kernel(orbits_in_units(at::ones_like(probe.scale())), probe.samples(),
                  1e4 * trainable.precision());

  Completeness result;
  result.parameters = trainable.size();
  const auto orbits = orbits_in_units(probe.scale());
  result.explained = orbits.dimension(generator);
  const int64_t dead = probe.scale().eq(0).sum().item<int64_t>();
  if (dead > 0) {
    // Their span with the orbits is that of the dead axes and of what the orbits have beside them.
    const int64_t beside = result.explained;
    const auto any = at::where(probe.scale() > 0, probe.scale(), probe.scale().mean());
    result.explained = orbits_in_units(any).dimension(generator);
    result.dead = dead + beside - result.explained;
  }

  // The sample may be small, but not the number of iterations.
  const auto affordable = static_cast<int64_t>(std::min(1e15, options.work / probe.work()));
  const int64_t probes = std::clamp<int64_t>(affordable / options.iterations, 1, options.probes);
  const int64_t iterations = std::min(options.iterations, affordable / probes);
  result.method = "estimate after " + std::to_string(iterations) + " iterations";
  bool converged = true;
  if (iterations > 0) {
    auto shares = at::zeros({trainable.size()}, at::kDouble);
    for (int64_t i = 0; i < probes; ++i) {
      const auto drawn = at::randn({trainable.size()}, generator, at::kDouble);
      // Rows are orthogonal to the orbits, so that the iteration does not bring them back, but for
      // rounding.
      const auto rest =
          kernel_part(probe.as_operator(), orbits.without(drawn * probe.scale().ne(0)), iterations,
                      nothing_seen);
      converged = converged && rest.converged;
      shares += orbits.without(rest.vector).square();
    }
    shares /= static_cast<double>(probes);
    result.unexplained = shares.sum().item<double>();
    result.per_tensor = by_tensor(shares, trainable);
  } else {
    converged = false;
    result.unexplained = static_cast<double>(trainable.size() - result.explained - result.dead);
  }
  result.kernel = result.unexplained + static_cast<double>(result.explained + result.dead);
  if (!converged && result.unexplained > too_loose * static_cast<double>(trainable.size())) {
    result.method = "not counted: " + result.method.substr(std::string("estimate ").size()) +
                    " the bound is too loose";
  }
  return result;
}

}  // namespace

Completeness completeness(const std::vector<Gauge>& gauges, const Parameters& params,
                          const Evaluate& evaluate, const CompletenessOptions& options) {
  TORCH_CHECK(options.probes > 0 && options.iterations > 0 && options.work > 0,
              "completeness: probes, iterations and work must be positive, are ", options.probes,
              ", ", options.iterations, " and ", options.work);
  const Trainable trainable(params);
  if (trainable.size() > options.exact_up_to) {
    return estimate(gauges, params, trainable, evaluate, options);
  }
  const auto count = trainable.size() <= options.decomposed_up_to ? exact : exact_by_square;
  return count(tangents_of(gauges, params, trainable), params, trainable, evaluate, options);
}

}  // namespace ddc
