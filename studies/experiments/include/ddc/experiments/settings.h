#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ddc/options.h"

// Settings that can be named on the command line and in config.json: the options of testbeds and optimizers.
// A struct of options lists them itself (ddc/options.h), or an overload `OptionList options_of(Options&)` in
// its namespace does.

namespace ddc::experiments {

using Json = nlohmann::json;

template <class Options>
requires requires(Options& options) { options.options(); }
OptionList options_of(Options& options) { return options.options(); }

/// Declaration of a setting, and its default.
struct Setting {
  Option option;
  Json initial;

  const std::string& name() const { return option.name(); }
};
using Settings = std::vector<Setting>;

Json to_json(const OptionValue& value);
OptionValue from_json(const Json& value);

/// The value that a text stands for: `--set depth=3`. Throws, naming the setting, if it is not of its type.
Json parse_setting(const Setting& setting, const std::string& text);

/// The settings of options with the values that they have.
Settings declared_settings(const OptionList& options);
template <class Options>
Settings declared_settings() {
  Options options;
  return declared_settings(options_of(options));
}

/// The defaults, with what `given` says in place of some of them. Throws on names that are not declared.
Json complete(const std::string& owner, const Settings& declared, const Json& given);

/// Assigns those of the settings that the options know.
void assign(const OptionList& options, const Json& settings);
template <class Options>
Options options_from(const Json& settings) {
  Options options;
  assign(options_of(options), settings);
  return options;
}

}  // namespace ddc::experiments
