#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <utility>
#include <vector>

// What options of several subcommands have in common.

namespace ddc::cli {

/// A whole number from `least` to 2^63 - 1. CLI11 itself would take -1 for 2^64 - 1, and what does not fit
/// for the largest that does.
CLI::Validator whole_number(int64_t least = 0);

/// One of the names; others are told the nearest one, and `where` to look.
CLI::Validator known(const std::string& kind, std::vector<std::string> names,
                     const std::string& where);

template <class Entry>
std::vector<std::string> names_of(const std::vector<Entry>& entries) {
  std::vector<std::string> names;
  for (const auto& entry : entries) names.push_back(entry.name);
  return names;
}

/// "key=value" in two.
std::pair<std::string, std::string> assignment(const std::string& option, const std::string& text);
/// "metric=0.9" in two.
std::pair<std::string, double> level(const std::string& option, const std::string& text);

}  // namespace ddc::cli
