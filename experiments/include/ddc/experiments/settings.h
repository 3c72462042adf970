#pragma once

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <vector>

// Settings that can be named on the command line and in config.json. A struct of options declares each
// of them once, in one function
//
//     template <class Visit>
//     void visit_settings(ReluChainOptions& options, Visit&& visit) {
//       visit("depth", options.depth, "number of linear layers");
//       ...
//     }
//
// from which their defaults, their help, how they are read and how they are stored are deduced. Values are
// numbers, truth values and text.

namespace ddc::experiments {

using Json = nlohmann::json;

/// The name among `names` that is spelled most like `name`; empty if none is near.
std::string nearest(const std::string& name, const std::vector<std::string>& names);

/// "unknown KIND 'NAME'; did you mean 'NEAREST'?"
std::string unknown(const std::string& kind, const std::string& name,
                    const std::vector<std::string>& names);

struct SettingHelp {
  std::string name;
  Json initial;
  std::string help;
};

/// Of the default, for a value given as text: `--set depth=3`. Throws, naming the setting, if it is not
/// of the default's type.
Json parse_setting(const SettingHelp& setting, const std::string& text);

/// Throws, naming the setting, unless `value` can take the place of the default.
void check_setting(const std::string& name, const Json& initial, const Json& value);

template <class Options>
std::vector<SettingHelp> declared_settings() {
  Options options;
  std::vector<SettingHelp> result;
  visit_settings(options, [&](const char* name, auto& value, const char* help) {
    result.push_back({name, Json(value), help});
  });
  return result;
}

/// The defaults, with what `given` says in place of some of them. Throws on names that are not declared.
Json complete(const std::string& owner, const std::vector<SettingHelp>& declared,
              const Json& given);

template <class Options>
Options options_from(const Json& settings) {
  Options options;
  visit_settings(options, [&](const char* name, auto& value, const char* /*help*/) {
    const auto found = settings.find(name);
    if (found == settings.end()) return;
    check_setting(name, Json(value), *found);
    value = found->template get<std::remove_reference_t<decltype(value)>>();
  });
  return options;
}

}  // namespace ddc::experiments
