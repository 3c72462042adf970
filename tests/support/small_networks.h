#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <set>

#include "ddc/gauge/rescale.h"
#include "support/training.h"

// Small tables of parameters, and changed testbeds, for tests of the optimizer's contract.

namespace ddc::tests {

using torch::optim::OptimizerParamGroup;

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr std::array kAllCoordinates{Coordinates::folded, Coordinates::balanced,
                                            Coordinates::polar};

inline const AdamOptions& options_of(const DDCAdam& optimizer, size_t group) {
  return dynamic_cast<const LiftedRuleOptions<AdamRule>&>(
             optimizer.param_groups().at(group).options())
      .get();
}

inline std::vector<double> learning_rates(const torch::optim::Optimizer& optimizer) {
  std::vector<double> lrs;
  for (const auto& group : optimizer.param_groups()) lrs.push_back(group.options().get_lr());
  return lrs;
}

inline OptimizerParamGroup group_of(std::vector<at::Tensor> tensors, const AdamOptions& options) {
  return {std::move(tensors), std::make_unique<LiftedRuleOptions<AdamRule>>(options)};
}

inline at::Tensor weights(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, generator(seed), at::kDouble).requires_grad_();
}

inline Parameters table(std::vector<NamedTensor> entries) { return Parameters(std::move(entries)); }

/// Two layers with a ReLU between them, and a norm before them.
inline Parameters small_table() {
  return table({{"norm.weight", weights({3}, 1)},
                {"in.weight", weights({4, 3}, 2)},
                {"in.bias", weights({4}, 3)},
                {"out.weight", weights({2, 4}, 4)},
                {"out.bias", weights({2}, 5)}});
}

inline Gauge small_rescale(const Parameters& params) {
  return relu_rescale({.in = params["in.weight"],
                       .in_bias = params["in.bias"],
                       .out = {params["out.weight"]},
                       .name = "rescale"});
}

inline void set_gradients(const Parameters& params, uint64_t seed) {
  for (const auto& [name, tensor] : params) {
    tensor.mutable_grad() = at::randn(tensor.sizes(), generator(seed++), tensor.options());
  }
}

/// The testbed with other weights to start from.
inline Testbed starting_from(Testbed bed, const std::function<void(const Parameters&)>& change) {
  bed.init = [init = bed.init, change](uint64_t seed, at::ScalarType type) {
    const at::NoGradGuard no_grad;
    auto params = init(seed, type);
    change(params);
    return params;
  };
  return bed;
}

/// The testbed in which the tensors called `frozen` get no gradient.
inline Testbed with_frozen(Testbed bed, const std::set<std::string>& frozen) {
  bed.loss = [loss = bed.loss, frozen](const Parameters& params, const testbeds::Batch& batch) {
    Parameters view;
    for (const auto& [name, tensor] : params) {
      view.add(name, frozen.count(name) > 0 ? tensor.detach() : tensor);
    }
    return loss(view, batch);
  };
  return bed;
}

inline double loss_of(const Testbed& bed, const Parameters& params, const testbeds::Batch& batch) {
  const at::NoGradGuard no_grad;
  return bed.loss(params, batch).item<double>();
}

inline bool all_finite(const Parameters& params) {
  return std::all_of(params.begin(), params.end(), [](const NamedTensor& entry) {
    return entry.tensor.isfinite().all().item<bool>();
  });
}

}  // namespace ddc::tests
