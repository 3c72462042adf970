#include "ddc/experiments/settings.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <numeric>
#include <string_view>

namespace ddc::experiments {
namespace {

/// Insertions, deletions and replacements that make one of the other (Levenshtein).
size_t edit_distance(std::string_view from, std::string_view to) {
  std::vector<size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < from.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < to.size(); ++j) {
      const size_t replaced = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

const char* type_of(const Json& value) {
  if (value.is_boolean()) return "true or false";
  if (value.is_number_unsigned()) return "a whole number >= 0";
  if (value.is_number_integer()) return "a whole number";
  if (value.is_number()) return "a number";
  return "text";
}

}  // namespace

std::string nearest(const std::string& name, const std::vector<std::string>& names) {
  std::string found;
  // With more edits than half the letters and one it is another word.
  size_t best = name.size() / 2 + 2;
  for (const auto& candidate : names) {
    const size_t distance = edit_distance(name, candidate);
    if (distance >= best) continue;
    best = distance;
    found = candidate;
  }
  return found;
}

std::string unknown(const std::string& kind, const std::string& name,
                    const std::vector<std::string>& names) {
  auto message = std::string("unknown ").append(kind).append(" '").append(name).append("'");
  const auto near = nearest(name, names);
  if (!near.empty()) message.append("; did you mean '").append(near).append("'?");
  return message;
}

void check_setting(const std::string& name, const Json& initial, const Json& value) {
  const bool fits = initial.is_boolean()           ? value.is_boolean()
                    : initial.is_number_float()    ? value.is_number()
                    : initial.is_number_unsigned() ? value.is_number_unsigned()
                    : initial.is_number_integer()  ? value.is_number_integer()
                                                   : value.type() == initial.type();
  TORCH_CHECK_VALUE(fits, "setting ", name, " must be ", type_of(initial), ", got ", value.dump());
}

Json parse_setting(const SettingHelp& setting, const std::string& text) {
  if (setting.initial.is_string()) return text;
  auto value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  // What JSON does not know how to read is shown as it was given.
  if (value.is_discarded()) value = text;
  if (setting.initial.is_number_unsigned() && value.is_number_integer() &&
      value.get<int64_t>() >= 0) {
    value = value.get<uint64_t>();
  }
  check_setting(setting.name, setting.initial, value);
  return value;
}

Json complete(const std::string& owner, const std::vector<SettingHelp>& declared,
              const Json& given) {
  std::vector<std::string> names;
  Json result = Json::object();
  for (const auto& setting : declared) {
    names.push_back(setting.name);
    result[setting.name] = setting.initial;
  }
  for (const auto& [name, value] : given.items()) {
    TORCH_CHECK_VALUE(result.contains(name), unknown("setting of " + owner, name, names));
    check_setting(name, result[name], value);
    result[name] = value;
  }
  return result;
}

}  // namespace ddc::experiments
