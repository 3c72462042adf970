#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddc/optim/rule.h"

// What tests of base rules share: gradients to feed them, and what is compared.

namespace ddc::tests {

/// A rule with its state: gradient, step -> displacement.
using Rule = std::function<at::Tensor(const at::Tensor&, int64_t)>;

/// A tensor that no gauge acts on, as a rule sees it.
inline TensorView alone(const at::Tensor& parameter) { return {"", parameter, {}, {}}; }

/// One of the library's rules, with a state of its own.
template <class Of>
Rule rule_of(const typename Of::Options& options) {
  const auto state = std::make_shared<std::optional<typename Of::State>>();
  return [=](const at::Tensor& gradient, int64_t step) {
    const auto view = alone(gradient);
    if (!*state) *state = Of::init(view, options);
    return Of::step(gradient, step, view, **state, options);
  };
}

template <class State>
std::vector<at::Tensor> tensors_of(State& state) {
  std::vector<at::Tensor> result;
  for (const auto& [name, tensor] : state.tensors()) result.push_back(*tensor);
  return result;
}

inline at::Generator rule_generator(uint64_t seed) { return at::detail::createCPUGenerator(seed); }

/// Gradients as training has them: a part that stays and a part that is drawn anew, some rows and
/// columns larger than others.
inline std::vector<at::Tensor> drawn_gradients(at::IntArrayRef shape, int64_t steps, uint64_t seed,
                                               at::ScalarType type = at::kDouble) {
  auto random = rule_generator(seed);
  const auto draw = [&] { return at::randn(shape, random, at::kDouble); };
  auto sizes = at::ones({}, at::kDouble);
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    std::vector<int64_t> along(shape.size(), 1);
    along[axis] = shape[axis];
    sizes = sizes * at::rand(along, random, at::kDouble).add_(0.25);
  }
  const auto mean = draw();
  std::vector<at::Tensor> result;
  for (int64_t step = 0; step < steps; ++step) {
    result.push_back(((mean * 0.5 + draw()) * sizes).to(type));
  }
  return result;
}

/// A random n x n rotation, possibly with a reflection.
inline at::Tensor random_orthogonal(int64_t n, at::Generator random) {
  return std::get<0>(at::linalg_qr(at::randn({n, n}, std::move(random), at::kDouble)));
}

inline std::vector<at::Tensor> displacements(const Rule& rule,
                                             const std::vector<at::Tensor>& gradients) {
  std::vector<at::Tensor> result;
  for (size_t i = 0; i < gradients.size(); ++i) {
    result.push_back(rule(gradients[i], static_cast<int64_t>(i) + 1));
  }
  return result;
}

/// max over steps of |a - b| / |b| (Frobenius norms).
inline double largest_error(const std::vector<at::Tensor>& actual,
                            const std::vector<at::Tensor>& expected) {
  double result = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto b = expected[i].to(at::kDouble);
    const auto error = (actual[i].to(at::kDouble) - b).norm() / b.norm();
    result = std::max(result, error.item<double>());
  }
  return result;
}

/// Gradients that are allowed and inconvenient.
inline std::vector<std::string> nasty_kinds() {
  return {"zero", "zero first", "zero later",     "rank one",       "one entry",
          "tiny", "huge",       "tiny then huge", "huge then tiny", "mixed rows"};
}

inline std::vector<at::Tensor> nasty_gradients(const std::string& kind, at::IntArrayRef shape,
                                               int64_t steps, at::ScalarType type) {
  auto gradients = drawn_gradients(shape, steps, 10);
  // The scales of float32's squares that do not exist.
  const double tiny = 1e-30;
  const double huge = 1e30;
  for (int64_t i = 0; i < steps; ++i) {
    auto& g = gradients[static_cast<size_t>(i)];
    const bool early = i < steps / 3;
    if (kind == "zero" || (kind == "zero first" && early) || (kind == "zero later" && !early)) {
      g.zero_();
    } else if (kind == "rank one" && g.dim() >= 2) {
      g = g.narrow(-1, 0, 1) * gradients[0].narrow(-2, 0, 1);
    } else if (kind == "one entry") {
      const auto kept = g.flatten()[0].item<double>();
      g.zero_().view({-1})[0] = kept;
    } else if (kind == "tiny" || (kind == "tiny then huge" && early) ||
               (kind == "huge then tiny" && !early)) {
      g *= tiny;
    } else if (kind == "huge" || kind == "tiny then huge" || kind == "huge then tiny") {
      g *= huge;
    } else if (kind == "mixed rows" && g.dim() >= 1) {
      g.select(-1, 0) *= tiny;
      g.select(0, 0) *= huge;
    }
    g = g.to(type);
  }
  return gradients;
}

inline bool all_finite(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
    return !tensor.defined() || tensor.isfinite().all().item<bool>();
  });
}

}  // namespace ddc::tests
