#include "ddc/experiments/experiment.h"

#include <limits>
#include <set>

#include "files.h"
#include "find_entry.h"
#include "plans/plans.h"

namespace ddc::experiments {
namespace {

double value_of(const Measurement& measurement, const std::string& metric) {
  const auto found = measurement.values.find(metric);
  return found == measurement.values.end() ? std::numeric_limits<double>::quiet_NaN()
                                           : found->second;
}

}  // namespace

double FinishedRun::first(const std::string& metric) const {
  return metrics.empty() ? std::numeric_limits<double>::quiet_NaN()
                         : value_of(metrics.front(), metric);
}

double FinishedRun::last(const std::string& metric) const {
  return metrics.empty() ? std::numeric_limits<double>::quiet_NaN()
                         : value_of(metrics.back(), metric);
}

double FinishedRun::setting(const std::string& name) const {
  for (const auto* settings : {&plan.config.optimizer_settings, &plan.config.testbed_settings}) {
    const auto found = settings->find(name);
    if (found != settings->end()) return found->get<double>();
  }
  return std::numeric_limits<double>::quiet_NaN();
}

const std::vector<Experiment>& experiments() {
  static const std::vector<Experiment> all = {containment(),   diagonal(),   row_shift(),
                                              parity(),        grokking(),   rope(),
                                              over_training(), compression()};
  return all;
}

const Experiment& experiment(const std::string& name) {
  return find_entry("experiment", experiments(), name);
}

Result evaluate(const Experiment& experiment, bool quick, const std::filesystem::path& folder) {
  Result result;
  result.name = experiment.name;
  result.title = experiment.title;
  result.question = experiment.question;
  result.quick = quick;
  result.command = "ddc experiment " + experiment.name + (quick ? " --quick" : "");
  result.versions = versions();
  std::vector<FinishedRun> runs;
  std::set<uint64_t> seeds;
  for (auto& plan : experiment.plan(quick)) {
    const auto run_folder = folder / "runs" / plan.name;
    const auto summary = read_summary(run_folder);
    result.threads = plan.config.threads;
    seeds.insert(plan.config.seed);
    if (!summary) {
      result.missing.push_back(plan.name);
      continue;
    }
    runs.push_back({std::move(plan), *summary, read_metrics(run_folder)});
  }
  result.seeds.assign(seeds.begin(), seeds.end());
  experiment.evaluate(runs, result);
  return result;
}

Result evaluate_and_save(const Experiment& experiment, bool quick,
                         const std::filesystem::path& folder) {
  auto result = evaluate(experiment, quick, folder);
  write_text(folder / "result.json", Json(result).dump(1) + "\n");
  return result;
}

}  // namespace ddc::experiments
