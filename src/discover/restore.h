#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ddc/gauge/gauge.h"

namespace ddc {

/// Where parameters are: writes the values that the one with this name has there.
using ValuesAt = std::function<void(const std::string& name, const at::Tensor& values)>;

/// Puts the values of parameters back, bit for bit, when it goes out of scope.
class Restore {
 public:
  /// Keeps a copy of them.
  explicit Restore(const Parameters& params) : params_(params) {
    for (const auto& [name, tensor] : params) saved_.push_back(tensor.detach().clone());
  }
  /// With copies that somebody has already.
  Restore(const Parameters& params, std::vector<at::Tensor> saved)
      : params_(params), saved_(std::move(saved)) {}
  /// With no copies, if somebody can tell the values.
  Restore(const Parameters& params, ValuesAt place) : params_(params), place_(std::move(place)) {}
  ~Restore() { now(); }
  /// Nothing is left to restore of what was moved from.
  Restore(Restore&& other) noexcept
      : params_(std::exchange(other.params_, {})),
        saved_(std::exchange(other.saved_, {})),
        place_(std::exchange(other.place_, {})) {}
  Restore& operator=(Restore&&) = delete;
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;

  void now() const {
    const at::NoGradGuard no_grad;
    size_t k = 0;
    for (const auto& [name, tensor] : params_) put(k++, name, tensor);
  }

  const Parameters& params() const { return params_; }
  /// The values of the parameter with this number in the table.
  at::Tensor value(size_t k) const {
    if (!place_) return saved_[k];
    const auto& [name, tensor] = *(params_.begin() + static_cast<std::ptrdiff_t>(k));
    auto values = at::empty_like(tensor.detach());
    place_(name, values);
    return values;
  }
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
  void put(size_t k, const std::string& name, const at::Tensor& tensor) const {
    if (place_) {
      place_(name, tensor);
    } else {
      at::Tensor(tensor).copy_(saved_[k]);
    }
  }

  Parameters params_;
  std::vector<at::Tensor> saved_;
  ValuesAt place_;
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
