#include "ddc/experiments/run.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/version.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "ddc/experiments/catalogue.h"
#include "ddc/io/checkpoint.h"
#include "ddc/optim/schedule.h"
#include "ddc/testbeds/runs.h"
#include "ddc/version.h"
#include "files.h"
#include "folder_lock.h"
#include "io/json_text.h"

namespace ddc::experiments {
namespace {

namespace fs = std::filesystem;

template <class Config, class Visit>
void visit_fields(Config& config, Visit&& visit) {
  visit("testbed", config.testbed);
  visit("testbed_settings", config.testbed_settings);
  visit("optimizer", config.optimizer);
  visit("optimizer_settings", config.optimizer_settings);
  visit("steps", config.steps);
  visit("seed", config.seed);
  visit("evaluate_every", config.evaluate_every);
  visit("dtype", config.dtype);
  visit("threads", config.threads);
  visit("warmup", config.warmup);
  visit("cosine", config.cosine);
  visit("stop_metric", config.stop_metric);
  visit("stop_at", config.stop_at);
  visit("keep_every", config.keep_every);
  visit("meters", config.meters);
}

/// More cannot be started on usual systems.
constexpr int64_t kMostThreads = 1024;

fs::path config_file(const fs::path& folder) { return folder / "config.json"; }
fs::path metrics_file(const fs::path& folder) { return folder / "metrics.jsonl"; }
fs::path summary_file(const fs::path& folder) { return folder / "summary.json"; }
fs::path checkpoint_file(const fs::path& folder, const std::string& name) {
  return folder / "checkpoints" / (name + ".safetensors");
}
fs::path latest_checkpoint(const fs::path& folder) { return checkpoint_file(folder, "latest"); }

/// Seeds of the batches of one run: all different, and none shared with another seed's.
uint64_t batch_seed(uint64_t seed, int64_t step) {
  return seed * 1000000 + static_cast<uint64_t>(step);
}

std::string line_of(const Measurement& measurement) {
  Json json = {{"step", measurement.step}};
  for (const auto& [name, value] : measurement.values) {
    json[name] = std::isfinite(value) ? Json(value) : Json();
  }
  return json.dump() + "\n";
}

/// "; delete '...' to start the run over", what errors of a run that cannot go on end with.
std::string how_to_start_over(const fs::path& folder) {
  return std::string("; delete '")
      .append(latest_checkpoint(folder).string())
      .append("' to start the run over");
}

/// The step at which a checkpoint with these notes was made.
int64_t step_of(const std::map<std::string, std::string>& notes) {
  const auto step = notes.find("step");
  TORCH_CHECK(step != notes.end(), "it does not say of which step it is");
  const auto& text = step->second;
  int64_t number = -1;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  TORCH_CHECK(failed == std::errc() && end == text.data() + text.size() && number >= 0,
              "its step is '", text, "', must be a number of steps");
  return number;
}

/// metrics.jsonl, of which only what a checkpoint has behind it counts.
class Metrics {
 public:
  /// Drops what a killed run measured from `step` on: it will be measured again.
  Metrics(const fs::path& folder, int64_t step, int64_t evaluate_every)
      : path_(metrics_file(folder)) {
    std::string kept;
    int64_t lines = 0;
    for (const auto& measurement : read_metrics(folder)) {
      if (measurement.step >= step) break;
      kept += line_of(measurement);
      ++lines;
    }
    const int64_t evaluations = (step + evaluate_every - 1) / evaluate_every;
    TORCH_CHECK(lines == evaluations, "'", path_.string(), "' has ", lines,
                " measurements before step ", step,
                ", at which its checkpoint was made, instead of ", evaluations,
                how_to_start_over(folder));
    write_text(path_, kept);
    file_.open(path_, std::ios::app | std::ios::binary);
  }

  void add(const Measurement& measurement) {
    file_ << line_of(measurement) << std::flush;
    TORCH_CHECK(file_, "cannot write '", path_.string(), "'");
  }

