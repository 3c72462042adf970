// ddc run: trains a testbed, or goes on with a run that was interrupted.

#include "ddc/experiments/run.h"

#include <malloc.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "commands.h"
#include "ddc/experiments/catalogue.h"
#include "display.h"
#include "interrupt.h"
#include "options.h"
#include "text.h"

namespace ddc::cli {
namespace {

using namespace experiments;  // NOLINT: the command is about nothing else
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Settings {
  /// Those of its fields that options are bound to.
  RunConfig config;
  std::optional<double> lr;
  std::optional<double> weight_decay;
  std::optional<int64_t> steps;
  std::vector<uint64_t> seeds = {42};
  std::vector<std::string> set;
  std::vector<std::string> meters;
  std::string stop;
  std::string out;
  std::vector<std::string> resume;
  bool json = false;
  bool quiet = false;
  pid_t parent = 0;
};

/// Large tensors are made and freed at every step. By default each is mapped anew, and its pages are
/// faulted in one by one.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_TOP_PAD, 64 << 20);
}

/// A run of a grid ends, and saves, with the process that started it.
void follow(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) std::raise(SIGTERM);
}

const Setting* find_setting(const experiments::Settings& settings, const std::string& name) {
  const auto found = std::find_if(settings.begin(), settings.end(),
                                  [&](const Setting& setting) { return setting.name() == name; });
  return found == settings.end() ? nullptr : &*found;
}

std::vector<std::string> names_of_settings(const experiments::Settings& settings) {
  std::vector<std::string> names;
  for (const auto& setting : settings) names.push_back(setting.name());
  return names;
}

bool starts_with(const std::string& text, const std::string& prefix, std::string& rest) {
  if (text.rfind(prefix, 0) != 0) return false;
  rest = text.substr(prefix.size());
  return true;
}

/// A name is looked up among the settings of both the testbed and the optimizer, unless it says whose it
/// is: "testbed.scale", "optimizer.scale".
void apply_setting(RunConfig& config, const std::string& given, const std::string& value) {
  const auto& testbed = testbed_entry(config.testbed);
  const auto& optimizer = optimizer_entry(config.optimizer);
  auto name = given;
  const bool only_testbed = starts_with(given, "testbed.", name);
  const bool only_optimizer = starts_with(given, "optimizer.", name);
  const auto* of_testbed = only_optimizer ? nullptr : find_setting(testbed.settings, name);
  const auto* of_optimizer = only_testbed ? nullptr : find_setting(optimizer.settings, name);
  if (of_testbed != nullptr && of_optimizer != nullptr) {
    throw CLI::ValidationError("--set", "both the testbed and the optimizer have a setting '" +
                                            name + "': write testbed." + name + " or optimizer." +
                                            name);
  }
  if (of_testbed != nullptr) {
    config.testbed_settings[name] = parse_setting(*of_testbed, value);
  } else if (of_optimizer != nullptr) {
    config.optimizer_settings[name] = parse_setting(*of_optimizer, value);
  } else {
    auto names = names_of_settings(testbed.settings);
    for (auto& other : names_of_settings(optimizer.settings)) names.push_back(std::move(other));
    throw CLI::ValidationError("--set", unknown("setting", name, names) + " (ddc list testbeds " +
                                            testbed.name + ", ddc list optimizers " +
                                            optimizer.name + ")");
  }
}

/// The testbed's recipe is Adam's. Other optimizers measure learning rates in units of their own, and
/// have defaults of their own.
void apply_recipe(RunConfig& config) {
  const auto& recipe = testbed_entry(config.testbed).recipe;
  const auto& settings = optimizer_entry(config.optimizer).settings;
  config.steps = recipe.value("steps", config.steps);
  if (find_setting(settings, "beta1") == nullptr) return;
  for (const auto& [name, value] : recipe.items()) {
    if (find_setting(settings, name) != nullptr) config.optimizer_settings[name] = value;
  }
}

std::set<std::string> default_names() {
  std::set<std::string> names;
  for (const auto& meter : default_meters()) names.insert(meter["name"].get<std::string>());
  return names;
}

