#include "ddc/options.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <sstream>
#include <string_view>

namespace ddc {
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

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text.append(text.empty() ? "" : ", ").append(word);
  return text;
}

std::string number_text(double value) {
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return {buffer.data(), end};
}

template <class T>
std::optional<T> number_of(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

bool Range::contains(double value) const {
  return std::isfinite(value) && (low_open ? value > low : value >= low) &&
         (high_open ? value < high : value <= high);
}

std::string Range::text() const {
  const bool has_low = std::isfinite(low);
  const bool has_high = std::isfinite(high);
  if (has_low && has_high) {
    return std::string("in ")
        .append(low_open ? "(" : "[")
        .append(number_text(low))
        .append(", ")
        .append(number_text(high))
        .append(high_open ? ")" : "]");
  }
  if (has_low)
    return std::string("finite and ").append(low_open ? "> " : ">= ").append(number_text(low));
  return "finite";
}

Option::Option(std::string name, Type type, std::string help, Range range)
    : name_(std::move(name)), type_(type), help_(std::move(help)), range_(range) {}

Option::Option(std::string name, bool& field, std::string help)
    : Option(std::move(name), Type::boolean, std::move(help), {}) {
  get_ = [&field] { return OptionValue(field); };
  set_ = [&field](const OptionValue& value) { field = std::get<bool>(value); };
}

Option::Option(std::string name, int64_t& field, std::string help, Range range)
    : Option(std::move(name), Type::integer, std::move(help), range) {
  get_ = [&field] { return OptionValue(field); };
  set_ = [&field](const OptionValue& value) { field = std::get<int64_t>(value); };
}

Option::Option(std::string name, uint64_t& field, std::string help)
    : Option(std::move(name), Type::integer, std::move(help), at_least(0)) {
  get_ = [&field] { return OptionValue(static_cast<int64_t>(field)); };
  set_ = [&field](const OptionValue& value) {
    field = static_cast<uint64_t>(std::get<int64_t>(value));
  };
}

Option::Option(std::string name, double& field, std::string help, Range range)
    : Option(std::move(name), Type::number, std::move(help), range) {
  get_ = [&field] { return OptionValue(field); };
  set_ = [&field](const OptionValue& value) { field = std::get<double>(value); };
}

Option::Option(std::string name, std::string& field, std::string help)
    : Option(std::move(name), Type::text, std::move(help), {}) {
  get_ = [&field] { return OptionValue(field); };
  set_ = [&field](const OptionValue& value) { field = std::get<std::string>(value); };
}

std::string Option::rule() const {
  const std::string unset = optional_ ? "default, or " : "";
  switch (type_) {
    case Type::boolean:
      return unset + "true or false";
    case Type::integer:
      return unset + (range_.low == -std::numeric_limits<double>::infinity()
                          ? "a whole number"
                          : "a whole number " + range_.text().substr(range_.text().find(' ') + 5));
    case Type::number:
      return unset + range_.text();
    case Type::text:
      return "text";
    case Type::choice:
      return "one of " + joined(choices_);
  }
  return "?";
}

OptionValue Option::checked(const OptionValue& value) const {
  const auto refuse = [&](const std::string& must_be) {
    std::string hint;
    const auto* word = std::get_if<std::string>(&value);
    if (type_ == Type::choice && word != nullptr) {
      const auto near = nearest(*word, choices_);
      if (!near.empty()) hint = "; did you mean '" + near + "'?";
    }
    TORCH_CHECK_VALUE(false, "option ", name_, " must be ", must_be, ", got ",
                      word == nullptr ? to_string(value) : "'" + *word + "'", hint);
  };
  if (optional_ && value == OptionValue(std::string("default"))) return value;
  switch (type_) {
    case Type::boolean: {
      if (std::holds_alternative<bool>(value)) return value;
      const auto* number = std::get_if<int64_t>(&value);
      if (number == nullptr || (*number != 0 && *number != 1)) refuse(rule());
      return *number == 1;
    }
    case Type::integer: {
      const auto* whole = std::get_if<int64_t>(&value);
      const auto* real = std::get_if<double>(&value);
      int64_t number = 0;
      if (whole != nullptr) {
        number = *whole;
      } else if (real != nullptr && std::floor(*real) == *real && std::abs(*real) < 9e15) {
        number = static_cast<int64_t>(*real);
      } else {
        refuse(rule());
      }
      if (!range_.contains(static_cast<double>(number))) refuse(rule());
      return number;
    }
    case Type::number: {
      const auto* whole = std::get_if<int64_t>(&value);
      const auto* real = std::get_if<double>(&value);
      if (whole == nullptr && real == nullptr) refuse("a number");
      const double number = whole != nullptr ? static_cast<double>(*whole) : *real;
      if (!range_.contains(number)) refuse(rule());
      return number;
    }
    case Type::text:
      if (!std::holds_alternative<std::string>(value)) refuse(rule());
      return value;
    case Type::choice: {
      const auto* word = std::get_if<std::string>(&value);
      if (word == nullptr || std::find(choices_.begin(), choices_.end(), *word) == choices_.end()) {
        refuse(rule());
      }
      return value;
    }
  }
  return value;
}

OptionValue Option::parsed(const std::string& text) const {
  OptionValue value = text;
  if (type_ == Type::boolean) {
    if (text == "true" || text == "1") value = true;
    if (text == "false" || text == "0") value = false;
  } else if (type_ == Type::integer || type_ == Type::number) {
    if (const auto whole = number_of<int64_t>(text)) {
      value = *whole;
    } else if (const auto real = number_of<double>(text)) {
      value = *real;
    }
  }
  return checked(value);
}

OptionValues OptionList::values() const {
  OptionValues result;
  for (const auto& option : *this) result[option.name()] = option.get();
  return result;
}

const Option* OptionList::find(const std::string& name) const {
  const auto found =
      std::find_if(begin(), end(), [&](const Option& option) { return option.name() == name; });
  return found == end() ? nullptr : &*found;
}

void OptionList::assign(const OptionValues& values, const std::string& owner) const {
  for (const auto& [name, value] : values) {
    const auto* option = find(name);
    if (option == nullptr) {
      std::vector<std::string> names;
      for (const auto& each : *this) names.push_back(each.name());
      TORCH_CHECK_VALUE(false,
                        unknown(owner.empty() ? "option" : "option of " + owner, name, names));
    }
    option->set(value);
  }
}

void OptionList::check() const {
  for (const auto& option : *this) option.checked(option.get());
}

std::string to_string(const OptionValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* whole = std::get_if<int64_t>(&value)) return std::to_string(*whole);
  if (const auto* real = std::get_if<double>(&value)) return number_text(*real);
  return std::get<std::string>(value);
}

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
  if (!near.empty()) return message.append("; did you mean '").append(near).append("'?");
  return message.append("; there are ").append(joined(names));
}

}  // namespace ddc
