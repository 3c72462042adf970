#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ddc/parameters.h"

namespace torch::autograd {
struct Node;
}

namespace ddc {

/// What becomes of a parameter, from the operation that reads it up to the next ones that read another.
struct Walk {
  /// Operations after the first, named as autograd does but without "Backward0": up to where two
  /// activations are multiplied as matrices (attention scores), and from there on.
  std::set<std::string> operations;
  std::set<std::string> later;
  /// Parameters that are multiplied with what was made of it.
  std::set<std::string> readers;
  /// Gains and shifts of norms that it is seen through.
  std::set<std::string> norms;
  /// Parameters that are added to what was made of it.
  std::set<std::string> added;
  /// Something that does not come from the parameter is added: a residual connection.
  bool joins = false;
  bool reaches_loss = false;
};

/// The operations of one evaluation, as autograd keeps them.
class Graph {
 public:
  Graph(const at::Tensor& loss, const Parameters& params);

  /// Whether the loss depends on the parameter, as far as autograd knows.
  bool contains(const std::string& name) const { return leaves_.count(name) > 0; }
  Walk walk(const std::string& name) const;
  /// The operations that read the parameter first, each once per reading.
  std::vector<std::string> uses(const std::string& name) const;
  /// The operations that made what the parameter is combined with, up to other parameters.
  std::set<std::string> before(const std::string& name) const;

 private:
  using Node = torch::autograd::Node;
  std::vector<const Node*> first_readers(const std::string& name) const;
  /// The names of the parameters that enter an operation, reshaped at most.
  std::set<std::string> parameters_of(const Node* node) const;

  Parameters params_;
  const Node* root_ = nullptr;
  at::Tensor loss_;  // keeps the graph
  std::unordered_map<const Node*, std::vector<const Node*>> consumers_;
  std::unordered_map<const Node*, std::string> names_;
  std::map<std::string, const Node*> leaves_;
};

}  // namespace ddc
