#include "options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <system_error>

#include "ddc/experiments/settings.h"

namespace ddc::cli {
namespace {

/// Reads a number that is the whole text.
template <class Number>
bool parse(const std::string& text, Number& number) {
  const char* const end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && after == end;
}

}  // namespace

CLI::Validator whole_number(int64_t least) {
  const auto check = [least](const std::string& text) -> std::string {
    int64_t number = 0;
    if (parse(text, number) && number >= least) return "";
    return "must be a whole number, from " + std::to_string(least) + " to 2^63 - 1, got '" + text +
           "'";
  };
  return {check, "", "number"};
}

CLI::Validator known(const std::string& kind, std::vector<std::string> names,
                     const std::string& where) {
  const auto check = [kind, names = std::move(names), where](const std::string& name) {
    if (std::find(names.begin(), names.end(), name) != names.end()) return std::string();
    return unknown(kind, name, names).append(" (").append(where).append(")");
  };
  return {check, "", kind};
}

std::pair<std::string, std::string> assignment(const std::string& option, const std::string& text) {
  const auto sign = text.find('=');
  if (sign == 0 || sign == std::string::npos) {
    throw CLI::ValidationError(option, "must be NAME=VALUE, got '" + text + "'");
  }
  return {text.substr(0, sign), text.substr(sign + 1)};
}

std::pair<std::string, double> level(const std::string& option, const std::string& text) {
  const auto [metric, value] = assignment(option, text);
  double number = 0;
  if (!parse(value, number) || !std::isfinite(number)) {
    throw CLI::ValidationError(option, "must be METRIC=NUMBER, got '" + text + "'");
  }
  return {metric, number};
}

}  // namespace ddc::cli
