#pragma once

#include <cstddef>
#include <vector>

namespace ddc {

struct ComponentView;

/// Indices into a plan's lists.
struct Items {
  std::vector<size_t> tensors;
  std::vector<size_t> gauges;
  std::vector<size_t> nodes;
};

/// Values of items of one kind, found by index in the plan.
///
/// For a component only the values of its own items are there: a step allocates what the component needs,
/// however large the plan is.
template <class T, std::vector<size_t> Items::*Kind>
class Dense {
 public:
  Dense() = default;
  /// Makes room for all items of a plan.
  explicit Dense(size_t size) : values_(size) {}
  explicit Dense(const ComponentView& component);

  size_t size() const { return values_.size(); }
  decltype(auto) operator[](size_t item) { return values_[place(item)]; }
  decltype(auto) operator[](size_t item) const { return values_[place(item)]; }

 private:
  size_t place(size_t item) const { return places_ == nullptr ? item : (*places_)[item]; }

  /// Per item of the plan: which of its component's it is.
  const std::vector<size_t>* places_ = nullptr;
  std::vector<T> values_;
};

template <class T>
using PerTensor = Dense<T, &Items::tensors>;
template <class T>
using PerGauge = Dense<T, &Items::gauges>;
template <class T>
using PerNode = Dense<T, &Items::nodes>;

}  // namespace ddc
