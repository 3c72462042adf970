// ddc list: what can be named on the command line.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "commands.h"
#include "ddc/experiments/catalogue.h"
#include "ddc/experiments/experiment.h"
#include "ddc/experiments/meter.h"
#include "models.h"
#include "options.h"
#include "text.h"

namespace ddc::cli {
namespace {

using namespace experiments;  // NOLINT: the command is about nothing else

struct ListOptions {
  std::string kind;
  std::string name;
  bool json = false;
};

Json described(const experiments::Settings& settings) {
  Json list = Json::array();
  for (const auto& setting : settings) {
    list.push_back({{"name", setting.name()},
                    {"default", setting.initial},
                    {"values", setting.option.rule()},
                    {"help", setting.option.help()}});
  }
  return list;
}

Json described(const TestbedEntry& testbed) {
  return {{"name", testbed.name},
          {"description", testbed.description},
          {"recipe", testbed.recipe},
          {"settings", described(testbed.settings)}};
}

Json described(const OptimizerEntry& optimizer) {
  return {{"name", optimizer.name},
          {"description", optimizer.description},
          {"settings", described(optimizer.settings)}};
}

Json described(const MeterEntry& meter) {
  auto settings = described(meter.settings);
  settings.insert(settings.begin(), Json({{"name", "every"},
                                          {"default", 1},
                                          {"values", "whole number, >= 1"},
                                          {"help", "evaluations between two measurements"}}));
  return {{"name", meter.name}, {"description", meter.description}, {"settings", settings}};
}

/// The arms in the order in which they are planned, and how many runs with which seeds there are.
Json described(const std::vector<PlannedRun>& runs) {
  Json arms = Json::array();
  std::set<uint64_t> seeds;
  int64_t steps = 0;
  for (const auto& run : runs) {
    if (std::find(arms.begin(), arms.end(), run.arm) == arms.end()) arms.push_back(run.arm);
    seeds.insert(run.config.seed);
    steps = std::max(steps, run.config.steps);
  }
  return {{"arms", arms}, {"runs", runs.size()}, {"seeds", seeds}, {"steps", steps}};
}

Json described(const Experiment& experiment) {
  return {{"name", experiment.name},
          {"description", experiment.title},
          {"question", experiment.question},
          {"full", described(experiment.plan(false))},
          {"quick", described(experiment.plan(true))}};
}

Json described(const Model& model) {
  return {{"name", model.name}, {"description", model.description}};
}

/// What can be named of one kind, and how the names are used.
struct Kind {
  std::string name;
  std::string used_by;
  std::vector<Json> entries;
};

template <class Entry>
Kind kind(const char* name, const char* used_by, const std::vector<Entry>& entries) {
  Kind result{.name = name, .used_by = used_by, .entries = {}};
  for (const auto& entry : entries) result.entries.push_back(described(entry));
  return result;
}

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      kind("testbeds", "ddc run TESTBED", testbed_entries()),
      kind("optimizers", "ddc run TESTBED --optimizer NAME", optimizer_entries()),
      kind("meters", "ddc run TESTBED --meter NAME:KEY=VALUE,...", meter_entries()),
      kind("experiments", "ddc experiment NAME", experiments::experiments()),
      kind("models", "ddc audit MODEL", models())};
  return all;
}

const Kind& find_kind(const std::string& name) {
  return *std::find_if(kinds().begin(), kinds().end(),
                       [&](const Kind& candidate) { return candidate.name == name; });
}

const Json& find(const Kind& kind, const std::string& name) {
  std::vector<std::string> names;
  for (const auto& entry : kind.entries) {
    if (entry["name"] == name) return entry;
    names.push_back(entry["name"]);
  }
  const auto singular = kind.name.substr(0, kind.name.size() - 1);
  throw CLI::ValidationError("NAME",
                             unknown(singular, name, names) + " (ddc list " + kind.name + ")");
}

std::string joined(const Json& list) {
  std::string text;
  for (const auto& item : list) {
    text += (text.empty() ? "" : ", ") + (item.is_string() ? item.get<std::string>() : item.dump());
  }
  return text;
}

void print_all(const Kind& kind, size_t indent) {
  Rows rows;
  for (const auto& entry : kind.entries) {
    rows.push_back({std::string(indent, ' ') + entry["name"].get<std::string>(),
                    entry["description"].get<std::string>()});
  }
  std::cout << aligned(rows);
}

void print_plan(const char* which, const Json& plan) {
  std::cout << '\n'
            << which << ": " << plan["runs"] << " runs of up to " << plan["steps"]
            << " steps, seeds " << joined(plan["seeds"]) << '\n';
  for (const auto& arm : plan["arms"]) std::cout << "  " << arm.get<std::string>() << '\n';
}

void print(const Json& entry) {
  std::cout << entry["name"].get<std::string>() << ": " << entry["description"].get<std::string>()
            << '\n';
  if (entry.contains("question")) {
    std::cout << wrapped(entry["question"], page_width());
    print_plan("full", entry["full"]);
    print_plan("--quick", entry["quick"]);
  }
  if (entry.contains("recipe")) {
    std::cout << "\nrecipe of ddc run:";
    for (const auto& [name, value] : entry["recipe"].items()) {
      std::cout << ' ' << name << '=' << value;
    }
    std::cout << '\n';
  }
  if (entry.contains("settings")) {
    std::cout << "\nsettings (--set NAME=VALUE):\n";
    Rows rows;
    for (const auto& setting : entry["settings"]) {
      rows.push_back({"  " + setting["name"].get<std::string>(), setting["default"].dump(),
                      setting["help"].get<std::string>()});
    }
    std::cout << aligned(rows);
  }
}

void run(const ListOptions& settings) {
  if (settings.kind.empty()) {
    Json everything;
    for (const auto& kind : kinds()) {
      everything[kind.name] = kind.entries;
      if (settings.json) continue;
      std::cout << (everything.size() > 1 ? "\n" : "") << kind.name << " (" << kind.used_by
                << ")\n";
      print_all(kind, 2);
    }
    if (settings.json) std::cout << everything.dump(1) << '\n';
    return;
  }
  const auto& kind = find_kind(settings.kind);
  const auto* entry = settings.name.empty() ? nullptr : &find(kind, settings.name);
  if (settings.json) {
    std::cout << (entry != nullptr ? *entry : Json(kind.entries)).dump(1) << '\n';
  } else if (entry != nullptr) {
    print(*entry);
  } else {
    print_all(kind, 0);
  }
}

}  // namespace

void add_list(CLI::App& app) {
  auto* command = app.add_subcommand(
      "list", "list testbeds, optimizers, meters, experiments and models, or describe one of them");
  const auto settings = std::make_shared<ListOptions>();
  command->add_option("KIND", settings->kind, "testbeds, optimizers, meters, experiments or models")
      ->check(
          known("kind", {"testbeds", "optimizers", "meters", "experiments", "models"}, "ddc list"));
  command->add_option("NAME", settings->name, "describe this one, with its settings");
  command->add_flag("--json", settings->json, "print JSON instead of text");
  command->callback([settings] { run(*settings); });
}

}  // namespace ddc::cli
