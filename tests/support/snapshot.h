#pragma once

#include <ATen/ATen.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "ddc/optim/lifted.h"

// Weights and optimizer state bit for bit, for tests of what must not change.

namespace ddc::tests {

using Snapshot = std::map<std::string, std::string>;

inline std::string bytes_of(const at::Tensor& tensor) {
  const auto dense = tensor.detach().contiguous();
  return {static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()};
}

/// The optimizer's state.
inline Snapshot snapshot_state(const LiftedOptimizer& optimizer) {
  Snapshot result;
  const auto state = optimizer.state_dict();
  for (const auto& [name, tensor] : state.tensors) result["optimizer " + name] = bytes_of(tensor);
  result["description"] = state.description;
  return result;
}

/// Weights and the optimizer's state.
inline Snapshot snapshot(const LiftedOptimizer& optimizer) {
  auto result = snapshot_state(optimizer);
  for (const auto& [name, tensor] : optimizer.parameter_table()) {
    result["model " + name] = bytes_of(tensor);
  }
  return result;
}

/// What is not the same in both, by name.
inline std::vector<std::string> differences(const Snapshot& before, const Snapshot& after) {
  std::set<std::string> keys;
  for (const auto& [key, bytes] : before) keys.insert(key);
  for (const auto& [key, bytes] : after) keys.insert(key);
  std::vector<std::string> result;
  for (const auto& key : keys) {
    if (before.count(key) == 0 || after.count(key) == 0 || before.at(key) != after.at(key)) {
      result.push_back(key);
    }
  }
  return result;
}

}  // namespace ddc::tests
