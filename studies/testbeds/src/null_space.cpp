#include "ddc/testbeds/null_space.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

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
  const at::AutoGradMode enable_grad(true);
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

}  // namespace

NullSpace null_space(const Testbed& testbed, const Parameters& params,
                     const NullSpaceOptions& options) {
  return structural_kernel(count(params),
                           [&](uint64_t batch) {
                             return jacobian(testbed, params,
                                             testbed.batch(batch, at::kDouble).inputs,
                                             options.log_softmax);
                           },
                           {.rows_per_parameter = options.rows_per_parameter,
                            .min_batches = 1,
                            .batches = options.batches,
                            .first_batch = options.batch_seed,
                            .threshold = options.threshold});
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