/// Configuration of the first seed.
RunConfig configured(const Settings& settings) {
  auto config = settings.config;
  apply_recipe(config);
  if (settings.steps) config.steps = *settings.steps;
  if (settings.lr) config.optimizer_settings["lr"] = *settings.lr;
  if (settings.weight_decay) config.optimizer_settings["weight_decay"] = *settings.weight_decay;
  for (const auto& text : settings.set) {
    const auto [name, value] = assignment("--set", text);
    apply_setting(config, name, value);
  }
  for (const auto& text : settings.meters) {
    const auto meter = parse_meter(text);
    // One of the default ones that is given is given its settings.
    std::erase_if(config.meters.get_ref<Json::array_t&>(), [&](const Json& other) {
      return other["name"] == meter["name"] && default_names().contains(meter["name"]);
    });
    config.meters.push_back(meter);
  }
  if (!settings.stop.empty()) {
    std::tie(config.stop_metric, config.stop_at) = level("--stop", settings.stop);
  }
  return completed(config);
}

/// The folders of the runs, all of them made: what cannot run is to be known before the first starts.
std::vector<fs::path> prepared(const Settings& settings) {
  if (!settings.resume.empty()) {
    for (const auto& folder : settings.resume) {
      read_config(folder);
      if (settings.steps) check_extension(folder, *settings.steps);
    }
    for (const auto& folder : settings.resume) {
      if (settings.steps) extend(folder, *settings.steps);
    }
    return {settings.resume.begin(), settings.resume.end()};
  }
  if (settings.config.testbed.empty()) {
    throw CLI::RequiredError("TESTBED (see ddc list testbeds) or --resume");
  }
  auto config = configured(settings);
  std::vector<fs::path> folders;
  for (const uint64_t seed : settings.seeds) {
    const auto name = "seed" + std::to_string(seed);
    if (settings.out.empty()) {
      folders.push_back(fs::path("out/runs") /
                        (config.testbed + "-" + config.optimizer + "-" + name));
    } else {
      folders.push_back(settings.seeds.size() > 1 ? fs::path(settings.out) / name
                                                  : fs::path(settings.out));
    }
    config.seed = seed;
    prepare(config, folders.back());
  }
  return folders;
}

/// Shows how a run goes: a bar on a terminal, and otherwise a line now and then.
class Watch {
 public:
  Watch(const RunConfig& config, bool quiet)
      : quiet_(quiet),
        label_("seed " + std::to_string(config.seed)),
        standing_{.steps = config.steps,
                  .loss = std::numeric_limits<double>::quiet_NaN(),
                  .drift = std::numeric_limits<double>::quiet_NaN()} {}

  RunHooks hooks() {
    RunHooks hooks{.interrupted = was_interrupted};
    if (quiet_) return hooks;
    hooks.step = [this](int64_t step, double loss) { on_step(step, loss); };
    hooks.measured = [this](const Measurement& measurement) { on_measured(measurement); };
    return hooks;
  }

 private:
  static constexpr auto between_bars = std::chrono::milliseconds(100);
  static constexpr auto between_lines = std::chrono::seconds(5);

  void on_step(int64_t step, double loss) {
    if (!first_step_) {
      first_step_ = step - 1;
      if (step > 1) display_.say(label_ + " goes on at step " + std::to_string(step - 1));
    }
    standing_.step = step;
    standing_.loss = loss;
    if (!display_.is_watched() || Clock::now() < next_) return;
    next_ = Clock::now() + between_bars;
    estimate();
    display_.show({Bar{.label = label_,
                       .fraction = static_cast<double>(step) / static_cast<double>(standing_.steps),
                       .text = describe(standing_)}});
  }

  void on_measured(const Measurement& measurement) {
    if (const auto drift = measurement.values.find("drift"); drift != measurement.values.end()) {
      standing_.drift = drift->second;
    }
    if (display_.is_watched() || Clock::now() < next_ + between_lines) return;
    next_ = Clock::now();
    estimate();
    display_.say(label_ + "  " + describe(standing_));
  }

  void estimate() {
    const std::chrono::duration<double> elapsed = Clock::now() - start_;
    standing_.seconds_left =
        seconds_left(elapsed.count(), standing_.step - first_step_.value_or(standing_.step),
                     standing_.steps - standing_.step);
  }

  bool quiet_;
  std::string label_;
  Standing standing_;
  Display display_;
  std::optional<int64_t> first_step_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point next_ = start_;
};

