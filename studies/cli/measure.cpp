// ddc measure: meters at a checkpoint of a run.

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "ddc/experiments/run.h"
#include "text.h"

namespace ddc::cli {
namespace {

using experiments::Json;

struct Settings {
  std::string folder;
  std::string checkpoint = "latest";
  std::vector<std::string> meters;
  bool json = false;
};

void run(const Settings& settings) {
  Json meters = Json::array();
  for (const auto& text : settings.meters) meters.push_back(experiments::parse_meter(text));
  std::vector<std::string> notes;
  const auto found = experiments::measure(settings.folder, settings.checkpoint, meters, &notes);
  if (settings.json) {
    // What is not finite becomes null.
    std::cout << Json({{"step", found.step}, {"values", found.values}, {"notes", notes}}).dump(1)
              << std::endl;
    return;
  }
  Rows rows = {{"step", std::to_string(found.step)}};
  for (const auto& [name, value] : found.values) rows.push_back({name, number(value)});
  std::cout << aligned(rows);
  for (const auto& note : notes) std::cout << "note: " << note << '\n';
  std::cout << std::flush;
}

}  // namespace

void add_measure(CLI::App& app) {
  auto* command = app.add_subcommand("measure", "measure a checkpoint of a run");
  const auto settings = std::make_shared<Settings>();
  command->add_option("FOLDER", settings->folder, "folder of a run (ddc run)")->required();
  command
      ->add_option("--checkpoint", settings->checkpoint,
                   "latest, or one that --keep kept (step-1000)")
      ->type_name("NAME")
      ->capture_default_str();
  command->add_option("--meter", settings->meters, "what to measure (ddc list meters)")
      ->type_name("NAME[:KEY=VALUE,...]");
  command->add_flag("--json", settings->json, "print JSON instead of a table");
  command->callback([settings] { run(*settings); });
}

}  // namespace ddc::cli
