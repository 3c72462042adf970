// ddc audit: finds the symmetries of a built-in model.

#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>

#include "commands.h"
#include "ddc/discover/discover.h"
#include "display.h"
#include "models.h"
#include "options.h"
#include "text.h"

namespace ddc::cli {
namespace {

struct Settings {
  std::string model;
  bool list = false;
  bool json = false;
  bool no_completeness = false;
  std::string out;
  uint64_t seed = 0;
  std::string dtype = "float64";
  int64_t engagement = 0;
};

SymmetryGroup search(const Settings& settings, const testbeds::Testbed& testbed,
                     const Parameters& params) {
  Display display;
  return discover(params, testbeds::evaluation_of(testbed, params),
                  {.seed = settings.seed,
                   .engagement_steps = settings.engagement,
                   .completeness = !settings.no_completeness,
                   .progress = [&](const std::string& stage, size_t, size_t) {
                     display.show({stage + " ..."});
                   }});
}

void list_models() {
  Rows rows;
  for (const auto& model : models()) rows.push_back({model.name, model.description});
  std::cout << aligned(rows);
}

void run(const Settings& settings) {
  if (settings.list) return list_models();
  if (settings.model.empty()) throw CLI::RequiredError("MODEL (see ddc audit --list)");
  const auto dtype = settings.dtype == "float64" ? at::kDouble : at::kFloat;
  const auto testbed = make_model(settings.model);
  const auto params = testbed.init(settings.seed, dtype);
  const auto group = search(settings, testbed, params);
  if (settings.json) {
    std::cout << group.to_json();
  } else {
    int64_t numbers = 0;
    for (const auto& [name, tensor] : params) numbers += tensor.numel();
    std::cout << settings.model << ", " << settings.dtype << ": " << numbers << " parameters in "
              << params.size() << " tensors\n\n"
              << group;
  }
  // Last: what was found has been shown should this fail.
  if (!settings.out.empty()) group.save(settings.out);
}

}  // namespace

void add_audit(CLI::App& app) {
  auto* command = app.add_subcommand(
      "audit", "find the symmetries of a model, verify them, and say what is left unexplained");
  const auto settings = std::make_shared<Settings>();
  command->add_option("MODEL", settings->model, "name of a built-in model")
      ->check(known("model", names_of(models()), "ddc audit --list"));
  command->add_flag("--list", settings->list, "list the built-in models");
  command->add_flag("--json", settings->json, "print JSON instead of a table");
  command->add_option("--out", settings->out, "also store the result in this file, as JSON")
      ->type_name("FILE");
  command->add_option("--seed", settings->seed, "seed of the weights and of the search")
      ->type_name("N")
      ->check(whole_number())
      ->capture_default_str();
  command->add_option("--dtype", settings->dtype, "precision of the model")
      ->check(CLI::IsMember({"float64", "float32"}))
      ->type_name("")
      ->capture_default_str();
  command
      ->add_option("--engagement", settings->engagement,
                   "steps over which to measure how far AdamW and DDCAdam move each gauge")
      ->type_name("STEPS")
      ->check(whole_number())
      ->capture_default_str();
  command->add_flag("--no-completeness", settings->no_completeness,
                    "do not count the directions that no batch sees");
  command->callback([settings] { run(*settings); });
}

}  // namespace ddc::cli
