#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "ddc/experiments/experiment.h"

namespace ddc::experiments {

/// Where a run of a grid stands, as of its last evaluation.
struct RunProgress {
  std::string name;
  int64_t step = 0;
  int64_t steps = 0;
  /// Steps of `step` that were done before.
  int64_t done_before = 0;
  double loss = std::numeric_limits<double>::quiet_NaN();
  double drift = std::numeric_limits<double>::quiet_NaN();
  /// Since it was started, or went on.
  double seconds = 0;
};

struct GridProgress {
  std::vector<RunProgress> active;
  size_t finished = 0;
  size_t failed = 0;
  size_t all = 0;
  /// Steps of all runs: planned; done since the grid was started; left to do at most, as a run may end early.
  int64_t steps = 0;
  int64_t steps_done = 0;
  int64_t steps_left = 0;
  double seconds = 0;
};

struct EndedRun {
  RunProgress progress;
  /// Unset if it failed; then `error` says why, in a line.
  std::optional<RunSummary> summary;
  std::string error;
};

struct GridOptions {
  /// Runs at a time, each a process of its own.
  int64_t jobs = 1;
  /// The program that runs the folder it gets as its last argument, and arguments before that.
  std::vector<std::string> command;
  /// Called before the first run is started.
  std::function<void(size_t finished, size_t all)> started = {};
  /// Called a few times a second.
  std::function<void(const GridProgress&)> progress = {};
  /// Called when a run ends, but not if that is because it was interrupted.
  std::function<void(const EndedRun&)> ended = {};
  /// Asked a few times a second; the runs under way are then told to save and stop.
  std::function<bool()> interrupted = {};
};

struct GridOutcome {
  size_t all = 0;
  size_t finished = 0;
  std::vector<EndedRun> failed;
  bool interrupted = false;
};

/// Runs what is not finished yet under `folder`/runs. A run that fails does not keep the others from
/// going on. Throws if what is there is not of this plan, or if another process is at work there.
GridOutcome run_grid(const std::vector<PlannedRun>& runs, const std::filesystem::path& folder,
                     const GridOptions& options);

}  // namespace ddc::experiments
