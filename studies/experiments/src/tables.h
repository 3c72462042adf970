#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ddc/experiments/experiment.h"

// What the experiments' tables have in common.

namespace ddc::experiments {

/// The seeds of the paper, and the two that its five-seed reads add.
inline const std::vector<uint64_t> three_seeds = {42, 142, 242};
inline const std::vector<uint64_t> five_seeds = {42, 142, 242, 342, 442};

/// Arms in the order in which they first appear, each with its runs.
struct ArmRuns {
  std::string arm;
  std::vector<const FinishedRun*> runs;
};
std::vector<ArmRuns> by_arm(const std::vector<FinishedRun>& runs);
/// Empty if there is no such arm.
std::vector<const FinishedRun*> of_arm(const std::vector<FinishedRun>& runs,
                                       const std::string& arm);

using Read = std::function<double(const FinishedRun&)>;
std::vector<double> values(const std::vector<const FinishedRun*>& runs, const Read& read);

/// The last value of a metric.
Read last(const std::string& metric);
/// The mean over the last quarter of the measurements, where single ones are noisy.
Read late(const std::string& metric);
/// The least value on the way, and the last as a multiple of the first.
Read least(const std::string& metric);
Read growth(const std::string& metric);

/// Largest drift of any gauge channel at the end of all runs of an arm; NaN counts as infinite.
double largest_drift(const std::vector<const FinishedRun*>& runs);

double mean(const std::vector<double>& values);
/// Deviation of the sample (n - 1); 0 for less than two.
double deviation(const std::vector<double>& values);
/// Infinite values count as large.
double median(std::vector<double> values);

/// Three significant digits: "0.0312", "1.2e-07", "4000"; "-" for NaN, "∞".
std::string text(double value);
/// "0.031 ± 0.050".
std::string spread_text(const std::vector<double>& values);

/// A column of a table with a row per arm: its title, and what stands there for the runs of an arm.
struct Column {
  std::string title;
  std::function<std::string(const std::vector<const FinishedRun*>&)> cell;
};
Column spread_of(const std::string& title, const Read& read);
Column mean_of(const std::string& title, const Read& read);
Column median_of(const std::string& title, const Read& read);
/// `largest_drift`.
Column drift_column(const std::string& title);

/// The arm, its number of seeds, and these columns.
Table table_by_arm(const std::vector<FinishedRun>& runs, const std::vector<Column>& columns);

/// The first step at which the metric was at least `level`; infinite if it never was.
double step_to(const FinishedRun& run, const std::string& metric, double level);

/// Curves of a metric of all runs, thinned to a few hundred points each.
Curves curves_of(const std::vector<FinishedRun>& runs, const std::string& title,
                 const std::string& metric, bool log_y);
/// The same of any function of a measurement.
Curves curves_of(const std::vector<FinishedRun>& runs, const std::string& title,
                 const std::string& label, bool log_y,
                 const std::function<double(const FinishedRun&, const Measurement&)>& read);

/// |ours - paper's| / |paper's|.
double relative_deviation(double ours, double papers);

}  // namespace ddc::experiments