 private:
  fs::path path_;
  std::ofstream file_;
};

class Run {
 public:
  Run(RunConfig config, const fs::path& folder)
      : config_(std::move(config)),
        folder_(folder),
        dtype_(config_.dtype == "float64" ? at::kDouble : at::kFloat),
        testbed_(testbed_entry(config_.testbed).make(config_.testbed_settings)),
        params_(testbed_.init(config_.seed, dtype_)),
        gauges_(testbed_.gauges(params_)),
        optimizer_(
            optimizer_entry(config_.optimizer).make(config_.optimizer_settings, params_, gauges_)),
        meters_(config_.meters, {testbed_, params_, gauges_, *optimizer_}),
        schedule_(*optimizer_, {.warmup = config_.warmup,
                                .total = config_.steps,
                                .final_fraction = config_.cosine ? 0.0 : 1.0}),
        step_(load()),
        metrics_(folder, step_, config_.evaluate_every) {}

  std::optional<RunSummary> go(const RunHooks& hooks) {
    auto saved = std::chrono::steady_clock::now();
    for (; step_ < config_.steps; ++step_) {
      if (hooks.interrupted && hooks.interrupted()) {
        save(latest_checkpoint(folder_));
        return std::nullopt;
      }
      // Often enough that little is lost, seldom enough to cost nothing. What is measured does not
      // depend on when it happens.
      const auto now = std::chrono::steady_clock::now();
      if (now - saved > std::chrono::seconds(20)) {
        save(latest_checkpoint(folder_));
        saved = now;
      }
      if (config_.keep_every > 0 && step_ % config_.keep_every == 0) save(kept_checkpoint());
      const double loss = testbeds::backward(testbed_, params_, batch());
      std::optional<Measurement> measurement;
      if (step_ % config_.evaluate_every == 0) measurement = measure(loss);
      const bool reached = measurement && is_reached(*measurement);
      if (reached || !std::isfinite(loss) || !gradients_are_finite()) {
        if (measurement) record(*measurement, hooks);
        return finish(reached ? RunStatus::reached : RunStatus::diverged);
      }
      meters_.before_step(measurement.has_value());
      optimizer_->step();
      schedule_.step();
      meters_.after_step(measurement.has_value(), measurement ? &measurement->values : nullptr);
      if (measurement) record(*measurement, hooks);
      if (hooks.step) hooks.step(step_ + 1, loss);
    }
    const at::NoGradGuard no_grad;
    const double loss = testbed_.loss(params_, batch()).item<double>();
    const auto measurement = measure(loss, /*last=*/true);
    record(measurement, hooks);
    return finish(is_reached(measurement)
                      ? RunStatus::reached
                      : (std::isfinite(loss) ? RunStatus::finished : RunStatus::diverged));
  }

 private:
  /// The step from which to go on.
  int64_t load() {
    const auto path = latest_checkpoint(folder_);
    if (!fs::exists(path)) return 0;
    try {
      const auto notes = load_checkpoint(path, params_, optimizer_.get());
      const auto number = step_of(notes);
      schedule_.resume(number);
      meters_.resume(notes);
      return number;
    } catch (const c10::Error& error) {
      TORCH_CHECK(false, "cannot go on from '", path.string(),
                  "': ", error.what_without_backtrace(), how_to_start_over(folder_));
    }
  }

  void save(const fs::path& path) const {
    fs::create_directories(path.parent_path());
    auto notes = meters_.state();
    notes["step"] = std::to_string(step_);
    save_checkpoint(path, params_, optimizer_.get(), {.notes = std::move(notes)});
  }

  fs::path kept_checkpoint() const {
    return checkpoint_file(folder_, "step-" + std::to_string(step_));
  }

  testbeds::Batch batch() {
    if (!testbed_.full_batch) return testbed_.batch(batch_seed(config_.seed, step_), dtype_);
    if (!full_batch_) full_batch_ = testbed_.batch(0, dtype_);
    return *full_batch_;
  }

  bool gradients_are_finite() const {
    for (const auto& [name, tensor] : params_) {
      if (tensor.grad().defined() && !tensor.grad().isfinite().all().item<bool>()) return false;
    }
    return true;
  }

  Measurement measure(double loss, bool last = false) {
    Measurement measurement{.step = step_, .values = {{"loss", loss}}};
    if (testbed_.observe) {
      for (const auto& [name, value] : testbed_.observe(params_)) measurement.values[name] = value;
    }
    // Every meter looks at where a run ends.
    const auto found = measurement.values.find(config_.stop_metric);
    last = last || (found != measurement.values.end() && found->second >= config_.stop_at);
    meters_.measure(last ? 0 : step_ / config_.evaluate_every, measurement.values);
    return measurement;
  }

  void record(const Measurement& measurement, const RunHooks& hooks) {
    metrics_.add(measurement);
    if (hooks.measured) hooks.measured(measurement);
  }

