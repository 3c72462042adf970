#include "rate_grid.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "ddc/geometry/observables.h"
#include "tables.h"

namespace ddc::experiments {
namespace {

/// Place and observable of a metric "meter[place].observable"; empty for others.
std::pair<std::string, std::string> cell_of(const std::string& metric) {
  const auto open = metric.find('[');
  const auto close = metric.find("].");
  if (open == std::string::npos || close == std::string::npos) return {};
  return {metric.substr(open + 1, close - open - 1), metric.substr(close + 2)};
}

Rate rate_of(const FinishedRun& run, const std::string& metric) {
  std::vector<double> arc;
  std::vector<double> values;
  for (const auto& [step, measured] : run.metrics) {
    const auto at = measured.find("arc");
    const auto value = measured.find(metric);
    if (at == measured.end() || value == measured.end()) continue;
    // What has vanished to rounding has no logarithm.
    if (!std::isfinite(value->second) || value->second <= 0) break;
    arc.push_back(at->second);
    values.push_back(value->second);
  }
  if (arc.size() < 2) return {};
  return rate(arc, values);
}

void add_once(std::vector<std::string>& names, const std::string& name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

}  // namespace

RateGrid rate_grid(const std::vector<FinishedRun>& runs,
                   const std::vector<std::string>& observables) {
  RateGrid grid{.map = {.title = "Rates along the arc",
                        .x = "observable",
                        .y = "place",
                        .z = "slope of its logarithm, where it can be read",
                        .panels = {}},
                .cells = {}};
  std::map<std::pair<std::string, std::string>, std::string> metrics;
  std::vector<std::string> places;
  for (const auto& run : runs) {
    for (const auto& measurement : run.metrics) {
      for (const auto& [metric, value] : measurement.values) {
        const auto cell = cell_of(metric);
        if (std::find(observables.begin(), observables.end(), cell.second) == observables.end()) {
          continue;
        }
        metrics[cell] = metric;
        add_once(places, cell.first);
      }
    }
  }
  if (metrics.empty()) return grid;
  for (const auto& [arm, group] : by_arm(runs)) {
    HeatMap::Panel panel{.arm = arm, .x = observables, .y = places, .z = {}};
    RateGrid::Cells cells{.arm = arm, .all = std::ssize(metrics)};
    for (const auto& place : places) {
      auto& row = panel.z.emplace_back();
      for (const auto& observable : observables) {
        row.push_back(std::numeric_limits<double>::quiet_NaN());
        const auto metric = metrics.find({place, observable});
        if (metric == metrics.end()) continue;
        std::map<RateVerdict, std::vector<double>> slopes;
        for (const auto* run : group) {
          const auto found = rate_of(*run, metric->second);
          slopes[found.verdict].push_back(found.slope);
        }
        const auto most = std::max_element(slopes.begin(), slopes.end(), [](auto& a, auto& b) {
          return a.second.size() < b.second.size();
        });
        if (most->first == RateVerdict::ascending) ++cells.ascending;
        if (most->first != RateVerdict::readable) continue;
        ++cells.readable;
        row.back() = median(most->second);
      }
    }
    grid.map.panels.push_back(std::move(panel));
    grid.cells.push_back(std::move(cells));
  }
  return grid;
}

}  // namespace ddc::experiments
