#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "ddc/experiments/result.h"
#include "ddc/experiments/run.h"

// An experiment is a question, a grid of runs that answers it, and the paper's numbers to stand beside
// ours. Its folder holds one folder per run, and result.json:
//
//     out/experiments/containment/runs/relu-adamw-seed42/...
//     out/experiments/containment/result.json

namespace ddc::experiments {

struct PlannedRun {
  /// The run's folder: letters, digits, '.', '-' and '_'.
  std::string name;
  /// What the runs of one row of the table have in common.
  std::string arm;
  RunConfig config;
};

struct FinishedRun {
  PlannedRun plan;
  RunSummary summary;
  std::vector<Measurement> metrics;

  uint64_t seed() const { return plan.config.seed; }
  /// NaN if it was not observed.
  double first(const std::string& metric) const;
  double last(const std::string& metric) const;
  /// A number among the settings of the optimizer, or else of the testbed.
  double setting(const std::string& name) const;
};

struct Experiment {
  std::string name;
  std::string title;
  std::string question;
  /// `quick`: smaller or shorter runs, that show the same within a minute or so.
  std::function<std::vector<PlannedRun>(bool quick)> plan;
  /// Fills in answer, table, claims and charts. Some of the planned runs may be missing.
  std::function<void(const std::vector<FinishedRun>& runs, Result& result)> evaluate;
};

/// In the order of the paper.
const std::vector<Experiment>& experiments();
/// Throws, suggesting the nearest name, if there is none.
const Experiment& experiment(const std::string& name);

/// Result of the runs that are finished in `folder`, with the names of those that are not.
Result evaluate(const Experiment& experiment, bool quick, const std::filesystem::path& folder);
/// The same, and writes it to result.json.
Result evaluate_and_save(const Experiment& experiment, bool quick,
                         const std::filesystem::path& folder);

}  // namespace ddc::experiments
