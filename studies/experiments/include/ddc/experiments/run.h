#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ddc/experiments/meter.h"
#include "ddc/experiments/settings.h"

// One run: a testbed, an optimizer, a seed. It lives in a folder that other tools can read:
//
//     config.json      all options, seed, threads and versions
//     metrics.jsonl    one line per evaluation: {"step": 100, "loss": 0.52, "drift": 1e-7, ...}
//     summary.json     how it ended; there is one if and only if the run is finished
//     checkpoints/     latest.safetensors, from which it goes on, and those that were asked for
//     lock             held by the process that is at work there
//
// With the same seed and number of threads the metrics are the same to the last bit, however often the
// run was interrupted.

namespace ddc::experiments {

struct RunConfig {
  std::string testbed;
  /// Those that are not given get their defaults in `completed`.
  Json testbed_settings = Json::object();
  std::string optimizer = "adamw";
  Json optimizer_settings = Json::object();
  int64_t steps = 1000;
  uint64_t seed = 42;
  int64_t evaluate_every = 50;
  std::string dtype = "float32";
  int64_t threads = 1;
  /// The learning rate rises over so many steps, and stays there, or falls to zero along half a cosine.
  int64_t warmup = 0;
  bool cosine = false;
  /// The run ends early at the first evaluation at which this observation is at least `stop_at`. Empty: it
  /// does not.
  std::string stop_metric = {};
  double stop_at = 0;
  /// A checkpoint is kept for good every so many steps; 0: only the last.
  int64_t keep_every = 0;
  /// What is measured at evaluations: a list of {"name": ..., settings} (meter.h).
  Json meters = default_meters();

  bool operator==(const RunConfig&) const = default;
};

void to_json(Json& json, const RunConfig& config);
void from_json(const Json& json, RunConfig& config);

/// With all settings, checked: throws, naming what is wrong, before anything is written.
RunConfig completed(RunConfig config);

/// A line of metrics.jsonl; a number that is not finite is NaN.
struct Measurement {
  int64_t step = 0;
  /// "loss" of the step's batch; what the meters measure; and what the testbed observes.
  std::map<std::string, double> values;
};

enum class RunStatus {
  finished,
  reached,   ///< the stop metric was reached
  diverged,  ///< the loss or a gradient was not finite
};
const char* to_string(RunStatus status);

struct RunSummary {
  RunStatus status = RunStatus::finished;
  int64_t steps = 0;
  /// What meters took of the time of the process that finished the run; not kept in its folder.
  std::map<std::string, double> meter_seconds = {};
  /// What meters have to say, in words, of the last numbers that they measured; not kept either.
  std::vector<std::string> meter_notes = {};
};

struct RunHooks {
  /// Called after every step with (steps done, loss).
  std::function<void(int64_t step, double loss)> step = {};
  std::function<void(const Measurement&)> measured = {};
  /// Asked after every step: a run that is to stop saves and returns.
  std::function<bool()> interrupted = {};
};

/// Starts the run, or goes on with it: from its last checkpoint if there is one. Returns nullopt if it was
/// interrupted, and does nothing if it is finished. Throws if the folder holds another run, or if another
/// process is at work there.
std::optional<RunSummary> execute(const RunConfig& config, const std::filesystem::path& folder,
                                  const RunHooks& hooks = {});

/// What tells the run that the folder holds from this one: "steps is 4000 there, not 600". Empty if they
/// are the same, or if the folder holds none.
std::string conflict(const RunConfig& config, const std::filesystem::path& folder);

/// Writes config.json, so that `resume` can start the run. Throws if the folder holds another run.
void prepare(const RunConfig& config, const std::filesystem::path& folder);
std::optional<RunSummary> resume(const std::filesystem::path& folder, const RunHooks& hooks = {});

/// Lets the run in a folder go on to more steps than it was made for, finished or not: with `resume` it is then
/// the same, to the last bit, as one that was made for so many. Throws, and changes nothing, if it ended
/// early, or if its learning rate falls over its steps: a longer one is another run.
void extend(const std::filesystem::path& folder, int64_t steps);
/// Throws where `extend` would.
void check_extension(const std::filesystem::path& folder, int64_t steps);

RunConfig read_config(const std::filesystem::path& folder);
/// Nullopt if the run is not finished.
std::optional<RunSummary> read_summary(const std::filesystem::path& folder);
/// As far as they go; a last line that was not written to its end is left out.
std::vector<Measurement> read_metrics(const std::filesystem::path& folder);

/// What is seen at a checkpoint of a run, "latest" or one that was kept ("step-1000"), by meters that it need not
/// have had. Nothing in the folder changes. `notes`: what they have to say of their numbers in words.
Measurement measure(const std::filesystem::path& folder, const std::string& checkpoint,
                    const Json& meters, std::vector<std::string>* notes = nullptr);

/// "ddc", "torch" and "compiler".
std::map<std::string, std::string> versions();

}  // namespace ddc::experiments
