#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>
#include <vector>

#include "ddc/gauge/gauge.h"

namespace ddc {

/// Keeps a copy of the values of parameters, and puts them back, bit for bit, when it goes out of
/// scope.
class Restore {
 public:
  explicit Restore(const Parameters& params) : params_(params) {
    for (const auto& [name, tensor] : params) saved_.push_back(tensor.detach().clone());
  }
  /// With copies that somebody has already.
  Restore(const Parameters& params, std::vector<at::Tensor> saved)
      : params_(params), saved_(std::move(saved)) {}
  ~Restore() { now(); }
  /// Nothing is left to restore of what was moved from.
  Restore(Restore&& other) noexcept
      : params_(std::exchange(other.params_, {})), saved_(std::exchange(other.saved_, {})) {}
  Restore& operator=(Restore&&) = delete;
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;

  void now() const {
    const at::NoGradGuard no_grad;
    size_t k = 0;
    for (const auto& [name, tensor] : params_) at::Tensor(tensor).copy_(saved_[k++]);
  }

  const Parameters& params() const { return params_; }
  /// In the order of the table.
  const std::vector<at::Tensor>& saved() const { return saved_; }
  /// Saved values of some of the parameters, in their order.
  std::vector<at::Tensor> saved_of(const Parameters& some) const {
    std::vector<at::Tensor> result;
    size_t k = 0;
    for (const auto& [name, tensor] : params_) {
      if (some.contains(name)) result.push_back(saved_[k]);
      ++k;
    }
    return result;
  }

 private:
  Parameters params_;
  std::vector<at::Tensor> saved_;
};

/// The tensors that elements of the gauges move.
inline Parameters acted_on(const std::vector<Gauge>& gauges, const Parameters& params) {
  Parameters result;
  const auto add = [&](const std::string& name) {
    if (!name.empty() && !result.contains(name)) result.add(name, params[name].tensor);
  };
  for (const auto& gauge : gauges) {
    for (size_t k = 0; k < gauge.legs.size(); ++k) {
      // The matrices that read what is exchanged stay where they are.
      if (gauge.action != Action::exchange || gauge.legs[k].through.empty()) {
        add(gauge.legs[k].tensor);
      }
      add(gauge.legs[k].through.bias);
    }
  }
  return result;
}

}  // namespace ddc
