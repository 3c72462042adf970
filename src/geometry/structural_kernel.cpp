#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "ddc/geometry/completeness.h"
#include "geometry/loss_jacobian.h"
#include "geometry/rank.h"

namespace ddc {
namespace {

std::vector<double> to_vector(const at::Tensor& values) {
  const auto* data = values.const_data_ptr<double>();
  return {data, data + values.numel()};
}

/// Rows that are added up as they come. The triangle of a QR factorisation stands for all so far. (The
/// sum of J^T J would too, but it squares the singular values, and the small ones drown in rounding.)
class Accumulator {
 public:
  Accumulator(int64_t parameters, const JacobianRows& rows, uint64_t first_batch)
      : rows_of_(rows),
        next_batch_(first_batch),
        triangle_(at::zeros({0, parameters}, at::kDouble)) {}

  /// The rows of the next batch.
  at::Tensor draw() {
    // Few rows are added at the price of many.
    if (waiting_count_ >= triangle_.size(1)) reduce();
    const auto more = rows_of_(next_batch_++);
    TORCH_CHECK(more.dim() == 2 && more.size(0) > 0 && more.size(1) == triangle_.size(1),
                "structural_kernel: the rows of a batch must have shape [rows, ", triangle_.size(1),
                "], got ", more.sizes());
    count_ += more.size(0);
    waiting_count_ += more.size(0);
    waiting_.push_back(more);
    return more;
  }
  void reduce() {
    if (waiting_.empty()) return;
    waiting_.insert(waiting_.begin(), triangle_);
    triangle_ = std::get<1>(at::linalg_qr(at::cat(waiting_), "r"));
    waiting_.clear();
    waiting_count_ = 0;
  }
  const at::Tensor& triangle() const { return triangle_; }
  int64_t count() const { return count_; }

 private:
  const JacobianRows& rows_of_;
  uint64_t next_batch_;
  at::Tensor triangle_;
  std::vector<at::Tensor> waiting_;
  int64_t waiting_count_ = 0;
  int64_t count_ = 0;
};

StructuralKernel decompose(const at::Tensor& triangle, const StructuralKernelOptions& options) {
  StructuralKernel kernel;
  kernel.parameters = triangle.size(1);
  const auto [u, sigma, v] = at::linalg_svd(triangle, /*full_matrices=*/false);
  kernel.singular_values = to_vector(sigma);
  const double largest = kernel.singular_values.empty() ? 0 : kernel.singular_values.front();
  const auto [rank, gap] =
      rank_of(kernel.singular_values, options.threshold * largest,
              largest * static_cast<double>(kernel.singular_values.size()) * options.rounding);
  kernel.rank = rank;
  kernel.gap = gap;
  kernel.dimension = kernel.parameters - rank;
  kernel.basis = v.narrow(0, rank, kernel.dimension).t().contiguous();
  kernel.column_norms = triangle.norm(2, {0});
  return kernel;
}

/// Whether some of `rows` reach into the kernel: beyond the middle of the gap.
bool reach_into(const StructuralKernel& kernel, const at::Tensor& rows) {
  if (kernel.dimension == 0) return false;
  const double inside = at::linalg_matrix_norm(rows.matmul(kernel.basis), 2).item<double>();
  if (kernel.rank == 0) return inside > 0;
  return inside > kernel.singular_values[kernel.rank - 1] / std::sqrt(kernel.gap);
}

}  // namespace

Rank rank_of(const std::vector<double>& values, double small, double rounding) {
  const auto size = static_cast<int64_t>(values.size());
  if (size == 0 || values.front() == 0) return {};
  const auto value = [&](int64_t k) { return std::max(k < size ? values[k] : 0, rounding); };
  // If none is small all of them count.
  if (values.back() > small) return {size, value(size - 1) / value(size)};
  Rank best;
  for (int64_t k = 1; k < size; ++k) {
    const double gap = value(k - 1) / value(k);
    if (values[k] <= small && gap > best.gap) best = {k, gap};
  }
  return best;
}

StructuralKernel structural_kernel(int64_t parameters, const JacobianRows& rows,
                                   const StructuralKernelOptions& options) {
  const at::NoGradGuard no_grad;
  if (parameters == 0) {
    return {.basis = at::zeros({0, 0}, at::kDouble), .column_norms = at::zeros({0}, at::kDouble)};
  }
  Accumulator all(parameters, rows, options.first_batch);
  if (options.batches) {
    for (int64_t i = 0; i < *options.batches; ++i) all.draw();
  } else {
    const double wanted = options.rows_per_parameter * static_cast<double>(parameters);
    int64_t batches = 0;
    while (static_cast<double>(all.count()) < wanted || batches < options.min_batches) {
      all.draw();
      ++batches;
    }
  }
  TORCH_CHECK(all.count() >= parameters, "structural_kernel: ", all.count(), " rows for ",
              parameters, " parameters leave directions unseen; use more batches");
  all.reduce();
  auto kernel = decompose(all.triangle(), options);
  if (options.batches) return kernel;
  for (;;) {
    bool rises = false;
    const int64_t enough = all.count() + parameters / 8;
    for (int64_t i = 0; i < (options.min_batches + 1) / 2 || all.count() < enough; ++i) {
      rises = reach_into(kernel, all.draw()) || rises;
    }
    if (!rises) return kernel;
    all.reduce();
    const auto before = std::exchange(kernel, decompose(all.triangle(), options)).rank;
    if (kernel.rank == before) return kernel;
  }
}

StructuralKernel structural_kernel(const Parameters& params, const Evaluate& evaluate,
                                   const StructuralKernelOptions& options) {
  LossJacobian jacobian(params, evaluate, options.seed);
  return structural_kernel(
      jacobian.trainable().size(),
      [&](uint64_t batch) { return jacobian.rows(batch, options.rows_per_batch); }, options);
}

}  // namespace ddc