  /// Whether the stop metric has been reached.
  bool is_reached(const Measurement& measurement) const {
    if (config_.stop_metric.empty()) return false;
    const auto found = measurement.values.find(config_.stop_metric);
    TORCH_CHECK_VALUE(found != measurement.values.end(), "stop_metric: testbed '", config_.testbed,
                      "' does not observe '", config_.stop_metric, "'");
    return found->second >= config_.stop_at;
  }

  RunSummary finish(RunStatus status) const {
    save(latest_checkpoint(folder_));
    const RunSummary summary{.status = status,
                             .steps = step_,
                             .meter_seconds = meters_.seconds(),
                             .meter_notes = meters_.notes()};
    write_text(summary_file(folder_),
               Json({{"status", to_string(status)}, {"steps", step_}}).dump(1) + "\n");
    return summary;
  }

  RunConfig config_;
  fs::path folder_;
  at::ScalarType dtype_;
  testbeds::Testbed testbed_;
  Parameters params_;
  std::vector<Gauge> gauges_;
  std::unique_ptr<LiftedOptimizer> optimizer_;
  Meters meters_;
  WarmupScheduler schedule_;
  int64_t step_;
  Metrics metrics_;
  std::optional<testbeds::Batch> full_batch_;
};

using io::shown;

constexpr int kMostLevels = 16;

/// An object in a file of a run.
Json parse_file(const fs::path& path) {
  auto json = io::parse_json(read_text(path), "'" + path.string() + "'", kMostLevels);
  TORCH_CHECK(json.is_object(), "'", path.string(), "' is ", shown(json), ", must be an object");
  return json;
}

/// A field of a file of a run, in the type of `value`.
template <class T>
void read_field(const Json& json, const std::string& name, T& value) {
  const auto found = json.find(name);
  TORCH_CHECK(found != json.end(), "it has no '", name, "'");
  bool fits = false;
  const char* rule = "";
  if constexpr (std::is_same_v<T, bool>) {
    fits = found->is_boolean();
    rule = "true or false";
  } else if constexpr (std::is_unsigned_v<T>) {
    fits = found->is_number_unsigned();
    rule = "a whole number of at least 0";
  } else if constexpr (std::is_integral_v<T>) {
    constexpr uint64_t most = std::numeric_limits<T>::max();
    fits =
        found->is_number_unsigned() ? found->get<uint64_t>() <= most : found->is_number_integer();
    rule = "a whole number of 64 bits";
  } else if constexpr (std::is_floating_point_v<T>) {
    fits = found->is_number();
    rule = "a number";
  } else if constexpr (std::is_same_v<T, std::string>) {
    fits = found->is_string();
    rule = "a string";
  } else {
    fits = found->is_object();
    rule = "an object";
  }
  TORCH_CHECK(fits, "its '", name, "' is ", shown(*found), ", must be ", rule);
  value = found->get<T>();
}

/// Makes what a run is made of, to learn before anything is written whether it can be: gauges and the base
/// rule refuse treatments that do not go with them, meters what there is not to be seen. Once for all seeds.
void try_out(const RunConfig& config) {
  static std::set<std::string> passed;
  auto without_seed = config;
  without_seed.seed = 0;
  const auto what = Json(without_seed).dump();
  if (passed.contains(what)) return;
  const auto testbed = testbed_entry(config.testbed).make(config.testbed_settings);
  const auto params =
      testbed.init(config.seed, config.dtype == "float64" ? at::kDouble : at::kFloat);
  const auto gauges = testbed.gauges(params);
  const auto optimizer =
      optimizer_entry(config.optimizer).make(config.optimizer_settings, params, gauges);
  Meters(config.meters, {testbed, params, gauges, *optimizer});
  passed.insert(what);
}

/// A measurement; discarded if the text is cut off.
Json parsed_line(const std::string& line) {
  constexpr auto at_most = [](int depth, Json::parse_event_t /*event*/, Json&) {
    return depth <= kMostLevels;
  };
  return Json::parse(line, at_most, /*allow_exceptions=*/false);
}

}  // namespace

void to_json(Json& json, const RunConfig& config) {
  json = Json::object();
  visit_fields(config, [&](const char* name, const auto& value) { json[name] = value; });
}

void from_json(const Json& json, RunConfig& config) {
  visit_fields(config, [&](const char* name, auto& value) {
    if (std::string_view(name) != "meters") return read_field(json, name, value);
    // Runs that were made before there were meters to choose have the default ones.
    config.meters = json.contains(name) ? json.at(name) : default_meters();
    TORCH_CHECK(config.meters.is_array(), "its 'meters' is ", shown(config.meters),
                ", must be a list");
  });
}

const char* to_string(RunStatus status) {
  switch (status) {
    case RunStatus::finished:
      return "finished";
    case RunStatus::reached:
      return "reached";
    case RunStatus::diverged:
      return "diverged";
  }
  return "?";
}

RunConfig completed(RunConfig config) {
  const auto& testbed = testbed_entry(config.testbed);
  const auto& optimizer = optimizer_entry(config.optimizer);
  config.testbed_settings =
      complete("testbed " + testbed.name, testbed.settings, config.testbed_settings);
  config.optimizer_settings =
      complete("optimizer " + optimizer.name, optimizer.settings, config.optimizer_settings);
  TORCH_CHECK_VALUE(config.evaluate_every > 0, "option evaluate_every must be > 0, got ",
                    config.evaluate_every);
  TORCH_CHECK_VALUE(config.threads > 0 && config.threads <= kMostThreads,
                    "option threads must be from 1 to ", kMostThreads, ", got ", config.threads);
  TORCH_CHECK_VALUE(std::isfinite(config.stop_at), "option stop_at must be finite, got ",
                    config.stop_at);
  TORCH_CHECK_VALUE(config.warmup >= 0, "option warmup must be >= 0, got ", config.warmup);
  TORCH_CHECK_VALUE(config.steps > config.warmup, "option steps must be > warmup, which is ",
                    config.warmup, ", got ", config.steps);
  TORCH_CHECK_VALUE(config.keep_every >= 0, "option keep_every must be >= 0, got ",
                    config.keep_every);
  TORCH_CHECK_VALUE(config.dtype == "float32" || config.dtype == "float64",
                    "option dtype must be float32 or float64, got '", config.dtype, "'");
  config.meters = complete_meters(config.meters);
  if (testbed.check) testbed.check(config.testbed_settings);
  return config;
}

std::map<std::string, std::string> versions() {
  return {{"ddc", std::string(kVersion)}, {"torch", TORCH_VERSION}, {"compiler", __VERSION__}};
}

std::string conflict(const RunConfig& config, const fs::path& folder) {
  if (!fs::exists(config_file(folder))) return "";
  // Made before a setting existed, it has that setting's default.
  const auto there = Json(completed(read_config(folder))).flatten();
  const auto here = Json(completed(config)).flatten();
  for (const auto& [option, value] : here.items()) {
    const auto other = there.value(option, Json());
    if (other != value) {
      return std::string(option.substr(1)).append(" is ") + other.dump() + " there, not " +
             value.dump();
    }
  }
  return "";
}

void prepare(const RunConfig& given, const fs::path& folder) {
  const auto config = completed(given);
  const auto difference = conflict(config, folder);
  TORCH_CHECK_VALUE(difference.empty(), "'", folder.string(), "' holds another run (", difference,
                    "); delete it, or choose another folder with --out");
  if (fs::exists(config_file(folder))) return;
  try_out(config);
  Json json = config;
  json["versions"] = versions();
  write_text(config_file(folder), json.dump(1) + "\n");
}

std::optional<RunSummary> resume(const fs::path& folder, const RunHooks& hooks) {
  if (const auto summary = read_summary(folder)) return summary;
  const auto config = completed(read_config(folder));
  const FolderLock lock(folder);
  // Whoever held the lock may have finished it.
  if (const auto summary = read_summary(folder)) return summary;
  at::set_num_threads(static_cast<int>(config.threads));
  return Run(config, folder).go(hooks);
}

void check_extension(const fs::path& folder, int64_t steps) {
  const auto config = read_config(folder);
  const auto summary = read_summary(folder);
  const auto name = "'" + folder.string() + "' ";
  TORCH_CHECK_VALUE(steps > config.steps, "option steps must be > ", config.steps,
                    ", for which the run in ", name, "was made, got ", steps);
  TORCH_CHECK_VALUE(!config.cosine, name,
                    "cannot go on to more steps: its learning rate falls over the ", config.steps,
                    " that it was made for");
  if (!summary) return;
  TORCH_CHECK_VALUE(summary->status == RunStatus::finished, name, "cannot go on: it ended at step ",
                    summary->steps, " (", to_string(summary->status), ")");
  TORCH_CHECK_VALUE(fs::exists(latest_checkpoint(folder)), name, "cannot go on: it has no '",
                    latest_checkpoint(folder).string(), "'");
}

void extend(const fs::path& folder, int64_t steps) {
  check_extension(folder, steps);
  const FolderLock lock(folder);
  // Whoever held the lock may have ended it.
  check_extension(folder, steps);
  auto json = parse_file(config_file(folder));
  json["steps"] = steps;
  // In this order: killed in between, it is a run that is about to finish.
  fs::remove(summary_file(folder));
  write_text(config_file(folder), json.dump(1) + "\n");
}

std::optional<RunSummary> execute(const RunConfig& config, const fs::path& folder,
                                  const RunHooks& hooks) {
  prepare(config, folder);
  return resume(folder, hooks);
}

RunConfig read_config(const fs::path& folder) {
  const auto path = config_file(folder);
  TORCH_CHECK(fs::exists(path), "'", folder.string(), "' is no run: it has no config.json");
  const auto json = parse_file(path);
  try {
    return json.get<RunConfig>();
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, "'", path.string(),
                "' is not the configuration of a run: ", error.what_without_backtrace());
  }
}

