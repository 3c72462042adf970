#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "ddc/enum_names.h"

// # Options, declared once
//
// A struct of options is an aggregate with a member function that lists its fields:
//
//     struct SgdOptions {
//       double lr = 1e-3;
//       bool nesterov = false;
//       OptionList options() {
//         return {{"lr", lr, "learning rate", at_least(0)}, {"nesterov", nesterov, "look ahead"}};
//       }
//     };
//
// The C++ options, the Python signatures, the command line, the table in the docs and checkpoints all
// read that list. Values are bool, int, double, text, or an enum, which is known by its words
// (`EnumNames`). A std::optional has one value more, "default".

namespace ddc {

/// Value of an option of any type. An enum is its word, an unset option the word "default".
using OptionValue = std::variant<bool, int64_t, double, std::string>;
using OptionValues = std::map<std::string, OptionValue>;

/// Interval that a number must be in. NaN and infinity never are.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false;
  bool high_open = false;

  bool contains(double value) const;
  /// "finite and >= 0", "in [0, 1)".
  std::string text() const;
};
constexpr Range at_least(double low) { return {.low = low}; }
constexpr Range above(double low) { return {.low = low, .low_open = true}; }
constexpr Range fraction() { return {.low = 0, .high = 1, .high_open = true}; }
constexpr Range between(double low, double high) { return {.low = low, .high = high}; }

/// Option of one struct: its declaration, and access to the field.
class Option {
 public:
  Option(std::string name, bool& field, std::string help);
  Option(std::string name, int64_t& field, std::string help, Range range = {});
  Option(std::string name, uint64_t& field, std::string help);
  Option(std::string name, double& field, std::string help, Range range = {});
  Option(std::string name, std::string& field, std::string help);
  template <class Enum>
  requires std::is_enum_v<Enum> Option(std::string name, Enum& field, std::string help)
      : Option(std::move(name), Type::choice, std::move(help), {}) {
    choices_.assign(EnumNames<Enum>.begin(), EnumNames<Enum>.end());
    get_ = [&field] { return OptionValue(std::string(to_string(field))); };
    set_ = [&field, choices = choices_](const OptionValue& value) {
      const auto found = std::find(choices.begin(), choices.end(), std::get<std::string>(value));
      field = static_cast<Enum>(found - choices.begin());
    };
  }
  template <class T>
  Option(std::string name, std::optional<T>& field, std::string help, Range range = {})
      : Option(of_value(std::move(name), std::move(help), range, static_cast<T*>(nullptr))) {
    optional_ = true;
    if (type_ == Type::choice) choices_.insert(choices_.begin(), "default");
    get_ = [&field]() -> OptionValue {
      if (!field) return std::string("default");
      T copy = *field;
      return Option("", copy, "").get();
    };
    set_ = [&field](const OptionValue& value) {
      if (value == OptionValue(std::string("default"))) {
        field.reset();
      } else {
        Option("", field.emplace(), "").set_(value);
      }
    };
  }

  enum class Type { boolean, integer, number, text, choice };

  const std::string& name() const { return name_; }
  const std::string& help() const { return help_; }
  Type type() const { return type_; }
  const std::vector<std::string>& choices() const { return choices_; }
  const Range& range() const { return range_; }
  /// Whether "default" is a value.
  bool is_optional() const { return optional_; }
  /// Allowed values, for people: "true or false", "one of ...", "finite and >= 0".
  std::string rule() const;

  OptionValue get() const { return get_(); }
  /// Throws, naming option, value and rule, unless the value fits.
  void set(const OptionValue& value) const { set_(checked(value)); }
  /// The value in the type of the option, or an error. An int will do for a double.
  OptionValue checked(const OptionValue& value) const;
  /// The value that a text stands for, as on the command line.
  OptionValue parsed(const std::string& text) const;

 private:
  Option(std::string name, Type type, std::string help, Range range);
  /// The declaration of a value that is not there.
  template <class T>
  static Option of_value(std::string name, std::string help, Range range, T* /*none*/) {
    static T unused{};
    if constexpr (std::is_enum_v<T>) {
      return Option(std::move(name), unused, std::move(help));
    } else {
      return Option(std::move(name), unused, std::move(help), range);
    }
  }

  std::string name_;
  Type type_;
  std::string help_;
  Range range_;
  std::vector<std::string> choices_;
  bool optional_ = false;
  std::function<OptionValue()> get_;
  std::function<void(const OptionValue&)> set_;
};

/// All options of one struct, in the order of their declaration. Refers to the struct.
class OptionList : public std::vector<Option> {
 public:
  using std::vector<Option>::vector;

  OptionValues values() const;
  /// Assigns the values given. Throws on a name that is not declared, suggesting the nearest one.
  /// `owner` says whose options they are.
  void assign(const OptionValues& values, const std::string& owner = "") const;
  /// Throws, naming option, value and rule, unless all values are usable.
  void check() const;
  const Option* find(const std::string& name) const;
};

/// Texts of values: "true", "0.001", "exact".
std::string to_string(const OptionValue& value);

/// Values of a struct of options, by name.
template <class Options>
OptionValues values_of(Options options) {
  return options.options().values();
}

/// Throws unless all values of a struct of options are usable, each alone and together.
template <class Options>
void check_options(Options options) {
  options.options().check();
  if constexpr (requires { options.check(); }) options.check();
}

/// The name among `names` that is spelled most like `name`; empty if none is near.
std::string nearest(const std::string& name, const std::vector<std::string>& names);
/// "unknown KIND 'NAME'; did you mean 'NEAREST'?", or the names that there are.
std::string unknown(const std::string& kind, const std::string& name,
                    const std::vector<std::string>& names);

}  // namespace ddc
