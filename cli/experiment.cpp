// ddc experiment: runs a grid, and what is left of it after an interruption.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <thread>

#include "commands.h"
#include "ddc/experiments/grid.h"
#include "interrupt.h"

namespace ddc::cli {
namespace {

using namespace experiments;  // NOLINT: the command is about nothing else

struct Settings {
  std::string name;
  bool quick = false;
  int64_t jobs = std::max(1u, std::thread::hardware_concurrency());
  std::string out = "out/experiments";
};

void run(const Settings& settings) {
  catch_interrupts();
  const auto& chosen = experiment(settings.name);
  const auto folder =
      std::filesystem::path(settings.out) / (chosen.name + (settings.quick ? "-quick" : ""));
  GridOptions options;
  options.jobs = settings.jobs;
  options.command = {std::filesystem::read_symlink("/proc/self/exe").string(), "run",
                     "--with-parent", std::to_string(getpid()), "--resume"};
  options.interrupted = interrupted;
  options.ended = [](const PlannedRun& run, const std::optional<RunSummary>& summary,
                     const std::string& error) {
    std::cout << run.name << ": "
              << (summary ? std::string(to_string(summary->status)) + " at step " +
                                std::to_string(summary->steps)
                          : error)
              << std::endl;
  };
  run_grid(chosen.plan(settings.quick), folder, options);
  evaluate_and_save(chosen, settings.quick, folder);
}

}  // namespace

void add_experiment(CLI::App& app) {
  auto* command = app.add_subcommand("experiment", "run an experiment of the paper");
  const auto settings = std::make_shared<Settings>();
  command->add_option("NAME", settings->name, "name of an experiment (ddc list)")->required();
  command->add_flag("--quick", settings->quick, "smaller and shorter runs");
  command->add_option("--jobs", settings->jobs, "runs at a time")->capture_default_str();
  command->add_option("--out", settings->out, "where folders of experiments are")
      ->capture_default_str();
  command->callback([settings] { run(*settings); });
}

}  // namespace ddc::cli
