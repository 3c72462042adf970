#include "tables.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>

namespace ddc::experiments {

std::vector<ArmRuns> by_arm(const std::vector<FinishedRun>& runs) {
  std::vector<ArmRuns> arms;
  for (const auto& run : runs) {
    auto found = std::find_if(arms.begin(), arms.end(),
                              [&](const ArmRuns& arm) { return arm.arm == run.plan.arm; });
    if (found == arms.end()) found = arms.insert(arms.end(), {run.plan.arm, {}});
    found->runs.push_back(&run);
  }
  return arms;
}

std::vector<const FinishedRun*> of_arm(const std::vector<FinishedRun>& runs,
                                       const std::string& arm) {
  for (auto& group : by_arm(runs)) {
    if (group.arm == arm) return group.runs;
  }
  return {};
}

std::vector<double> values(const std::vector<const FinishedRun*>& runs, const Read& read) {
  std::vector<double> result;
  for (const auto* run : runs) result.push_back(read(*run));
  return result;
}

Read last(const std::string& metric) {
  return [metric](const FinishedRun& run) { return run.last(metric); };
}

Read late(const std::string& metric) {
  return [metric](const FinishedRun& run) {
    std::vector<double> seen;
    for (size_t i = run.metrics.size() * 3 / 4; i < run.metrics.size(); ++i) {
      const auto found = run.metrics[i].values.find(metric);
      if (found != run.metrics[i].values.end()) seen.push_back(found->second);
    }
    return mean(seen);
  };
}

Read least(const std::string& metric) {
  return [metric](const FinishedRun& run) {
    double result = std::numeric_limits<double>::quiet_NaN();
    for (const auto& measurement : run.metrics) {
      const auto found = measurement.values.find(metric);
      if (found != measurement.values.end()) result = std::fmin(result, found->second);
    }
    return result;
  };
}

Read growth(const std::string& metric) {
  return [metric](const FinishedRun& run) { return run.last(metric) / run.first(metric); };
}

double largest_drift(const std::vector<const FinishedRun*>& runs) {
  double largest = 0;
  for (const auto* run : runs) {
    const double drift = run->last("drift");
    if (std::isnan(drift)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, drift);
  }
  return largest;
}

double mean(const std::vector<double>& values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double deviation(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  const double center = mean(values);
  double sum = 0;
  for (const double value : values) sum += (value - center) * (value - center);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

double median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  if (values.size() % 2 == 1 || values[half - 1] == values[half]) return values[half];
  return (values[half - 1] + values[half]) / 2;
}

std::string text(double value) {
  if (std::isnan(value)) return "-";
  if (std::isinf(value)) return value > 0 ? "∞" : "-∞";
  char buffer[32];
  const double size = std::abs(value);
  if ((value == std::round(value) && size < 1e6) || (size >= 1e3 && size < 1e6)) {
    std::snprintf(buffer, sizeof(buffer), "%.0f", value);
  } else if (size >= 1e-3 && size < 1e3) {
    std::snprintf(buffer, sizeof(buffer), "%.3g", value);
  } else {
    std::snprintf(buffer, sizeof(buffer), "%.1e", value);
  }
  return buffer;
}

std::string spread_text(const std::vector<double>& values) {
  if (values.size() < 2) return text(mean(values));
  return text(mean(values)) + " ± " + text(deviation(values));
}

Column spread_of(const std::string& title, const Read& read) {
  return {title, [read](const auto& runs) { return spread_text(values(runs, read)); }};
}

Column mean_of(const std::string& title, const Read& read) {
  return {title, [read](const auto& runs) { return text(mean(values(runs, read))); }};
}

Column median_of(const std::string& title, const Read& read) {
  return {title, [read](const auto& runs) { return text(median(values(runs, read))); }};
}

Column drift_column(const std::string& title) {
  return {title, [](const auto& runs) { return text(largest_drift(runs)); }};
}

Table table_by_arm(const std::vector<FinishedRun>& runs, const std::vector<Column>& columns) {
  Table table{.columns = {"arm", "seeds"}, .rows = {}};
  for (const auto& column : columns) table.columns.push_back(column.title);
  for (const auto& [arm, group] : by_arm(runs)) {
    auto& row = table.rows.emplace_back();
    row = {arm, std::to_string(group.size())};
    for (const auto& column : columns) row.push_back(column.cell(group));
  }
  return table;
}

double step_to(const FinishedRun& run, const std::string& metric, double level) {
  for (const auto& measurement : run.metrics) {
    const auto found = measurement.values.find(metric);
    if (found != measurement.values.end() && found->second >= level) {
      return static_cast<double>(measurement.step);
    }
  }
  return std::numeric_limits<double>::infinity();
}

Curves curves_of(const std::vector<FinishedRun>& runs, const std::string& title,
                 const std::string& label, bool log_y,
                 const std::function<double(const FinishedRun&, const Measurement&)>& read) {
  constexpr size_t most_points = 200;
  Curves curves{.title = title, .y = label, .log_y = log_y, .series = {}};
  for (const auto& run : runs) {
    Series series{.arm = run.plan.arm, .seed = run.seed(), .x = {}, .y = {}};
    const size_t stride = run.metrics.size() / most_points + 1;
    for (size_t i = 0; i < run.metrics.size(); ++i) {
      if (i % stride != 0 && i + 1 != run.metrics.size()) continue;
      const double y = read(run, run.metrics[i]);
      series.x.push_back(static_cast<double>(run.metrics[i].step));
      // Four digits are what a screen shows, and what keeps the files small.
      char buffer[32];
      std::snprintf(buffer, sizeof(buffer), "%.4g", y);
      series.y.push_back(std::isfinite(y) ? std::stod(buffer) : y);
    }
    curves.series.push_back(std::move(series));
  }
  return curves;
}

Curves curves_of(const std::vector<FinishedRun>& runs, const std::string& title,
                 const std::string& metric, bool log_y) {
  return curves_of(
      runs, title, metric, log_y, [&](const FinishedRun&, const Measurement& measurement) {
        const auto found = measurement.values.find(metric);
        return found == measurement.values.end() ? std::numeric_limits<double>::quiet_NaN()
                                                 : found->second;
      });
}

double relative_deviation(double ours, double papers) {
  return std::abs(ours - papers) / std::abs(papers);
}

}  // namespace ddc::experiments
