#pragma once

#include <ATen/ATen.h>

#include "ddc/gauge/attention.h"
#include "support/matrices.h"
#include "support/small_networks.h"

// Heads of queries and keys in pursuit of a product that moves: the smallest problem with a rotation
// gauge.

namespace ddc::tests {

inline constexpr int64_t kHeads = 2;
inline constexpr int64_t kHeadSize = 4;
inline constexpr int64_t kInputs = 6;
inline constexpr int64_t kSteps = 60;
inline at::Tensor heads_of(const at::Tensor& weight) {
  return weight.detach().to(at::kDouble).view({kHeads, kHeadSize, kInputs});
}

/// Q Q^T + K K^T per head.
inline at::Tensor grams_of(const Parameters& params) {
  const auto q = heads_of(params["query"].tensor);
  const auto k = heads_of(params["key"].tensor);
  return q.matmul(q.transpose(1, 2)) + k.matmul(k.transpose(1, 2));
}

/// sum_i s_i(t) a_i b_i^T per head, where s_0 falls and s_1 rises.
inline at::Tensor target(int64_t head, double time) {
  const auto s = at::tensor({3 - 2 * time, 1 + 2 * time, 0.6, 0.3}, at::kDouble);
  const auto a = orthonormal_columns(kInputs, kHeadSize, 10 + static_cast<uint64_t>(head));
  const auto b = orthonormal_columns(kInputs, kHeadSize, 20 + static_cast<uint64_t>(head));
  return (a * s).matmul(b.t());
}

/// Queries and keys that fit the target of time 0 but for `noise`.
inline Parameters fitting(double noise) {
  std::vector<at::Tensor> q;
  std::vector<at::Tensor> k;
  for (int64_t h = 0; h < kHeads; ++h) {
    const auto [u, s, vh] = at::linalg_svd(target(h, 0));
    q.push_back((u * s.sqrt()).narrow(1, 0, kHeadSize).t());
    k.push_back(s.sqrt().narrow(0, 0, kHeadSize).unsqueeze(1) * vh.narrow(0, 0, kHeadSize));
  }
  const auto noisy = [&](const std::vector<at::Tensor>& heads, uint64_t seed) {
    return (at::cat(heads) + normal({kHeads * kHeadSize, kInputs}, seed) * noise)
        .contiguous()
        .requires_grad_();
  };
  return table({{"query", noisy(q, 1)}, {"key", noisy(k, 2)}});
}

/// || Q^T K - target(t) ||^2 per head. The batch's targets are those of the step; `moving`: they
/// change.
inline Testbed pursuit(std::function<Parameters()> init, bool moving = true) {
  Testbed bed;
  bed.name = "pursuit";
  bed.init = [init](uint64_t, at::ScalarType) { return init(); };
  bed.batch = [moving](uint64_t seed, at::ScalarType) {
    const auto step = static_cast<double>(seed % 100000);
    std::vector<at::Tensor> targets;
    for (int64_t h = 0; h < kHeads; ++h) {
      targets.push_back(target(h, moving ? std::min(1.0, step / 40) : 0.0));
    }
    return testbeds::Batch{{}, at::stack(targets)};
  };
  bed.loss = [](const Parameters& params, const testbeds::Batch& batch) {
    const auto q = params["query"].tensor.view({kHeads, kHeadSize, kInputs});
    const auto k = params["key"].tensor.view({kHeads, kHeadSize, kInputs});
    return (q.transpose(1, 2).matmul(k) - batch.targets).square().sum();
  };
  return bed;
}

inline std::vector<Gauge> turning(const Parameters& params) {
  return {qk_rotation({.query = params["query"], .key = params["key"], .heads = kHeads})};
}
inline Treatment turned(SecondMoment mode) {
  return {.second_moment = mode, .tau = 0.3, .frame_drift = 0.02};
}

inline AdamOptions quick() { return AdamOptions{.lr = 2e-2, .weight_decay = 0.01}; }

struct Trained {
  Parameters params;
  std::unique_ptr<DDCAdam> optimizer;
};

inline Trained train(const Testbed& bed, const std::vector<Gauge>& gauges,
                     const Treatments& treatments, int64_t steps = kSteps,
                     const std::function<void(const Parameters&)>& watch = nullptr) {
  auto params = bed.init(1, at::kDouble);
  auto optimizer = std::make_unique<DDCAdam>(params, gauges, quick(), treatments);
  for (int64_t step = 0; step < steps; ++step) {
    if (watch) watch(params);
    backward(bed, params, bed.batch(static_cast<uint64_t>(step), at::kDouble));
    optimizer->step();
  }
  return {params, std::move(optimizer)};
}

}  // namespace ddc::tests
