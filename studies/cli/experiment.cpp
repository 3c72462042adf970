// ddc experiment: runs a grid, and what is left of it after an interruption.

#include "ddc/experiments/experiment.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "commands.h"
#include "ddc/experiments/grid.h"
#include "ddc/experiments/report.h"
#include "display.h"
#include "interrupt.h"
#include "options.h"
#include "text.h"

namespace ddc::cli {
namespace {

using namespace experiments;  // NOLINT: the command is about nothing else
namespace fs = std::filesystem;

struct Settings {
  std::string name;
  bool quick = false;
  int64_t jobs = std::max(1u, std::thread::hardware_concurrency());
  std::string out = "out/experiments";
  bool json = false;
  bool evaluate = false;
};

const std::string all = "all";

/// Quick results are kept apart: a report has room for one result of a name.
fs::path root_of(const Settings& settings) {
  return settings.quick ? fs::path(settings.out) / "quick" : fs::path(settings.out);
}

std::vector<Bar> bars_of(const GridProgress& progress) {
  std::vector<Bar> bars;
  for (const auto& run : progress.active) {
    bars.push_back(
        {.label = run.name,
         .fraction = static_cast<double>(run.step) / static_cast<double>(run.steps),
         .text = describe({.step = run.step,
                           .steps = run.steps,
                           .loss = run.loss,
                           .drift = run.drift,
                           .seconds_left = seconds_left(run.seconds, run.step - run.done_before,
                                                        run.steps - run.step)})});
  }
  auto text = std::to_string(progress.finished) + "/" + std::to_string(progress.all) + " runs  " +
              time_left(seconds_left(progress.seconds, progress.steps_done, progress.steps_left));
  if (progress.failed > 0) text += "  " + std::to_string(progress.failed) + " failed";
  const auto done = static_cast<double>(progress.steps - progress.steps_left);
  bars.push_back(
      {.label = "together", .fraction = done / static_cast<double>(progress.steps), .text = text});
  return bars;
}

std::string line_of(const EndedRun& run) {
  const auto& progress = run.progress;
  if (!run.summary) return progress.name + ": failed: " + run.error;
  return progress.name + ": " + to_string(run.summary->status) + " at step " +
         std::to_string(progress.step) + ", loss " + number(progress.loss) + ", drift " +
         number(progress.drift) + ", " + duration(progress.seconds);
}

GridOutcome run_all(const Experiment& experiment, const Settings& settings,
                    const fs::path& folder) {
  Display display;
  GridOptions options;
  options.jobs = settings.jobs;
  // Not by its name: the file may be replaced by another version while this one runs.
  options.command = {"/proc/self/exe",         "run",     "--quiet", "--with-parent",
                     std::to_string(getpid()), "--resume"};
  options.started = [&](size_t finished, size_t runs) {
    display.say(experiment.name + ": " + std::to_string(runs) + " runs, " +
                std::to_string(finished) + " of them finished already");
  };
  options.progress = [&](const GridProgress& progress) { display.show(bars_of(progress)); };
  // On a terminal the bars tell; what failed is worth a line there as well.
  options.ended = [&](const EndedRun& run) {
    if (!display.is_watched() || !run.summary) display.say(line_of(run));
  };
  options.interrupted = was_interrupted;
  return run_grid(experiment.plan(settings.quick), folder, options);
}

void print(const Result& result) {
  const size_t page = page_width();
  std::cout << '\n' << result.title << (result.quick ? " (quick)" : "") << '\n';
  std::cout << wrapped(result.question, page) << '\n';
  if (!result.table.rows.empty()) {
    Rows rows = {result.table.columns};
    rows.insert(rows.end(), result.table.rows.begin(), result.table.rows.end());
    std::cout << aligned(rows) << '\n';
  }
  if (!result.claims.empty()) {
    Rows rows = {{"", "paper", "here", "deviation", ""}};
    for (const auto& claim : result.claims) {
      rows.push_back({claim.what, claim.paper, claim.measured,
                      claim.deviation ? number(100 * *claim.deviation) + " %" : "",
                      to_string(claim.outcome)});
    }
    std::cout << aligned(rows);
    for (const auto& claim : result.claims) {
      if (!claim.note.empty()) std::cout << wrapped(claim.what + ": " + claim.note, page, 2);
    }
    std::cout << '\n';
  }
  if (!result.answer.empty()) std::cout << wrapped(result.answer, page) << '\n';
  if (!result.missing.empty()) {
    std::cout << result.missing.size() << (result.missing.size() == 1 ? " run is" : " runs are")
              << " missing:\n";
    for (const auto& name : result.missing) std::cout << "  " << name << '\n';
  }
}

[[noreturn]] void leave_interrupted(const std::string& said) {
  std::cerr << said << "; go on with\n  " << quoted(called_with()) << '\n';
  throw Exit{interrupted};
}

/// Runs one, prints it, and adds it to `report`. Whether all of its runs are finished.
bool run_one(const Experiment& experiment, const Settings& settings, Json& report) {
  const auto folder = root_of(settings) / experiment.name;
  const auto outcome = settings.evaluate ? GridOutcome{} : run_all(experiment, settings, folder);
  if (outcome.finished + outcome.failed.size() < outcome.all) {
    leave_interrupted(experiment.name + ": interrupted, and saved, with " +
                      std::to_string(outcome.finished) + " of " + std::to_string(outcome.all) +
                      " runs finished");
  }
  const auto result = evaluate_and_save(experiment, settings.quick, folder);
  Json failed = Json::array();
  for (const auto& run : outcome.failed) {
    failed.push_back({{"name", run.progress.name}, {"error", run.error}});
  }
  report.push_back({{"folder", folder.string()}, {"result", result}, {"failed", failed}});
  if (!settings.json) {
    print(result);
    std::cout.flush();
  }
  return outcome.failed.empty();
}

/// The same, but what is wrong with one of several experiments does not keep the others from running.
bool run_one_of_all(const Experiment& experiment, const Settings& settings, Json& report) {
  try {
    return run_one(experiment, settings, report);
  } catch (const c10::Error& error) {
    std::cerr << experiment.name << ": " << error.what_without_backtrace() << '\n';
    return false;
  }
}

void run(const Settings& settings) {
  catch_interrupts(SecondInterrupt::ends);
  Json report = Json::array();
  bool complete = true;
  if (settings.name == all) {
    for (const auto& experiment : experiments::experiments()) {
      if (was_interrupted()) leave_interrupted("interrupted before " + experiment.name);
      complete = run_one_of_all(experiment, settings, report) && complete;
    }
  } else {
    complete = run_one(experiment(settings.name), settings, report);
  }
  std::vector<std::string> pages;
  if (!report.empty()) {
    const auto root = root_of(settings);
    for (const auto& page : write_report(settings.name == all ? root : root / settings.name)) {
      pages.push_back(page.string());
    }
  }
  if (settings.json) {
    std::cout << Json({{"experiments", report}, {"reports", pages}}).dump(1) << '\n';
  } else if (!pages.empty()) {
    std::cout << "report: " << pages.back() << '\n';
  }
  std::cout.flush();
  if (!complete) throw Exit{failure};
}

}  // namespace

void add_experiment(CLI::App& app) {
  auto* command = app.add_subcommand(
      "experiment", "run an experiment of the paper, or what is left of it, and report on it");
  const auto settings = std::make_shared<Settings>();
  auto names = names_of(experiments::experiments());
  names.push_back(all);
  command
      ->add_option("NAME", settings->name, "name of an experiment (ddc list experiments), or all")
      ->required()
      ->check(known("experiment", std::move(names), "ddc list experiments"));
  command->add_flag("--quick", settings->quick, "smaller and shorter runs");
  command->add_option("--jobs", settings->jobs, "runs at a time")
      ->type_name("N")
      ->check(whole_number(1))
      ->capture_default_str();
  command
      ->add_option("--out", settings->out,
                   "where the folders of experiments are; those of quick ones are in quick/ there")
      ->type_name("DIR")
      ->capture_default_str();
  command->add_flag("--evaluate", settings->evaluate,
                    "run nothing: report on the runs that are finished");
  command->add_flag("--json", settings->json, "print JSON instead of tables");
  command->callback([settings] { run(*settings); });
}

}  // namespace ddc::cli
