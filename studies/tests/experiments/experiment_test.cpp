#include "ddc/experiments/experiment.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "ddc/discover/gate.h"
#include "ddc/experiments/catalogue.h"
#include "rate_grid.h"
#include "support/errors.h"
#include "support/folder.h"
#include "tables.h"

namespace ddc::experiments {
namespace {

using tests::expect_error;

FinishedRun finished(std::vector<Measurement> metrics, uint64_t seed = 42) {
  FinishedRun run;
  run.plan = {.name = "run", .arm = "arm", .config = {}};
  run.plan.config.seed = seed;
  run.metrics = std::move(metrics);
  return run;
}

TEST(Experiments, EveryPlannedRunIsOne) {
  for (const auto& experiment : experiments()) {
    for (const bool quick : {false, true}) {
      std::set<std::string> names;
      for (const auto& run : experiment.plan(quick)) {
        EXPECT_TRUE(names.insert(run.name).second) << experiment.name << ": " << run.name;
        EXPECT_EQ(run.name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                             "0123456789.-_"),
                  std::string::npos)
            << run.name;
        // Data of Debian's need not be installed where tests run.
        if (testbed_entry(run.config.testbed).check) continue;
        EXPECT_NO_THROW(completed(run.config)) << experiment.name << ": " << run.name;
      }
      EXPECT_FALSE(names.empty()) << experiment.name;
    }
  }
}

TEST(Experiments, WithoutRunsAllAreMissingAndNothingIsClaimed) {
  const tests::Folder folder;
  for (const auto& experiment : experiments()) {
    const auto result = evaluate(experiment, /*quick=*/false, folder.path());
    EXPECT_EQ(result.missing.size(), experiment.plan(false).size()) << experiment.name;
    EXPECT_TRUE(result.table.rows.empty()) << experiment.name;
    for (const auto& claim : result.claims) {
      EXPECT_EQ(claim.outcome, Outcome::not_run) << experiment.name << ": " << claim.what;
    }
    EXPECT_EQ(Json(Json(result).get<Result>()), Json(result)) << experiment.name;
  }
}

TEST(Experiments, RatesAreReadCellByCell) {
  // Towards a minimum at arc 1: one cell vanishes quadratically, one rises, one is not measured under the first arm.
  std::vector<FinishedRun> runs;
  for (const std::string arm : {"first", "second"}) {
    for (const uint64_t seed : {42, 142, 242}) {
      std::vector<Measurement> metrics;
      for (int64_t step = 0; step < 60; ++step) {
        const double left = std::pow(10, -static_cast<double>(step) / 30);
        metrics.push_back({step,
                           {{"arc", 1 - left},
                            {"activations[stream].sigma_min", 3 * left * left},
                            {"fisher[norm].trace", 1 / left},
                            {"fisher.trace", left}}});
        if (arm == "second") metrics.back().values["fisher[norm].smallest"] = left;
      }
      runs.push_back(finished(std::move(metrics), seed));
      runs.back().plan.arm = arm;
    }
  }
  const auto grid = rate_grid(runs, {"sigma_min", "smallest", "trace"});
  ASSERT_EQ(grid.map.panels.size(), 2u);
  ASSERT_EQ(grid.cells.size(), 2u);
  const auto& panel = grid.map.panels.back();
  EXPECT_EQ(panel.y, (std::vector<std::string>{"stream", "norm"}));
  EXPECT_NEAR(panel.z[0][0], 2, 0.02);
  EXPECT_TRUE(std::isnan(panel.z[0][1]));
  EXPECT_NEAR(panel.z[1][1], 1, 0.01);
  EXPECT_TRUE(std::isnan(panel.z[1][2]));
  EXPECT_TRUE(std::isnan(grid.map.panels.front().z[1][1]));
  EXPECT_EQ(grid.cells[0].all, 3);
  EXPECT_EQ(grid.cells[0].readable, 1);
  EXPECT_EQ(grid.cells[1].readable, 2);
  EXPECT_EQ(grid.cells[1].ascending, 1);
  EXPECT_TRUE(rate_grid({finished({{0, {{"loss", 1.0}}}})}, {"trace"}).map.panels.empty());
}

TEST(Experiments, UnknownNamesSuggestTheNearest) {
  expect_error([] { experiment("grooking"); }, {"grooking", "did you mean 'grokking'"});
  expect_error([] { testbed_entry("sparse_party"); }, {"did you mean 'sparse_parity'"});
  expect_error([] { optimizer_entry("ddc-adm"); }, {"did you mean 'ddc-adam'"});
}

/// Those on real data have tests of their own, with data of their own.
TEST(Testbeds, GaugesPassTheGate) {
  for (const auto& entry : testbed_entries()) {
    if (entry.check) continue;
    const auto bed = entry.make(complete(entry.name, entry.settings, {}));
    const auto params = bed.init(1, at::kDouble);
    const auto verdict = gate(bed.gauges(params), params, testbeds::evaluation_of(bed, params));
    EXPECT_TRUE(verdict.passed) << entry.name << ": " << verdict.residual << " > "
                                << verdict.tolerance;
  }
}

TEST(Tables, MedianCountsRunsThatNeverArriveAsLate) {
  EXPECT_EQ(median({300, INFINITY, 100}), 300);
  EXPECT_EQ(median({INFINITY, 200, INFINITY}), INFINITY);
  EXPECT_EQ(median({100, 200}), 150);
  EXPECT_TRUE(std::isnan(median({})));
}

TEST(Tables, NumbersHaveThreeDigits) {
  EXPECT_EQ(text(0.031249), "0.0312");
  EXPECT_EQ(text(4000), "4000");
  EXPECT_EQ(text(1.234e-7), "1.2e-07");
  EXPECT_EQ(text(NAN), "-");
  EXPECT_EQ(spread_text({1.0, 2.0, 3.0}), "2 ± 1");
  EXPECT_EQ(spread_text({0.5}), "0.5");
}

TEST(Tables, StepToIsTheFirstThatReachesTheLevel) {
  const auto run = finished({{0, {{"accuracy", 0.1}}},
                             {50, {{"accuracy", 0.91}}},
                             {100, {{"accuracy", 0.5}}},
                             {150, {{"accuracy", 0.95}}}});
  EXPECT_EQ(step_to(run, "accuracy", 0.9), 50);
  EXPECT_EQ(step_to(run, "accuracy", 0.99), INFINITY);
  EXPECT_EQ(step_to(run, "elsewhere", 0.1), INFINITY);
}

TEST(Tables, CurvesKeepTheLastPoint) {
  std::vector<Measurement> metrics;
  for (int64_t step = 0; step <= 1001; ++step) {
    metrics.push_back({step, {{"loss", static_cast<double>(step)}}});
  }
  const auto curves = curves_of({finished(metrics)}, "title", "loss", true);
  ASSERT_EQ(curves.series.size(), 1u);
  EXPECT_LE(curves.series[0].x.size(), 202u);
  EXPECT_EQ(curves.series[0].x.back(), 1001);
}

}  // namespace
}  // namespace ddc::experiments
