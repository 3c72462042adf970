#include "discover/graph.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <deque>

namespace ddc {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;

std::string operation(const Node* node) {
  const auto name = node->name();
  const auto end = name.find("Backward");
  const auto start = name.rfind("::");
  const size_t from = start == std::string::npos ? 0 : start + 2;
  return name.substr(from, end == std::string::npos ? end : end - from);
}

std::vector<const Node*> inputs(const Node* node) {
  std::vector<const Node*> result;
  for (const auto& edge : node->next_edges()) {
    if (edge.is_valid()) result.push_back(edge.function.get());
  }
  return result;
}

bool is_any_of(const std::string& name, std::initializer_list<const char*> words) {
  return std::find(words.begin(), words.end(), name) != words.end();
}

/// Changes shape or type only, or adds or multiplies a constant.
bool reshapes(const Node* node) {
  return inputs(node).size() == 1 &&
         is_any_of(operation(node),
                   {"T",      "Transpose", "Permute", "View",     "UnsafeView", "ReshapeAlias",
                    "Expand", "Unsqueeze", "Squeeze", "Slice",    "Split",      "Select",
                    "Chunk",  "Narrow",    "Clone",   "Alias",    "ToCopy",     "Add",
                    "Sub",    "Mul",       "Repeat",  "Unflatten"});
}

bool multiplies_matrices(const Node* node) {
  return operation(node).rfind("ScaledDotProduct", 0) == 0 ||
         is_any_of(operation(node), {"Bmm", "Mm", "Matmul", "Baddbmm"});
}

}  // namespace

Graph::Graph(const at::Tensor& loss, const Parameters& params)
    : params_(params), root_(loss.grad_fn().get()), loss_(loss) {
  std::deque<const Node*> open;
  std::unordered_set<const Node*> seen;
  if (root_ != nullptr) open.push_back(root_);
  while (!open.empty()) {
    const auto* node = open.front();
    open.pop_front();
    if (!seen.insert(node).second) continue;
    if (const auto* leaf = dynamic_cast<const AccumulateGrad*>(node)) {
      for (const auto& [name, tensor] : params) {
        if (leaf->variable.is_same(tensor)) names_.emplace(node, name);
        if (leaf->variable.is_same(tensor)) leaves_.emplace(name, node);
      }
    }
    for (const auto* input : inputs(node)) {
      consumers_[input].push_back(node);
      open.push_back(input);
    }
  }
}

std::set<std::string> Graph::parameters_of(const Node* node) const {
  std::set<std::string> result;
  for (const auto* input : inputs(node)) {
    while (reshapes(input)) input = inputs(input).front();
    const auto found = names_.find(input);
    if (found != names_.end()) result.insert(found->second);
  }
  return result;
}

std::vector<const Node*> Graph::first_readers(const std::string& name) const {
  std::vector<const Node*> result;
  std::deque<const Node*> open;
  if (contains(name)) open.push_back(leaves_.at(name));
  while (!open.empty()) {
    const auto found = consumers_.find(open.front());
    open.pop_front();
    if (found == consumers_.end()) continue;
    for (const auto* node : found->second) {
      if (reshapes(node)) {
        open.push_back(node);
      } else {
        result.push_back(node);
      }
    }
  }
  return result;
}

std::vector<std::string> Graph::uses(const std::string& name) const {
  std::vector<std::string> result;
  for (const auto* node : first_readers(name)) result.push_back(operation(node));
  return result;
}

std::set<std::string> Graph::before(const std::string& name) const {
  std::set<std::string> result;
  std::deque<const Node*> open;
  std::unordered_set<const Node*> seen;
  for (const auto* node : first_readers(name)) open.push_back(node);
  while (!open.empty()) {
    const auto* node = open.front();
    open.pop_front();
    if (!seen.insert(node).second) continue;
    auto here = parameters_of(node);
    const bool first = here.count(name) > 0;
    if (!here.empty() && !first) continue;
    result.insert(operation(node));
    for (const auto* input : inputs(node)) open.push_back(input);
  }
  return result;
}

Walk Graph::walk(const std::string& name) const {
  Walk result;
  struct Step {
    const Node* node;
    bool later;
  };
  std::deque<Step> open;
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> sums;
  const auto follow = [&](const Node* node, bool later) {
    const auto found = consumers_.find(node);
    if (node == root_) result.reaches_loss = true;
    if (found == consumers_.end()) return;
    for (const auto* next : found->second) open.push_back({next, later});
  };
  for (const auto* node : first_readers(name)) {
    const auto word = operation(node);
    // Beside a matrix, a vector is what is added to its product.
    auto others = parameters_of(node);
    others.erase(name);
    for (const auto& other : others) {
      const bool matrices = params_[other].tensor.dim() > 1 && params_[name].tensor.dim() > 1;
      (matrices && word != "Add" ? result.readers : result.added).insert(other);
    }
    if (word == "Add") sums.push_back(node);
    seen.insert(node);
    follow(node, false);
  }
  while (!open.empty()) {
    const auto [node, later] = open.front();
    open.pop_front();
    if (!seen.insert(node).second) continue;
    const auto others = parameters_of(node);
    const auto word = operation(node);
    const bool norm = word.find("Norm") != std::string::npos;
    const bool sum = word == "Add" || word == "Sub";
    if (sum && !later) {
      result.added.insert(others.begin(), others.end());
      if (others.empty()) sums.push_back(node);
    }
    if (norm) result.norms.insert(others.begin(), others.end());
    if (!reshapes(node) && (others.empty() || norm)) {
      (later ? result.later : result.operations).insert(word);
    }
    if (!sum && !others.empty()) {
      for (const auto& other : others) {
        const bool gain = word == "Mul" || params_[other].tensor.dim() > 1;
        if (gain && !norm) result.readers.insert(other);
      }
      continue;
    }
    follow(node, later || (others.empty() && multiplies_matrices(node)));
  }
  for (const auto* node : sums) {
    for (const auto* input : inputs(node)) {
      while (reshapes(input) && seen.count(input) == 0) input = inputs(input).front();
      const bool parameter = names_.count(input) > 0;
      result.joins = result.joins || (seen.count(input) == 0 && !parameter);
    }
  }
  return result;
}

}  // namespace ddc
