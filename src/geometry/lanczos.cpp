#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ddc/geometry/curvature.h"

namespace ddc {
namespace {

at::Tensor projected(const Deflation& projection, const at::Tensor& vector) {
  return projection ? projection(vector) : vector;
}

double norm_of(const at::Tensor& vector) { return vector.norm().item<double>(); }

/// Takes the part in the span of the first `count` columns out, twice: once leaves what rounding makes of it.
void orthogonalise_(at::Tensor& vector, const at::Tensor& basis, int64_t count) {
  if (count == 0) return;
  const auto known = basis.narrow(0, 0, count);
  for (int64_t again = 0; again < 2; ++again) {
    vector.sub_(known.t().mv(known.mv(vector)));
  }
}

struct Tridiagonal {
  std::vector<double> diagonal;
  std::vector<double> beside;
};

/// Eigenvalues with what can be told from the tridiagonal matrix alone.
Ritz ritz_of(const Tridiagonal& t, double next, bool exhausted) {
  const auto size = static_cast<int64_t>(t.diagonal.size());
  Ritz result;
  result.products = size;
  result.exhausted = exhausted;
  if (size == 0) return result;
  auto matrix = at::zeros({size, size}, at::kDouble);
  auto entries = matrix.accessor<double, 2>();
  for (int64_t i = 0; i < size; ++i) {
    entries[i][i] = t.diagonal[i];
    if (i + 1 < size) entries[i][i + 1] = entries[i + 1][i] = t.beside[i];
  }
  const auto [values, vectors] = at::linalg_eigh(matrix);
  const auto columns = vectors.accessor<double, 2>();
  const auto value = values.accessor<double, 1>();
  for (int64_t k = 0; k < size; ++k) {
    result.values.push_back(value[k]);
    result.errors.push_back(std::abs(next * columns[size - 1][k]));
    result.weights.push_back(columns[0][k] * columns[0][k]);
  }
  return result;
}

at::Tensor drawn(int64_t size, at::ScalarType dtype, const at::Generator& generator) {
  return at::randn({size}, generator, at::kDouble).to(dtype);
}

at::Generator generator_of(uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

}  // namespace

Ritz lanczos(const LinearOperator& matrix, const at::Tensor& start, int64_t iterations,
             double tolerance, const Deflation& projection, Exhausted exhausted) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK_VALUE(iterations > 0, "option iterations must be > 0, got ", iterations);
  TORCH_CHECK_VALUE(matrix.rows == matrix.columns, "lanczos: the operator must be symmetric");
  const int64_t most = std::min(iterations, matrix.columns);
  const double rounding = start.scalar_type() == at::kDouble
                              ? std::numeric_limits<double>::epsilon()
                              : std::numeric_limits<float>::epsilon();
  auto vector = projected(projection, start).clone();
  Tridiagonal t;
  double length = norm_of(vector);
  const auto all = [&](double next) {
    auto result = ritz_of(t, next, /*exhausted=*/true);
    result.complete = true;
    return result;
  };
  // What a projection on nothing leaves is rounding.
  if (length <= 100 * rounding * norm_of(start)) return all(0);
  vector.div_(length);
  // A random vector that is orthogonal to all before; undefined if there is no room for one. (Of a seed that nobody
  // starts from: the start vector itself would leave nothing.)
  const auto generator = generator_of(0x9e3779b97f4a7c15);
  const auto another = [&](const at::Tensor& basis, int64_t count) {
    const auto fresh = drawn(matrix.columns, start.scalar_type(), generator).to(start.device());
    auto rest = projected(projection, fresh).clone();
    orthogonalise_(rest, basis, count);
    const double room = norm_of(rest);
    if (room <= std::sqrt(rounding) * norm_of(fresh)) return at::Tensor();
    // The projection of a small remainder is taken again, too.
    rest = projected(projection, rest.div_(room)).clone();
    orthogonalise_(rest, basis, count);
    return rest.div_(norm_of(rest));
  };
  // It grows as it is needed, so that a method that ends early takes little.
  auto basis = at::empty({std::min<int64_t>(most, 16), matrix.columns}, start.options());
  double next = 0;
  double largest = 0;
  // Rounding of a product, relative to the largest eigenvalue.
  const double still =
      rounding * std::max(10 * std::sqrt(static_cast<double>(matrix.columns)), 400.0);
  const bool whole = exhausted == Exhausted::restart && matrix.columns <= iterations;
  bool restarted = false;
  bool counting = false;
  for (int64_t k = 0; k < most; ++k) {
    if (k == basis.size(0)) {
      auto more = at::empty({std::min(most, 2 * k), matrix.columns}, start.options());
      more.narrow(0, 0, k).copy_(basis);
      basis = more;
    }
    basis[k].copy_(vector);
    auto image = projected(projection, matrix.product(vector)).clone();
    const double diagonal = at::dot(vector, image).item<double>();
    TORCH_CHECK(std::isfinite(diagonal), "lanczos: a product with the operator is not finite");
    const double noise = still * largest;
    // All that is orthogonal is null if a random vector of it is.
    if (restarted && norm_of(image) <= noise) {
      t.beside.pop_back();
      auto result = all(0);
      ++result.products;
      return result;
    }
    restarted = false;
    t.diagonal.push_back(diagonal);
    largest = std::max(largest, std::abs(diagonal) + next);
    orthogonalise_(image, basis, k + 1);
    next = norm_of(image);
    // What is left of an exhausted space is rounding.
    if (next <= still * largest) {
      if (exhausted == Exhausted::stop) return ritz_of(t, next, /*exhausted=*/true);
      const auto fresh = k + 1 < matrix.columns ? another(basis, k + 1) : at::Tensor();
      if (!fresh.defined()) return all(0);
      if (k + 1 == most) return ritz_of(t, 0, /*exhausted=*/true);
      next = 0;
      restarted = counting = true;
      t.beside.push_back(0);
      vector = fresh;
      continue;
    }
    // Once a space was exhausted its ends are known, and what goes on is the count. (A space may be exhausted but for
    // what rounding made large. Where all steps are allowed, all are made, and nothing can be missed.)
    const bool look = tolerance >= 0 && !counting && !whole && (k + 1) % 10 == 0;
    if (look) {
      auto standing = ritz_of(t, next, /*exhausted=*/false);
      const double top =
          std::max(std::abs(standing.values.front()), std::abs(standing.values.back()));
      // The lower end is the smallest that is not zero: a null space is found soon, and says nothing of it.
      size_t lower = 0;
      while (lower + 1 < standing.values.size() &&
             std::abs(standing.values[lower]) <= 100 * rounding * top) {
        ++lower;
      }
      const double bound = tolerance * top;
      if (standing.errors[lower] <= bound && standing.errors.back() <= bound) return standing;
    }
    t.beside.push_back(next);
    vector = image.div_(next);
  }
  if (most == matrix.columns) return all(0);
  return ritz_of(t, next, /*exhausted=*/false);
}

EigenPairs lobpcg_smallest(const LinearOperator& matrix, int64_t count, int64_t iterations,
                           double tolerance, uint64_t seed, const Deflation& projection) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK_VALUE(count > 0 && 3 * count <= matrix.columns, "option count must be between 1 and ",
                    matrix.columns / 3, " (a third of the size), got ", count);
  EigenPairs result;
  const auto times = [&](const at::Tensor& block) {
    std::vector<at::Tensor> columns;
    for (int64_t k = 0; k < block.size(1); ++k) {
      columns.push_back(projected(projection, matrix.product(block.select(1, k).contiguous())));
    }
    result.products += block.size(1);
    return at::stack(columns, 1);
  };
  const auto in_range = [&](const at::Tensor& block) {
    std::vector<at::Tensor> columns;
    for (int64_t k = 0; k < block.size(1); ++k) {
      columns.push_back(projected(projection, block.select(1, k).contiguous()));
    }
    return at::stack(columns, 1);
  };
  const auto orthonormal = [](const at::Tensor& block) {
    // Columns that depend on the others are left out.
    const auto unit = block / block.norm(2, {0}, /*keepdim=*/true).clamp_min(1e-300);
    const auto [u, sigma, v] = at::linalg_svd(unit, /*full_matrices=*/false);
    const auto rank = (sigma > sigma[0] * 1e-7).sum().item<int64_t>();
    return u.narrow(1, 0, rank);
  };
  const auto generator = generator_of(seed);
  auto x = at::randn({matrix.columns, count}, generator, at::kDouble).to(matrix.dtype);
  x = orthonormal(in_range(x));
  TORCH_CHECK_VALUE(x.size(1) == count, "option count must be at most ", x.size(1),
                    ", the dimension that is left, got ", count);
  auto image = times(x);
  at::Tensor step;
  double scale = 0;
  for (int64_t i = 0; i < iterations; ++i) {
    const auto [values, turn] = at::linalg_eigh(x.t().matmul(image));
    x = x.matmul(turn);
    image = image.matmul(turn);
    const auto residual = image - x * values;
    const auto lengths = residual.norm(2, {0});
    scale = std::max(scale, image.norm(2, {0}).max().item<double>());
    result.values.assign(count, 0);
    result.errors.assign(count, 0);
    for (int64_t k = 0; k < count; ++k) {
      result.values[k] = values[k].item<double>();
      result.errors[k] = lengths[k].item<double>();
    }
    result.vectors = x;
    if (lengths.max().item<double>() <= tolerance * scale) break;
    // The next is the best of the span of where we are, of the residual and of the last step.
    std::vector<at::Tensor> blocks{x, residual / lengths.clamp_min(1e-300)};
    if (step.defined()) blocks.push_back(step);
    auto span = orthonormal(in_range(at::cat(blocks, 1)));
    const auto span_image = times(span);
    const auto small = span.t().matmul(span_image);
    const auto [all, choice] = at::linalg_eigh((small + small.t()) / 2);
    scale = std::max(scale, all.abs().max().item<double>());
    const auto best = choice.narrow(1, 0, count);
    const auto before = x;
    x = span.matmul(best);
    image = span_image.matmul(best);
    step = x - before.matmul(before.t().matmul(x));
  }
  return result;
}

