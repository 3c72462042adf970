#include "ddc/discover/symmetry_group.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cmath>

#include "io/whole_file.h"

namespace ddc {
namespace {

constexpr const char* kWhat = "symmetries file";

const Fingerprint::Entry* find(const Fingerprint& fingerprint, const std::string& name) {
  for (const auto& entry : fingerprint.entries) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

}  // namespace

Fingerprint fingerprint(const Parameters& params) {
  Fingerprint result;
  for (const auto& [name, tensor] : params) result.entries.push_back({name, tensor.sizes().vec()});
  return result;
}

std::vector<Gauge> SymmetryGroup::gauges() const {
  std::vector<Gauge> result;
  result.reserve(findings.size());
  for (const auto& finding : findings) result.push_back(finding.gauge);
  return result;
}

int64_t SymmetryGroup::dimension() const {
  int64_t sum = 0;
  for (const auto& finding : findings) sum += finding.dimension;
  return sum;
}

void SymmetryGroup::check(const Parameters& params) const {
  for (const auto& [name, shape, role] : parameters.entries) {
    TORCH_CHECK(params.contains(name), "symmetries: the group was found on a model with '", name,
                "' of shape ", at::IntArrayRef(shape), "; this model has no such parameter");
    const auto& tensor = params[name].tensor;
    TORCH_CHECK(tensor.sizes() == at::IntArrayRef(shape),
                "symmetries: the group was found on a model with '", name, "' of shape ",
                at::IntArrayRef(shape), "; it has shape ", tensor.sizes(), " in this model");
  }
  for (const auto& [name, tensor] : params) {
    TORCH_CHECK(find(parameters, name) != nullptr,
                "symmetries: the group was found on a model with ", parameters.entries.size(),
                " parameters, and '", name, "' of shape ", tensor.sizes(), " is not among them");
  }
}

void SymmetryGroup::act_random_(const Parameters& params, double size, uint64_t seed) const {
  TORCH_CHECK(std::isfinite(size) && size >= 0, "act_random_: size must be finite and >= 0, got ",
              size);
  check(params);
  const auto all = gauges();
  act_(all, random_element(all, params, size, at::make_generator<at::CPUGeneratorImpl>(seed)),
       params);
}

void SymmetryGroup::save(const std::string& path) const {
  const auto text = to_json();
  io::NewFile file(path, kWhat);
  file.write(text.data(), text.size());
  file.replace_target();
}

SymmetryGroup SymmetryGroup::load(const std::string& path) {
  const io::OldFile file(path, kWhat);
  std::string text(file.size(), '\0');
  file.read(0, text.data(), text.size());
  try {
    return parse(text);
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, kWhat, " '", path, "': ", error.what_without_backtrace());
  }
}

SymmetryGroup SymmetryGroup::load(const std::string& path, const Parameters& params) {
  auto group = load(path);
  try {
    group.check(params);
    // `parse` has seen to the shapes; what is left is what a file does not know, such as a dtype.
    for (const auto& finding : group.findings) validate(finding.gauge, params);
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, kWhat, " '", path, "': ", error.what_without_backtrace());
  }
  return group;
}

}  // namespace ddc
