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

/// The number of singular values that count: down to the largest gap among those that are small.
/// Those below rounding are noise, and the gaps between them mean nothing.
void decide_rank(NullSpace& space, double threshold) {
  const auto& values = space.singular_values;
  const double largest = values.front();
  const double rounding =
      largest * static_cast<double>(values.size()) * std::numeric_limits<double>::epsilon();
  const auto size = static_cast<int64_t>(values.size());
  const auto value = [&](int64_t k) { return k < size ? std::max(values[k], rounding) : rounding; };
  space.rank = size;
  space.gap = value(size - 1) / value(size);
  // Without a small singular value all of them count.
  if (values.back() > threshold * largest) return;
  space.gap = 0;
  for (int64_t k = 1; k < size; ++k) {
    if (values[k] > threshold * largest) continue;
    const double gap = value(k - 1) / value(k);
    if (gap > space.gap) {
      space.gap = gap;
      space.rank = k;
    }
  }
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
  for (int64_t b = 0; options.batches ? b < *options.batches : rows < wanted; ++b) {
    const auto batch = testbed.batch(options.batch_seed + static_cast<uint64_t>(b), at::kDouble);
    const auto more = jacobian(testbed, params, batch.inputs, options.log_softmax);
    rows += more.size(0);
    triangle = std::get<1>(at::linalg_qr(at::cat({triangle, more}), "r"));
  }
  TORCH_CHECK(rows >= space.parameters, "null_space: ", rows, " rows for ", space.parameters,
              " parameters leave directions unseen; use more batches");
  const auto [u, sigma, v] = at::linalg_svd(triangle, /*full_matrices=*/false);
  space.singular_values.assign(sigma.const_data_ptr<double>(),
                               sigma.const_data_ptr<double>() + sigma.numel());
  decide_rank(space, options.threshold);
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