Quadrature lanczos_quadrature(const LinearOperator& matrix, int64_t dimension, int64_t probes,
                              int64_t steps, uint64_t seed, const Deflation& projection) {
  TORCH_CHECK_VALUE(probes > 0, "option probes must be > 0, got ", probes);
  const auto generator = generator_of(seed);
  Quadrature result;
  for (int64_t i = 0; i < probes; ++i) {
    const auto start = drawn(matrix.columns, matrix.dtype, generator);
    const auto ritz = lanczos(matrix, start, steps, /*tolerance=*/-1, projection);
    result.products += ritz.products;
    auto& nodes = result.nodes.emplace_back();
    for (size_t k = 0; k < ritz.values.size(); ++k) {
      const double weight = ritz.weights[k] * static_cast<double>(dimension);
      nodes.emplace_back(ritz.values[k], weight);
      result.density.emplace_back(ritz.values[k], weight / static_cast<double>(probes));
    }
  }
  std::sort(result.density.begin(), result.density.end());
  return result;
}

Bounded Quadrature::trace_of(const std::function<double(double)>& function) const {
  const auto count = static_cast<double>(nodes.size());
  double sum = 0;
  double squares = 0;
  for (const auto& probe : nodes) {
    double value = 0;
    for (const auto& [at, weight] : probe) value += weight * function(at);
    sum += value;
    squares += value * value;
  }
  const double mean = sum / count;
  const double variance = std::max(0.0, squares / count - mean * mean);
  return {mean, nodes.size() > 1 ? std::sqrt(variance / (count - 1))
                                 : std::numeric_limits<double>::quiet_NaN()};
}

}  // namespace ddc