std::optional<RunSummary> read_summary(const fs::path& folder) {
  const auto path = summary_file(folder);
  if (!fs::exists(path)) return std::nullopt;
  const auto json = parse_file(path);
  RunSummary summary{.status = RunStatus::finished, .steps = 0};
  try {
    std::string word;
    read_field(json, "status", word);
    read_field(json, "steps", summary.steps);
    for (const auto status : {RunStatus::finished, RunStatus::reached, RunStatus::diverged}) {
      if (word != to_string(status)) continue;
      summary.status = status;
      return summary;
    }
    TORCH_CHECK(false, "its 'status' is '", word, "', must be finished, reached or diverged");
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, "'", path.string(),
                "' is not the summary of a run: ", error.what_without_backtrace());
  }
}

std::vector<Measurement> read_metrics(const fs::path& folder) {
  std::vector<Measurement> result;
  if (!fs::exists(metrics_file(folder))) return result;
  std::istringstream lines(read_text(metrics_file(folder)));
  for (std::string line; std::getline(lines, line);) {
    const auto json = parsed_line(line);
    if (json.is_discarded()) break;  // whoever wrote it was killed, or is writing now
    try {
      Measurement measurement;
      TORCH_CHECK(json.is_object(), "it is ", shown(json), ", must be an object");
      read_field(json, "step", measurement.step);
      for (const auto& [name, value] : json.items()) {
        if (name == "step") continue;
        auto& number = measurement.values[name];
        number = std::numeric_limits<double>::quiet_NaN();
        if (!value.is_null()) read_field(json, name, number);
      }
      result.push_back(std::move(measurement));
    } catch (const c10::Error& error) {
      TORCH_CHECK(false, "'", metrics_file(folder).string(), "', line ", result.size() + 1, ": ",
                  error.what_without_backtrace());
    }
  }
  return result;
}

