// The experiments on real data, as they judge runs. No data are needed for that.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "ddc/experiments/experiment.h"
#include "support/errors.h"

namespace ddc::experiments {
namespace {

using Values = std::map<std::string, double>;

/// All planned runs, as if each had measured `start` and then what `end` says of it.
template <class End>
Result evaluated(const char* name, const Values& start, const End& end) {
  const auto& chosen = experiment(name);
  std::vector<FinishedRun> runs;
  for (const auto& plan : chosen.plan(/*quick=*/false)) {
    FinishedRun run;
    run.plan = plan;
    run.summary.steps = 100;
    run.metrics = {{.step = 0, .values = start},
                   {.step = 100, .values = end(plan.arm, plan.config.seed)}};
    runs.push_back(std::move(run));
  }
  Result result;
  chosen.evaluate(runs, result);
  return result;
}

const Claim& claim(const Result& result, const std::string& part) {
  for (const auto& candidate : result.claims) {
    if (candidate.what.find(part) != std::string::npos) return candidate;
  }
  throw std::out_of_range("no claim about " + part);
}

Values language_values(double validation_loss, double accuracy) {
  return {{"train_loss", 1},
          {"validation_loss", validation_loss},
          {"gap", validation_loss - 1},
          {"train_accuracy", 0.5},
          {"validation_accuracy", accuracy},
          {"sigma_min", 2},
          {"effective_rank", 10},
          {"drift", 1e-7}};
}

TEST(OverTraining, DirectionsOfThePaperAreReproducedOnlyBeyondTheSpreadOfSeeds) {
  const auto result = evaluated(
      "over_training", language_values(3, 0.3), [](const std::string& arm, uint64_t seed) {
        // Seeds differ by 0.01; Muon's arms by as little.
        const double noise = seed == 42 ? 0 : 0.01;
        auto values = language_values((arm == "AdamW" ? 5 : 4) + noise, 0.3 + noise);
        values["sigma_min"] = arm == "AdamW" ? 3 : 1;
        return values;
      });
  EXPECT_EQ(claim(result, "validation loss, AdamW against DDCAdam").outcome, Outcome::reproduced);
  EXPECT_EQ(claim(result, "validation less train").outcome, Outcome::reproduced);
  EXPECT_EQ(claim(result, "validation accuracy, AdamW").outcome, Outcome::not_reproduced);
  EXPECT_EQ(claim(result, "sigma_min").outcome, Outcome::reproduced);
  EXPECT_EQ(claim(result, "sigma_min").measured, "1.5 ± 0 against 0.5 ± 0");
  EXPECT_EQ(claim(result, "exact polar factor").outcome, Outcome::reproduced);
  EXPECT_EQ(claim(result, "validation loss, Muon").outcome, Outcome::not_reproduced);
  EXPECT_EQ(claim(result, "validation loss, Muon").measured,
            "4.01 ± 0.00577 against 4.01 ± 0.00577");
}

TEST(OverTraining, EveryArmHasARowWithItsDrift) {
  const auto result = evaluated(
      "over_training", language_values(3, 0.3), [](const std::string& arm, uint64_t seed) {
        auto values = language_values(4, 0.3);
        values["drift"] = arm == "AdamW" ? static_cast<double>(seed) : 1e-7;
        return values;
      });
  ASSERT_EQ(result.table.rows.size(), 6u);
  EXPECT_EQ(result.table.columns.back(), "largest drift");
  EXPECT_EQ(result.table.rows.front().front(), "AdamW");
  EXPECT_EQ(result.table.rows.front()[1], "3");
  EXPECT_EQ(result.table.rows.front().back(), "242");
  EXPECT_EQ(result.table.rows[1].back(), "1.0e-07");
  for (const auto& row : result.table.rows) EXPECT_EQ(row.size(), result.table.columns.size());
}

TEST(OverTraining, WithoutRunsNothingIsClaimed) {
  Result result;
  experiment("over_training").evaluate({}, result);
  EXPECT_TRUE(result.table.rows.empty());
  for (const auto& missing : result.claims) EXPECT_EQ(missing.outcome, Outcome::not_run);
}

Values vision_values(double loss, double accuracy, double dead, double sigma_min) {
  return {{"train_loss", 1},
          {"validation_loss", loss},
          {"validation_accuracy", accuracy},
          {"dead_relu", dead},
          {"gate_dead", 0},
          {"sigma_min", sigma_min},
          {"effective_rank", 10},
          {"drift", 1e-7}};
}

TEST(Compression, JudgesLossDeadUnitsAndSingularValues) {
  const auto result = evaluated(
      "compression", vision_values(2, 0.1, 0, 5), [](const std::string& arm, uint64_t /*seed*/) {
        return arm == "AdamW" ? vision_values(0.8, 0.80, 10, 3) : vision_values(0.7, 0.805, 100, 4);
      });
  EXPECT_EQ(claim(result, "validation loss").outcome, Outcome::reproduced);
  EXPECT_EQ(claim(result, "validation accuracy").outcome, Outcome::reproduced);
  EXPECT_EQ(claim(result, "dead ReLU").outcome, Outcome::reproduced);
  // The other way round than in the paper.
  EXPECT_EQ(claim(result, "sigma_min").outcome, Outcome::not_reproduced);
  for (const auto& row : result.table.rows) EXPECT_EQ(row.size(), result.table.columns.size());
}

TEST(Compression, AccuraciesThatDifferAreNotTied) {
  const auto result = evaluated("compression", vision_values(2, 0.1, 0, 5),
                                [](const std::string& arm, uint64_t /*seed*/) {
                                  return vision_values(1, arm == "AdamW" ? 0.8 : 0.82, 0, 5);
                                });
  EXPECT_EQ(claim(result, "validation accuracy").outcome, Outcome::not_reproduced);
}

TEST(Compression, TellsWhetherAdamNeedsTwiceTheDecay) {
  const auto outcome = [](double once, double twice) {
    const auto result = evaluated("compression", vision_values(2, 0.1, 0, 5),
                                  [=](const std::string& arm, uint64_t /*seed*/) {
                                    auto values = vision_values(1, 0.8, 0, 5);
                                    if (arm == "AdamW") values["gate_dead"] = once;
                                    if (arm == "AdamW, twice the decay")
                                      values["gate_dead"] = twice;
                                    return values;
                                  });
    return claim(result, "twice the decay").outcome;
  };
  EXPECT_EQ(outcome(0, 30), Outcome::reproduced);
  EXPECT_EQ(outcome(0, 0), Outcome::not_reproduced);
  EXPECT_EQ(outcome(10, 30), Outcome::not_reproduced);
}

TEST(RealData, RunsWithoutTheirDataAreRefusedBeforeAnythingIsWritten) {
  RunConfig images;
  images.testbed = "fashion_mnist";
  images.testbed_settings = {{"data", "/nowhere"}};
  tests::expect_error([&] { completed(images); }, {"apt-get install dataset-fashion-mnist"});
  RunConfig text;
  text.testbed = "language_model";
  text.testbed_settings = {{"text", "/nowhere"}};
  tests::expect_error([&] { completed(text); }, {"there is no text '/nowhere'"});
}

}  // namespace
}  // namespace ddc::experiments
