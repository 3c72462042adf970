// ddc audit: finds the symmetries of a built-in model.

#include <ATen/ATen.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <iomanip>
#include <iostream>
#include <memory>
#include <string>
#include <system_error>

#include "commands.h"
#include "ddc/discover/discover.h"
#include "models.h"

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

/// The stage at hand, on standard error, redrawn in place; silent when nobody is watching.
class Progress {
 public:
  Progress() = default;
  ~Progress() {
    if (watched_) std::cerr << kClear << std::flush;
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(const std::string& stage) const {
    if (watched_) std::cerr << kClear << stage << " ..." << std::flush;
  }

 private:
  static constexpr const char* kClear = "\r\033[K";
  bool watched_ = isatty(STDERR_FILENO) != 0;
};

/// CLI11 would take the seed -1 for 2^64 - 1, and what does not fit for the largest that does.
std::string check_number(const std::string& text) {
  int64_t number = -1;
  const char* const end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && after == end && number >= 0) return "";
  return std::string("must be a whole number, from 0 to 2^63 - 1, got '").append(text) + "'";
}

std::string check_model(const std::string& name) {
  if (find_model(name) != nullptr) return "";
  auto message = std::string("unknown model '").append(name).append("'");
  const auto nearest = nearest_model(name);
  if (!nearest.empty()) message.append("; did you mean '").append(nearest).append("'?");
  return message.append(" (ddc audit --list)");
}

void list_models() {
  size_t width = 0;
  for (const auto& model : models()) width = std::max(width, model.name.size());
  for (const auto& model : models()) {
    std::cout << std::left << std::setw(static_cast<int>(width + 2)) << model.name
              << model.description << '\n';
  }
}

SymmetryGroup search(const Settings& settings, const testbeds::Testbed& testbed,
                     const Parameters& params) {
  const Progress progress;
  return discover(params, testbeds::evaluation_of(testbed, params),
                  {.seed = settings.seed,
                   .engagement_steps = settings.engagement,
                   .completeness = !settings.no_completeness,
                   .progress = [&](const std::string& stage) { progress.show(stage); }});
}

void run(const Settings& settings) {
  if (settings.list) return list_models();
  if (settings.model.empty()) throw CLI::RequiredError("MODEL (see ddc audit --list)");
  const auto dtype = settings.dtype == "float64" ? at::kDouble : at::kFloat;
  const auto testbed = find_model(settings.model)->make();
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
      ->check(CLI::Validator(check_model, "", "model"));
  command->add_flag("--list", settings->list, "list the built-in models");
  command->add_flag("--json", settings->json, "print JSON instead of a table");
  command->add_option("--out", settings->out, "also store the result in this file, as JSON")
      ->type_name("FILE");
  command->add_option("--seed", settings->seed, "seed of the weights and of the search")
      ->type_name("N")
      ->check(CLI::Validator(check_number, "", "number"))
      ->capture_default_str();
  command->add_option("--dtype", settings->dtype, "precision of the model")
      ->check(CLI::IsMember({"float64", "float32"}))
      ->type_name("")
      ->capture_default_str();
  command
      ->add_option("--engagement", settings->engagement,
                   "steps over which to measure how far AdamW and DDCAdam move each gauge")
      ->type_name("STEPS")
      ->check(CLI::Validator(check_number, "", "number"))
      ->capture_default_str();
  command->add_flag("--no-completeness", settings->no_completeness,
                    "do not count the directions that no batch sees");
  command->callback([settings] { run(*settings); });
}

}  // namespace ddc::cli
