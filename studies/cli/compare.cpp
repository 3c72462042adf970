// ddc compare: two runs, or the results of two experiments, side by side.

#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "commands.h"
#include "ddc/experiments/report.h"
#include "ddc/experiments/run.h"
#include "options.h"
#include "text.h"

namespace ddc::cli {
namespace {

using namespace experiments;  // NOLINT: the command is about nothing else
namespace fs = std::filesystem;

struct Settings {
  std::string a;
  std::string b;
  std::vector<std::string> levels;
  bool json = false;
};

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

Json or_null(const std::optional<int64_t>& value) { return value ? Json(*value) : Json(); }

std::string shown(const Json& value) {
  if (value.is_null()) return "-";
  if (value.is_number_float()) return number(value);
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// "+0.5": what B has more than A.
std::string shown_difference(const Json& a, const Json& b) {
  if (!a.is_number() || !b.is_number()) return "";
  const double difference = b.get<double>() - a.get<double>();
  return (difference > 0 ? "+" : "") + number(difference);
}

// --- two runs --------------------------------------------------------------------------------

struct Side {
  fs::path folder;
  Json options;
  std::optional<RunSummary> summary;
  std::vector<Measurement> metrics;
};

Side read_side(const fs::path& folder) {
  return {.folder = folder,
          .options = Json(read_config(folder)).flatten(),
          .summary = read_summary(folder),
          .metrics = read_metrics(folder)};
}

double value_of(const Measurement& measurement, const std::string& metric) {
  const auto found = measurement.values.find(metric);
  return found == measurement.values.end() ? nan : found->second;
}

/// From above or from below, wherever the metric starts.
std::optional<int64_t> first_step_at(const Side& side, const std::string& metric, double level) {
  std::optional<bool> falls;
  for (const auto& measurement : side.metrics) {
    const double value = value_of(measurement, metric);
    if (std::isnan(value)) continue;
    if (!falls) falls = value > level;
    if (*falls ? value <= level : value >= level) return measurement.step;
  }
  return std::nullopt;
}

std::set<std::string> metrics_of(const Side& side) {
  std::set<std::string> names;
  for (const auto& measurement : side.metrics) {
    for (const auto& [name, value] : measurement.values) names.insert(name);
  }
  return names;
}

bool is_same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

/// Null if they are the same to the last bit, which the shortest decimals that read back as the same
/// number keep.
Json first_difference(const Side& a, const Side& b, const std::set<std::string>& metrics) {
  const size_t both = std::min(a.metrics.size(), b.metrics.size());
  for (size_t i = 0; i < both; ++i) {
    if (a.metrics[i].step != b.metrics[i].step) {
      return {{"step", std::min(a.metrics[i].step, b.metrics[i].step)}, {"metric", "step"}};
    }
    for (const auto& metric : metrics) {
      const double of_a = value_of(a.metrics[i], metric);
      const double of_b = value_of(b.metrics[i], metric);
      if (is_same(of_a, of_b)) continue;
      return {{"step", a.metrics[i].step}, {"metric", metric}, {"a", of_a}, {"b", of_b}};
    }
  }
  if (a.metrics.size() == b.metrics.size()) return nullptr;
  const auto& longer = a.metrics.size() > both ? a : b;
  return {{"step", longer.metrics[both].step}, {"metric", "step"}};
}

Json compare_runs(const fs::path& folder_a, const fs::path& folder_b,
                  const std::vector<std::string>& levels) {
  const auto a = read_side(folder_a);
  const auto b = read_side(folder_b);
  Json options = Json::object();
  for (const auto* side : {&a, &b}) {
    for (const auto& [name, value] : side->options.items()) {
      const auto of_a = a.options.value(name, Json());
      const auto of_b = b.options.value(name, Json());
      if (of_a != of_b) options[name.substr(1)] = {{"a", of_a}, {"b", of_b}};
    }
  }
  auto metrics = metrics_of(a);
  metrics.merge(metrics_of(b));
  Json last = Json::object();
  for (const auto& metric : metrics) {
    last[metric] = {{"a", a.metrics.empty() ? nan : value_of(a.metrics.back(), metric)},
                    {"b", b.metrics.empty() ? nan : value_of(b.metrics.back(), metric)}};
  }
  Json reached = Json::array();
  for (const auto& text : levels) {
    const auto [metric, value] = level("--level", text);
    if (!metrics.contains(metric)) {
      throw CLI::ValidationError("--level",
                                 unknown("metric", metric, {metrics.begin(), metrics.end()}));
    }
    reached.push_back({{"metric", metric},
                       {"level", value},
                       {"a", or_null(first_step_at(a, metric, value))},
                       {"b", or_null(first_step_at(b, metric, value))}});
  }
  const auto status = [](const Side& side) {
    return side.summary ? to_string(side.summary->status) : "unfinished";
  };
  const auto steps = [](const Side& side) -> Json {
    return side.metrics.empty() ? Json() : Json(side.metrics.back().step);
  };
  const auto difference = first_difference(a, b, metrics);
  return {{"a", {{"folder", a.folder.string()}, {"status", status(a)}, {"step", steps(a)}}},
          {"b", {{"folder", b.folder.string()}, {"status", status(b)}, {"step", steps(b)}}},
          {"options", options},
          {"last", last},
          {"reached", reached},
          {"identical", difference.is_null()},
          {"first_difference", difference}};
}

/// Paths are too long for a column.
void print_paths(const Json& json, const char* field) {
  std::cout << "A  " << json["a"][field].get<std::string>() << "\nB  "
            << json["b"][field].get<std::string>() << "\n\n";
}

void print_runs(const Json& json) {
  print_paths(json, "folder");
  Rows rows = {{"", "A", "B", "B - A"}};
  const auto add = [&](const std::string& name, const Json& a, const Json& b) {
    rows.push_back({name, shown(a), shown(b), shown_difference(a, b)});
  };
  add("status", json["a"]["status"], json["b"]["status"]);
  for (const auto& [name, values] : json["options"].items()) {
    rows.push_back({name, shown(values["a"]), shown(values["b"])});
  }
  add("step", json["a"]["step"], json["b"]["step"]);
  for (const auto& [name, values] : json["last"].items()) add(name, values["a"], values["b"]);
  for (const auto& entry : json["reached"]) {
    add("step at which " + entry["metric"].get<std::string>() + " is " + shown(entry["level"]),
        entry["a"], entry["b"]);
  }
  std::cout << aligned(rows) << '\n';
  const auto& difference = json["first_difference"];
  if (json["identical"]) {
    std::cout << "metrics: identical to the last bit\n";
  } else if (difference["metric"] == "step") {
    std::cout << "metrics: the same until only one of them has step " << difference["step"] << '\n';
  } else {
    std::cout << "metrics: first differ at step " << difference["step"] << ", in "
              << difference["metric"].get<std::string>() << ": " << difference["a"] << " and "
              << difference["b"] << '\n';
  }
}

// --- two results -----------------------------------------------------------------------------

Result read_one_result(const fs::path& path) {
  return read_results(fs::is_directory(path) ? path : path.parent_path()).front();
}

std::string label_of(const std::vector<std::string>& row, size_t columns) {
  std::string label;
  for (size_t i = 0; i < std::min(columns, row.size()); ++i) {
    label += (i > 0 ? ", " : "") + row[i];
  }
  return label;
}

bool labels_are_unique(const Table& table, size_t columns) {
  std::set<std::string> labels;
  return std::all_of(table.rows.begin(), table.rows.end(),
                     [&](const auto& row) { return labels.insert(label_of(row, columns)).second; });
}

/// The first columns of a table say whose the row is: as few as tell the rows apart.
size_t label_columns(const Table& a, const Table& b) {
  size_t columns = 1;
  while (columns < a.columns.size() &&
         !(labels_are_unique(a, columns) && labels_are_unique(b, columns))) {
    ++columns;
  }
  return columns;
}

/// Cells by row and column; those of the other side are looked up by the same names.
Json cells_of(const Table& table, size_t labels) {
  Json cells = Json::object();
  for (const auto& row : table.rows) {
    for (size_t i = labels; i < std::min(row.size(), table.columns.size()); ++i) {
      cells[label_of(row, labels)][table.columns[i]] = row[i];
    }
  }
  return cells;
}

Json claims_of(const Result& result) {
  Json claims = Json::object();
  for (const auto& claim : result.claims) {
    claims[claim.what] = {{"measured", claim.measured}, {"verdict", to_string(claim.outcome)}};
  }
  return claims;
}

/// {row: {column: {"a": ..., "b": ...}}} of all cells that either has.
Json side_by_side(const Json& a, const Json& b) {
  Json both = Json::object();
  for (const auto& [side, cells] : {std::pair("a", &a), std::pair("b", &b)}) {
    for (const auto& [row, columns] : cells->items()) {
      for (const auto& [column, cell] : columns.items()) both[row][column][side] = cell;
    }
  }
  return both;
}

Json compare_results(const fs::path& path_a, const fs::path& path_b) {
  const auto a = read_one_result(path_a);
  const auto b = read_one_result(path_b);
  const auto labels = label_columns(a.table, b.table);
  const auto about = [](const fs::path& path, const Result& result) -> Json {
    return {{"path", path.string()}, {"name", result.name}, {"quick", result.quick}};
  };
  return {{"a", about(path_a, a)},
          {"b", about(path_b, b)},
          {"table", side_by_side(cells_of(a.table, labels), cells_of(b.table, labels))},
          {"claims", side_by_side(claims_of(a), claims_of(b))},
          {"identical", Json(a) == Json(b)}};
}

void print_results(const Json& json) {
  print_paths(json, "path");
  Rows rows = {{"", "", "A", "B"}};
  const auto add = [&](const Json& of_rows) {
    for (const auto& [row, columns] : of_rows.items()) {
      auto label = row;
      for (const auto& [column, cell] : columns.items()) {
        rows.push_back(
            {label, column, shown(cell.value("a", Json())), shown(cell.value("b", Json()))});
        label.clear();
      }
    }
  };
  rows.push_back({"experiment", "", shown(json["a"]["name"]), shown(json["b"]["name"])});
  rows.push_back({"quick", "", shown(json["a"]["quick"]), shown(json["b"]["quick"])});
  add(json["table"]);
  add(json["claims"]);
  std::cout << aligned(rows) << '\n'
            << (json["identical"] ? "results: identical to the last bit\n" : "results: differ\n");
}

// ---------------------------------------------------------------------------------------------

bool is_run(const fs::path& path) { return fs::exists(path / "config.json"); }

bool is_result(const fs::path& path) {
  return fs::is_directory(path) ? fs::exists(path / "result.json") : fs::exists(path);
}

void check_path(const fs::path& path) {
  TORCH_CHECK(is_run(path) || is_result(path), "'", path.string(),
              "' is neither a run (it has no config.json) nor an experiment (no result.json)");
}

void run(const Settings& settings) {
  check_path(settings.a);
  check_path(settings.b);
  TORCH_CHECK(is_run(settings.a) == is_run(settings.b), "'",
              is_run(settings.a) ? settings.a : settings.b, "' is a run, and '",
              is_run(settings.a) ? settings.b : settings.a, "' is the result of an experiment");
  const bool runs = is_run(settings.a);
  const auto json = runs ? compare_runs(settings.a, settings.b, settings.levels)
                         : compare_results(settings.a, settings.b);
  if (settings.json) {
    std::cout << json.dump(1) << '\n';
  } else {
    runs ? print_runs(json) : print_results(json);
  }
}

}  // namespace

void add_compare(CLI::App& app) {
  auto* command = app.add_subcommand(
      "compare", "show two runs, or the results of two experiments, side by side");
  const auto settings = std::make_shared<Settings>();
  command->add_option("A", settings->a, "folder of a run or of an experiment, or a result.json")
      ->required();
  command->add_option("B", settings->b, "another of the same kind")->required();
  command
      ->add_option("--level", settings->levels,
                   "of runs: also the first step at which a metric has reached this")
      ->type_name("METRIC=VALUE");
  command->add_flag("--json", settings->json, "print JSON instead of a table");
  command->callback([settings] { run(*settings); });
}

}  // namespace ddc::cli