/// What has become of a run.
struct RunOutcome {
  fs::path folder;
  RunConfig config;
  /// Unset if it was interrupted.
  std::optional<RunSummary> summary;
  bool finished_before = false;
  Measurement last;
  double seconds = 0;
};

RunOutcome go(const fs::path& folder, bool quiet) {
  RunOutcome outcome{.folder = folder, .config = read_config(folder)};
  outcome.finished_before = read_summary(folder).has_value();
  const auto start = Clock::now();
  outcome.summary = resume(folder, Watch(outcome.config, quiet).hooks());
  outcome.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const auto metrics = read_metrics(folder);
  if (!metrics.empty()) outcome.last = metrics.back();
  return outcome;
}

std::string status_of(const RunOutcome& outcome) {
  return outcome.summary ? to_string(outcome.summary->status) : "interrupted";
}

Json to_object(const RunOutcome& outcome) {
  Json json = {{"folder", outcome.folder.string()},
               {"config", outcome.config},
               {"status", status_of(outcome)},
               {"finished_before", outcome.finished_before},
               {"seconds", outcome.seconds},
               {"step", outcome.last.step},
               // What is not finite becomes null.
               {"metrics", outcome.last.values}};
  return json;
}

/// A column per run, and below them where they are kept.
void print(const std::vector<RunOutcome>& outcomes) {
  Rows rows = {{""}, {"testbed"}, {"optimizer"}, {"status"}, {"step"}, {"time"}};
  std::set<std::string> metrics;
  for (const auto& outcome : outcomes) {
    rows[0].push_back("seed " + std::to_string(outcome.config.seed));
    rows[1].push_back(outcome.config.testbed);
    rows[2].push_back(outcome.config.optimizer);
    rows[3].push_back(status_of(outcome) + (outcome.finished_before ? " before" : ""));
    rows[4].push_back(std::to_string(outcome.last.step));
    rows[5].push_back(outcome.finished_before ? "-" : duration(outcome.seconds));
    for (const auto& [name, value] : outcome.last.values) metrics.insert(name);
  }
  for (const auto& metric : metrics) {
    std::vector<std::string> row = {metric};
    for (const auto& outcome : outcomes) {
      const auto found = outcome.last.values.find(metric);
      row.push_back(found == outcome.last.values.end() ? "-" : number(found->second));
    }
    rows.push_back(std::move(row));
  }
  std::set<std::string> meters;
  for (const auto& outcome : outcomes) {
    if (!outcome.summary) continue;
    for (const auto& [name, seconds] : outcome.summary->meter_seconds) meters.insert(name);
  }
  for (const auto& meter : meters) {
    std::vector<std::string> row = {"time of meter " + meter};
    for (const auto& outcome : outcomes) {
      const auto* seconds = outcome.summary ? &outcome.summary->meter_seconds : nullptr;
      const bool known = seconds != nullptr && seconds->contains(meter);
      row.push_back(known ? duration(seconds->at(meter)) : "-");
    }
    rows.push_back(std::move(row));
  }
  std::cout << aligned(rows) << '\n';
  for (const auto& outcome : outcomes) {
    if (!outcome.summary) continue;
    for (const auto& note : outcome.summary->meter_notes) {
      std::cout << "note: seed " << outcome.config.seed << ", " << note << '\n';
    }
  }
  for (const auto& outcome : outcomes) std::cout << outcome.folder.string() << '\n';
}

void run(const Settings& settings) {
  const bool in_grid = settings.parent > 0;
  catch_interrupts(in_grid ? SecondInterrupt::ignored : SecondInterrupt::ends);
  if (in_grid) follow(settings.parent);
  keep_freed_memory();
  const auto folders = prepared(settings);
  std::vector<RunOutcome> outcomes;
  while (outcomes.size() < folders.size() && !was_interrupted()) {
    outcomes.push_back(go(folders[outcomes.size()], settings.quiet));
  }
  if (settings.json) {
    Json runs = Json::array();
    for (const auto& outcome : outcomes) runs.push_back(to_object(outcome));
    std::cout << Json({{"runs", runs}}).dump(1) << std::endl;
  } else if (!settings.quiet && !outcomes.empty()) {
    print(outcomes);
    std::cout.flush();
  }
  // An interruption that came too late to interrupt anything is none.
  if (outcomes.size() == folders.size() && outcomes.back().summary) return;
  if (!in_grid) {
    std::vector<std::string> words = {called_with().front(), "run", "--resume"};
    for (const auto& folder : folders) {
      if (!read_summary(folder)) words.push_back(folder.string());
    }
    std::cerr << "interrupted, and saved; go on with\n  " << quoted(words) << '\n';
  }
  throw Exit{interrupted};
}

}  // namespace