Measurement measure(const fs::path& folder, const std::string& checkpoint, const Json& meters,
                    std::vector<std::string>* notes_of_meters) {
  const auto config = completed(read_config(folder));
  const auto complete = complete_meters(meters);
  const auto path = checkpoint_file(folder, checkpoint);
  TORCH_CHECK_VALUE(fs::exists(path), "the run in '", folder.string(), "' has no checkpoint '",
                    checkpoint, "': there is no '", path.string(), "'");
  at::set_num_threads(static_cast<int>(config.threads));
  const auto testbed = testbed_entry(config.testbed).make(config.testbed_settings);
  const auto params =
      testbed.init(config.seed, config.dtype == "float64" ? at::kDouble : at::kFloat);
  const auto gauges = testbed.gauges(params);
  const auto optimizer =
      optimizer_entry(config.optimizer).make(config.optimizer_settings, params, gauges);
  // Some count from where the run started.
  Meters all(complete, {testbed, params, gauges, *optimizer});
  const auto notes = load_checkpoint(path, params, optimizer.get());
  all.resume(notes);
  Measurement result{.step = step_of(notes), .values = {}};
  if (testbed.observe) result.values = testbed.observe(params);
  all.measure(0, result.values);
  if (notes_of_meters != nullptr) *notes_of_meters = all.notes();
  return result;
}

}  // namespace ddc::experiments
