#pragma once

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ddc {

/// A parameter together with the name by which gauges, errors and checkpoints refer to it.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// An ordered table of named parameters.
///
/// Gauges are plain data and refer to tensors by name; this table is what gives those names a
/// meaning. It shares the tensors with the model it was made from (as a parameter group does):
///
///     ddc::Parameters params(model->named_parameters());
///     auto gauge = ddc::relu_rescale({.in = params["fc1.weight"], .out = {params["fc2.weight"]}});
class Parameters {
 public:
  Parameters() = default;
  /// Names must be unique and tensors defined.
  explicit Parameters(std::vector<NamedTensor> entries);
  explicit Parameters(const torch::OrderedDict<std::string, at::Tensor>& named_parameters);

  void add(std::string name, at::Tensor tensor);

  /// The entry called `name`; an error that lists the closest thing to an answer otherwise.
  const NamedTensor& operator[](std::string_view name) const;
  bool contains(std::string_view name) const;

  /// A deep copy: same names, own storage, `requires_grad` kept, no gradients.
  Parameters clone() const;
  std::vector<at::Tensor> tensors() const;

  size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }

 private:
  std::vector<NamedTensor> entries_;
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace ddc
