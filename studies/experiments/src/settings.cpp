#include "ddc/experiments/settings.h"

#include <c10/util/Exception.h>

namespace ddc::experiments {

Json to_json(const OptionValue& value) {
  return std::visit([](const auto& each) { return Json(each); }, value);
}

OptionValue from_json(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number()) return value.get<double>();
  // What no option can be is refused by what it looks like.
  return value.is_string() ? value.get<std::string>() : value.dump();
}

Json parse_setting(const Setting& setting, const std::string& text) {
  return to_json(setting.option.parsed(text));
}

Settings declared_settings(const OptionList& options) {
  Settings result;
  for (const auto& option : options) result.push_back({option, to_json(option.get())});
  return result;
}

Json complete(const std::string& owner, const Settings& declared, const Json& given) {
  std::vector<std::string> names;
  Json result = Json::object();
  for (const auto& setting : declared) {
    names.push_back(setting.name());
    result[setting.name()] = setting.initial;
  }
  for (const auto& [name, value] : given.items()) {
    TORCH_CHECK_VALUE(result.contains(name), unknown("setting of " + owner, name, names));
    for (const auto& setting : declared) {
      if (setting.name() == name) result[name] = to_json(setting.option.checked(from_json(value)));
    }
  }
  return result;
}

void assign(const OptionList& options, const Json& settings) {
  for (const auto& option : options) {
    const auto found = settings.find(option.name());
    if (found != settings.end()) option.set(from_json(*found));
  }
}

}  // namespace ddc::experiments