void add_run(CLI::App& app) {
  auto* command = app.add_subcommand("run", "train a testbed");
  const auto settings = std::make_shared<Settings>();
  auto& config = settings->config;
  command->add_option("TESTBED", config.testbed, "name of a testbed (ddc list testbeds)")
      ->check(known("testbed", names_of(testbed_entries()), "ddc list testbeds"));
  command->add_option("--optimizer", config.optimizer, "name of an optimizer (ddc list optimizers)")
      ->type_name("NAME")
      ->check(known("optimizer", names_of(optimizer_entries()), "ddc list optimizers"))
      ->capture_default_str();
  command
      ->add_option("--lr", settings->lr,
                   "learning rate (default: the testbed's for Adam, the optimizer's for others)")
      ->type_name("X");
  command->add_option("--wd", settings->weight_decay, "weight decay (default: as for --lr)")
      ->type_name("X");
  const auto* steps =
      command
          ->add_option("--steps", settings->steps,
                       "number of steps (default: the testbed's; with --resume: more than before)")
          ->type_name("N")
          ->check(whole_number(1));
  command->add_option("--seeds", settings->seeds, "seeds, separated by commas: one run each")
      ->type_name("N,N,...")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(whole_number())
      ->capture_default_str();
  command
      ->add_option("--set", settings->set,
                   "settings of the testbed and the optimizer (ddc list testbeds TESTBED)")
      ->type_name("NAME=VALUE");
  command
      ->add_option("--meter", settings->meters,
                   "what to measure beside drift and turn (ddc list meters)")
      ->type_name("NAME[:KEY=VALUE,...]");
  command->add_option("--every", config.evaluate_every, "steps between evaluations")
      ->type_name("N")
      ->check(whole_number(1))
      ->capture_default_str();
  command->add_option("--dtype", config.dtype, "precision of the parameters")
      ->check(CLI::IsMember({"float32", "float64"}))
      ->type_name("")
      ->capture_default_str();
  command->add_option("--threads", config.threads, "threads of a run; results depend on it")
      ->type_name("N")
      ->check(whole_number(1))
      ->capture_default_str();
  command->add_option("--stop", settings->stop, "end once a metric is at least this")
      ->type_name("METRIC=VALUE");
  command->add_option("--warmup", config.warmup, "steps over which the learning rate rises")
      ->type_name("N")
      ->check(whole_number())
      ->capture_default_str();
  command->add_flag("--cosine", config.cosine, "let the learning rate fall to zero afterwards");
  command
      ->add_option("--keep", config.keep_every,
                   "keep a checkpoint every so many steps; 0: the last")
      ->type_name("N")
      ->check(whole_number())
      ->capture_default_str();
  command
      ->add_option("--out", settings->out,
                   "folder of the run, or of the folders of several "
                   "(default: out/runs/TESTBED-OPTIMIZER-seedN)")
      ->type_name("FOLDER");
  // Not by `excludes`, which repeats itself in the help of every option.
  const auto of_new_runs = command->get_options([steps](const CLI::Option* option) {
    return option != steps && option->get_name() != "--help";
  });
  command->add_option("--resume", settings->resume, "go on with the runs in these folders")
      ->type_name("FOLDER");
  command->add_flag("--json", settings->json, "print JSON instead of a table");
  command->add_flag("--quiet", settings->quiet, "show no progress and no table");
  command->add_option("--with-parent", settings->parent)->group("");
  command->callback([settings, of_new_runs] {
    for (const auto* option : of_new_runs) {
      if (!settings->resume.empty() && option->count() > 0) {
        throw CLI::ExcludesError("--resume", option->get_name());
      }
    }
    run(*settings);
  });
}

}  // namespace ddc::cli
