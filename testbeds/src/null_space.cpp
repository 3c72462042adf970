#include "ddc/testbeds/null_space.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <limits>

namespace ddc::testbeds {
namespace {

int64_t count(const Parameters& params) {
  int64_t total = 0;
  for (const auto& [name, tensor] : params) total += tensor.numel();
  return total;
}

/// [entries of the outputs, parameters].
at::Tensor jacobian(const Testbed& testbed, const Parameters& params, const at::Tensor& inputs,
                    bool log_softmax) {
  auto outputs = testbed.outputs(params, inputs);
  if (log_softmax) outputs = outputs.log_softmax(-1);
  outputs = outputs.flatten();
  const int64_t entries = outputs.numel();
  const auto rows = at::zeros({entries, count(params)}, at::kDouble);
  const auto directions = at::eye(entries, outputs.options());
  for (int64_t i = 0; i < entries; ++i) {
    const auto gradients =
        torch::autograd::grad({outputs}, params.tensors(), {directions[i]}, /*retain_graph=*/true,
                              /*create_graph=*/false, /*allow_unused=*/true);
    int64_t column = 0;
    for (size_t k = 0; k < gradients.size(); ++k) {
      const int64_t size = params.tensors()[k].numel();
      if (gradients[k].defined()) rows[i].narrow(0, column, size).copy_(gradients[k].flatten());
      column += size;
    }
  }
  return rows;
}

std::vector<double> to_vector(const at::Tensor& values) {
  const auto* data = values.const_data_ptr<double>();
  return {data, data + values.numel()};
}

struct Rank {
  int64_t rank = 0;
  double gap = 0;
};

/// The number of singular values that count: down to the largest gap among those that are small.
/// Those below rounding are noise, and the gaps between them mean nothing.
Rank decide_rank(const std::vector<double>& values, double threshold) {
  const auto size = static_cast<int64_t>(values.size());
  const double largest = values.front();
  const double rounding =
      largest * static_cast<double>(size) * std::numeric_limits<double>::epsilon();
  const auto value = [&](int64_t k) { return std::max(k < size ? values[k] : 0, rounding); };
  // If none is small all of them count.
  if (values.back() > threshold * largest) return {size, value(size - 1) / value(size)};
  Rank best;
  for (int64_t k = 1; k < size; ++k) {
    const double gap = value(k - 1) / value(k);
    if (values[k] <= threshold * largest && gap > best.gap) best = {k, gap};
  }
  return best;
}

}  // namespace

NullSpace null_space(const Testbed& testbed, const Parameters& params,
                     const NullSpaceOptions& options) {
  NullSpace space;
  space.parameters = count(params);
  const auto wanted =
      static_cast<int64_t>(options.rows_per_parameter * static_cast<double>(space.parameters));
  // The triangle of a QR factorisation stands for all rows so far. (The sum of J^T J would too, but
  // it squares the singular values, and the small ones drown in rounding.)
  auto triangle = at::zeros({0, space.parameters}, at::kDouble);
  int64_t rows = 0;
  int64_t batches = 0;
  const auto draw = [&] {
    const auto seed = options.batch_seed + static_cast<uint64_t>(batches++);
    const auto more =
        jacobian(testbed, params, testbed.batch(seed, at::kDouble).inputs, options.log_softmax);
    rows += more.size(0);
    triangle = std::get<1>(at::linalg_qr(at::cat({triangle, more}), "r"));
  };
  const auto rank = [&] {
    const auto sigma = at::linalg_svdvals(triangle);
    return decide_rank(to_vector(sigma), options.threshold).rank;
  };
  if (options.batches) {
    while (batches < *options.batches) draw();
  } else {
    while (rows < wanted) draw();
    for (int64_t before = -1, now = rank(); now != before; now = rank()) {
      before = now;
      draw();
    }
  }
  TORCH_CHECK(rows >= space.parameters, "null_space: ", rows, " rows for ", space.parameters,
              " parameters leave directions unseen; use more batches");
  const auto [u, sigma, v] = at::linalg_svd(triangle, /*full_matrices=*/false);
  space.singular_values = to_vector(sigma);
  const auto [found, gap] = decide_rank(space.singular_values, options.threshold);
  space.rank = found;
  space.gap = gap;
  space.dimension = space.parameters - space.rank;
  space.basis = v.narrow(0, space.rank, space.dimension).t().contiguous();
  space.column_norms = triangle.norm(2, {0});
  return space;
}

double distance_from(const NullSpace& space, const at::Tensor& tangents) {
  const auto outside = tangents - space.basis.matmul(space.basis.t().matmul(tangents));
  return (outside.norm(2, {0}) / tangents.norm(2, {0})).max().item<double>();
}

int64_t dead_units(const NullSpace& space, const Parameters& params, const std::string& weight) {
  const auto& entry = params[weight];
  int64_t column = 0;
  for (const auto& [name, tensor] : params) {
    if (name == entry.name) break;
    column += tensor.numel();
  }
  const auto norms =
      space.column_norms.narrow(0, column, entry.tensor.numel()).view(entry.tensor.sizes());
  return norms.flatten(1).eq(0).all(1).sum().item<int64_t>();
}

}  // namespace ddc::testbeds
