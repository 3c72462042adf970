// A symmetry group as JSON, and back.

#include <ATen/ATen.h>

#include <algorithm>
#include <set>

#include "ddc/treatment.h"
#include "discover/symmetry_fields.h"

namespace ddc {
namespace fields_json {
namespace {

constexpr const char* kFormat = "ddc symmetries";
constexpr int64_t kVersion = 2;

/// Version 1 stored with each gauge how an optimizer was to treat it. Nothing is lost where that was the
/// default.
void check_no_treatment(const json& document) {
  const auto findings = document.find("findings");
  if (findings == document.end() || !findings->is_array()) return;
  auto defaults = values_of(Treatment{});
  for (size_t i = 0; i < findings->size(); ++i) {
    const auto path = inside(inside("findings", i), "gauge");
    const auto gauge = (*findings)[i].is_object() ? (*findings)[i].find("gauge") : findings->end();
    if (!(*findings)[i].is_object() || gauge == (*findings)[i].end() || !gauge->is_object())
      continue;
    for (const auto& [option, value] : defaults) {
      const auto given = gauge->find(option);
      if (given == gauge->end()) continue;
      const auto expected = std::visit([](const auto& v) { return json(v); }, value);
      TORCH_CHECK(*given == expected, "symmetries: ", inside(path, option.c_str()), " is ",
                  shown(*given), ", which the optimizer is to be told since version 2 (", option,
                  " of its treatment): take it out of the file");
    }
  }
}

void check_header(const json& document) {
  const Reader reader(document, "", 0);
  const auto format = document.find("format");
  TORCH_CHECK(format != document.end() && *format == kFormat,
              "symmetries: the text is JSON, but not that of a symmetry group (format is ",
              format == document.end() ? "missing" : shown(*format), ", must be \"", kFormat,
              "\")");
  int64_t version = 0;
  reader.field("version", version);
  TORCH_CHECK(version == 1 || version == kVersion, "symmetries: version is ", version,
              ", this library reads 1 and ", kVersion);
  if (version == 1) check_no_treatment(document);
}

int64_t longest_axis(const std::vector<Fingerprint::Entry>& entries) {
  int64_t longest = 0;
  for (const auto& entry : entries) {
    for (const int64_t size : entry.shape) longest = std::max(longest, size);
  }
  return longest;
}

/// The gauges must fit the shapes that they are stored with. Tensors without data stand for the
/// parameters.
void check_gauges(const SymmetryGroup& group) {
  Parameters params;
  for (size_t i = 0; i < group.parameters.entries.size(); ++i) {
    const auto& [name, shape, role] = group.parameters.entries[i];
    try {
      params.add(name, at::empty(shape, at::TensorOptions(at::kFloat).device(at::kMeta)));
    } catch (const c10::Error& error) {
      TORCH_CHECK(false, "symmetries: ", inside("parameters", i), ": ",
                  error.what_without_backtrace());
    }
  }
  const int64_t longest = longest_axis(group.parameters.entries);
  std::set<std::string> names;
  for (size_t i = 0; i < group.findings.size(); ++i) {
    const auto& gauge = group.findings[i].gauge;
    const auto path = inside(inside("findings", i), "gauge");
    if (!names.insert(gauge.name).second) {
      Reader::reject(inside(path, "name"), gauge.name, "unique");
    }
    const int64_t most = std::min(longest, kMostEntries);
    if (!gauge.legs.empty() && gauge.channels / std::ssize(gauge.legs) > most) {
      Reader::reject(inside(path, "channels"), gauge.channels,
                     "no more than the axes of its legs could have");
    }
    try {
      validate(gauge, params);
    } catch (const c10::Error& error) {
      TORCH_CHECK(false, "symmetries: ", path, ": ", error.what_without_backtrace());
    }
  }
}

}  // namespace
}  // namespace fields_json

std::string SymmetryGroup::to_json() const {
  fields_json::json document = {{"format", fields_json::kFormat},
                                {"version", fields_json::kVersion}};
  document.update(fields_json::Writer::written(*this, ""));
  std::string text;
  fields_json::lay_out(document, 0, text);
  return text + "\n";
}

SymmetryGroup SymmetryGroup::parse(const std::string& json) {
  const auto document = io::parse_json<fields_json::json>(json, "symmetries: the text");
  fields_json::check_header(document);
  SymmetryGroup group;
  constexpr int64_t kMostDimensions = 64;
  fields_json::Reader(document, "", kMostDimensions).field("parameters", group.parameters.entries);
  fields_json::Reader reader(
      document, "", std::max(kMostDimensions, fields_json::longest_axis(group.parameters.entries)));
  fields_json::fields(reader, group);
  fields_json::check_gauges(group);
  return group;
}

}  // namespace ddc
