#include "ddc/parameters.h"

#include <ATen/ATen.h>

namespace ddc {

Parameters::Parameters(std::vector<NamedTensor> entries) {
  for (auto& entry : entries) add(std::move(entry.name), std::move(entry.tensor));
}

Parameters::Parameters(const torch::OrderedDict<std::string, at::Tensor>& named_parameters) {
  for (const auto& item : named_parameters) add(item.key(), item.value());
}

void Parameters::add(std::string name, at::Tensor tensor) {
  TORCH_CHECK(!name.empty(), "ddc::Parameters: parameter ", entries_.size(), " has an empty name");
  TORCH_CHECK(tensor.defined(), "ddc::Parameters: '", name, "' is an undefined tensor");
  const bool inserted = index_.emplace(name, entries_.size()).second;
  TORCH_CHECK(inserted, "ddc::Parameters: the name '", name, "' is given twice");
  entries_.push_back({std::move(name), std::move(tensor)});
}

const NamedTensor& Parameters::operator[](std::string_view name) const {
  const auto found = index_.find(std::string(name));
  if (found != index_.end()) return entries_[found->second];
  std::string known;
  for (const auto& entry : entries_) known += (known.empty() ? "" : ", ") + entry.name;
  TORCH_CHECK(false, "ddc::Parameters: no parameter is called '", name, "'; there are: ", known);
}

bool Parameters::contains(std::string_view name) const {
  return index_.count(std::string(name)) > 0;
}

Parameters Parameters::clone() const {
  Parameters copy;
  for (const auto& [name, tensor] : entries_) {
    copy.add(name, tensor.detach().clone().requires_grad_(tensor.requires_grad()));
  }
  return copy;
}

std::vector<at::Tensor> Parameters::tensors() const {
  std::vector<at::Tensor> result;
  result.reserve(entries_.size());
  for (const auto& entry : entries_) result.push_back(entry.tensor);
  return result;
}

}  // namespace ddc
