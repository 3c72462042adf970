#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ddc/experiments/experiment.h"

namespace ddc::experiments {

/// Where a run of a grid stands.
struct RunProgress {
  std::string name;
  int64_t step = 0;
  int64_t steps = 0;
  /// Of the last evaluation; NaN before the first.
  double loss = 0;
  double drift = 0;
};

struct GridOptions {
  /// Runs at a time, each a process of its own.
  int64_t jobs = 1;
  /// The program that runs the folder it gets as its last argument: {"ddc", "run", "--resume"}.
  std::vector<std::string> command;
  /// Called a few times a second with the runs under way, and the number of finished and of all.
  std::function<void(const std::vector<RunProgress>& active, size_t finished, size_t all)>
      progress = {};
  /// Called when a run ends, with its summary, or with what went wrong.
  std::function<void(const PlannedRun& run, const std::optional<RunSummary>& summary,
                     const std::string& error)>
      ended = {};
  /// Asked a few times a second; the runs under way are then told to save and stop.
  std::function<bool()> interrupted = {};
};

/// Runs what is not finished yet under `folder`/runs. Returns whether all of it is finished now.
bool run_grid(const std::vector<PlannedRun>& runs, const std::filesystem::path& folder,
              const GridOptions& options);

}  // namespace ddc::experiments
