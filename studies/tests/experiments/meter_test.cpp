// Meters are chosen, refused by name, and go on where an interrupted run stopped.

#include "ddc/experiments/meter.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "ddc/experiments/run.h"
#include "support/errors.h"

namespace ddc::experiments {
namespace {

using tests::expect_error;

/// A folder that is gone with the test.
struct RunFolder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("ddc-meter-test-" + std::to_string(getpid()));
  ~RunFolder() { std::filesystem::remove_all(path); }
};

RunConfig small_run() {
  RunConfig config;
  config.testbed = "relu_teacher_student";
  config.testbed_settings = {
      {"d_in", 3}, {"d_hidden", 4}, {"d_out", 2}, {"samples", 16}, {"per_channel", true}};
  config.optimizer = "ddc-adam";
  config.steps = 6;
  config.evaluate_every = 2;
  config.dtype = "float64";
  return config;
}

TEST(Meters, OfARunThatSaysNothingAreDriftAndTurn) {
  const RunFolder folder;
  execute(small_run(), folder.path);
  const auto last = read_metrics(folder.path).back();
  EXPECT_TRUE(last.values.contains("drift"));
  EXPECT_FALSE(last.values.contains("arc"));
}

TEST(Meters, OfAnOldConfigurationAreTheDefaultOnes) {
  Json json = small_run();
  json.erase("meters");
  EXPECT_EQ(json.get<RunConfig>().meters, default_meters());
}

TEST(Meters, MeasureWhatTheyAreAskedForAsOftenAsTheyAreAskedTo) {
  auto config = small_run();
  config.meters = Json::array({parse_meter("fisher:every=2"), parse_meter("arc")});
  const RunFolder folder;
  const auto summary = execute(config, folder.path);
  const auto metrics = read_metrics(folder.path);
  ASSERT_EQ(metrics.size(), 4u);
  EXPECT_TRUE(metrics[0].values.contains("fisher.largest"));
  EXPECT_FALSE(metrics[1].values.contains("fisher.largest"));
  // The last one, whatever its number.
  EXPECT_TRUE(metrics[3].values.contains("fisher.largest"));
  EXPECT_GT(metrics[3].values.at("fisher.removed"), 0);
  EXPECT_EQ(metrics[3].values.at("fisher.zeros"), 0);
  EXPECT_FALSE(metrics[3].values.contains("drift"));
  EXPECT_GT(metrics[3].values.at("arc"), metrics[1].values.at("arc"));
  EXPECT_GT(summary->meter_seconds.at("fisher"), 0);
}

TEST(Meters, OfEveryKindOfCurvatureHaveNamesOfTheirOwn) {
  auto config = small_run();
  config.meters = Json::array({parse_meter("fisher"), parse_meter("fisher:kind=hessian"),
                               parse_meter("fisher:kind=empirical_fisher"),
                               parse_meter("fisher:kind=hessian,tensors=layers.0.weight")});
  const RunFolder folder;
  const auto summary = execute(config, folder.path);
  const auto values = read_metrics(folder.path).front().values;
  EXPECT_NE(values.at("fisher.trace"), values.at("hessian.trace"));
  EXPECT_NE(values.at("fisher.trace"), values.at("empirical_fisher.trace"));
  EXPECT_TRUE(values.contains("hessian[layers.0.weight].trace"));
  EXPECT_TRUE(summary->meter_seconds.contains("hessian"));
  expect_error(
      [] {
        complete_meters(Json::array({parse_meter("fisher"), parse_meter("fisher:samples=2")}));
      },
      {"would both write 'fisher'", "samples"});
}

TEST(Meters, NameZerosAndWhatWasRemoved) {
  auto config = small_run();
  // More weights than four samples of two outputs can tell apart.
  config.meters = Json::array({parse_meter("fisher:samples=4")});
  const RunFolder folder;
  const auto summary = execute(config, folder.path);
  const auto values = read_metrics(folder.path).back().values;
  double zeros = 0;
  double removed = 0;
  for (const auto& [name, value] : values) {
    if (name.starts_with("fisher.zeros_in[")) zeros += value;
    if (name.starts_with("fisher.removed_by[")) removed += value;
  }
  EXPECT_GT(values.at("fisher.zeros"), 0);
  EXPECT_NEAR(zeros, values.at("fisher.zeros"), 1e-6);
  EXPECT_EQ(removed, values.at("fisher.removed"));
  EXPECT_GT(values.at("fisher.gap"), 1);
}

TEST(Meters, SayWhereTooFewSamplesWereAllowed) {
  auto config = small_run();
  config.testbed = "modular_addition";
  config.testbed_settings = {{"modulus", 5}, {"d_model", 4}, {"heads", 1}, {"d_ff", 4}};
  config.steps = 2;
  config.meters = Json::array(
      {parse_meter("fisher:kind=monte_carlo_fisher,tensors=unembedding.*,few_samples=true")});
  const RunFolder folder;
  const auto summary = execute(config, folder.path);
  const auto values = read_metrics(folder.path).back().values;
  const std::string prefix = "monte_carlo_fisher[unembedding.*].";
  EXPECT_EQ(values.at(prefix + "few_samples"), 1);
  EXPECT_LT(values.at(prefix + "samples_per_parameter"), 100);
  ASSERT_FALSE(summary->meter_notes.empty());
  EXPECT_NE(summary->meter_notes.back().find("few_samples was allowed"), std::string::npos);
}

TEST(Meters, FollowAStepFromBothEnds) {
  auto config = small_run();
  config.evaluate_every = 1;
  config.meters = Json::array({parse_meter("step_fisher"), parse_meter("fisher")});
  const RunFolder folder;
  execute(config, folder.path);
  const auto metrics = read_metrics(folder.path);
  for (size_t k = 0; k + 1 < metrics.size(); ++k) {
    const auto& values = metrics[k].values;
    EXPECT_GT(values.at("step_fisher.before"), 0);
    // No direction has more curvature than the largest eigenvalue there.
    EXPECT_LE(values.at("step_fisher.before"), values.at("fisher.largest"));
    EXPECT_LE(values.at("step_fisher.after"), metrics[k + 1].values.at("fisher.largest"));
    EXPECT_NE(values.at("step_fisher.before"), values.at("step_fisher.after"));
  }
  EXPECT_FALSE(metrics.back().values.contains("step_fisher.before"));
}

TEST(Meters, ReadTheValidityOfAStepOffSecondMoments) {
  auto config = small_run();
  config.optimizer = "adamw";
  config.optimizer_settings = {{"lr", 1e-3}, {"beta2", 0.99}};
  config.meters = Json::array({parse_meter("validity")});
  {
    const RunFolder folder;
    execute(config, folder.path);
    const auto values = read_metrics(folder.path).front().values;
    EXPECT_GT(values.at("validity.kappa"), 1);
    EXPECT_NEAR(values.at("validity.ratio"), 1e-3 * values.at("validity.kappa") * 0.01, 1e-12);
  }
  config.optimizer = "sgd";
  config.optimizer_settings = Json::object();
  const RunFolder folder;
  expect_error([&] { execute(config, folder.path); }, {"meter validity", "no beta2"});
  EXPECT_FALSE(std::filesystem::exists(folder.path));
}

TEST(Meters, DoNotCallDeadWhatTooFewInputsCannotReach) {
  auto config = small_run();
  config.testbed_settings["samples"] = 3;
  config.meters = Json::array({parse_meter("activations")});
  const RunFolder folder;
  execute(config, folder.path);
  const auto values = read_metrics(folder.path).back().values;
  EXPECT_EQ(values.at("activations[layers.0].rows_missing"), 1);
  EXPECT_FALSE(values.contains("activations[layers.0].dead_directions"));
}

TEST(Meters, SeeTheHiddenUnitsOfAnMlp) {
  auto config = small_run();
  config.meters = Json::array({parse_meter("activations")});
  const RunFolder folder;
  execute(config, folder.path);
  const auto last = read_metrics(folder.path).back().values;
  EXPECT_EQ(last.at("activations[layers.0].never_on"), 0);
  EXPECT_GT(last.at("activations[layers.0].row_norm_min"), 0);
  EXPECT_LE(last.at("activations[stream].effective_rank"), 4);
}

TEST(Meters, LookAtAKeptCheckpointLater) {
  auto config = small_run();
  config.keep_every = 2;
  config.meters = Json::array({parse_meter("fisher"), parse_meter("drift")});
  const RunFolder folder;
  execute(config, folder.path);
  const auto metrics = read_metrics(folder.path);
  const auto kept = measure(folder.path, "step-2", config.meters);
  EXPECT_EQ(kept.step, 2);
  for (const std::string name : {"fisher.smallest", "fisher.trace", "drift"}) {
    EXPECT_EQ(kept.values.at(name), metrics[1].values.at(name)) << name;
  }
  EXPECT_EQ(measure(folder.path, "latest", config.meters).values.at("fisher.trace"),
            metrics.back().values.at("fisher.trace"));
  EXPECT_EQ(read_metrics(folder.path).size(), metrics.size());
  expect_error([&] { measure(folder.path, "step-3", config.meters); }, {"step-3", "checkpoint"});
  // How far the run had come by then is not known.
  expect_error([&] { measure(folder.path, "latest", Json::array({parse_meter("arc")})); }, {"arc"});
}

TEST(Meters, GoOnWhereAnInterruptedRunStopped) {
  auto config = small_run();
  config.meters = Json::array({parse_meter("arc")});
  const RunFolder whole;
  execute(config, whole.path);
  const auto expected = read_metrics(whole.path).back().values.at("arc");
  std::filesystem::remove_all(whole.path);
  const RunFolder parts;
  int64_t asked = 0;
  EXPECT_FALSE(execute(config, parts.path, {.interrupted = [&] { return ++asked == 4; }}));
  execute(config, parts.path);
  EXPECT_EQ(read_metrics(parts.path).back().values.at("arc"), expected);
}

TEST(Meters, ThatDoNotGoWithTheNetworkAreRefusedBeforeAnythingIsWritten) {
  for (const auto& [meter, words] : std::map<std::string, std::vector<std::string>>{
           {"activations", {"activations", "diagonal network", "no nodes"}},
           {"fisher:kind=monte_carlo_fisher", {"labels cannot be drawn", "gauss_newton"}},
           {"fisher:tensors=layers.7.*", {"fisher", "layers.7.*"}}}) {
    auto config = small_run();
    config.testbed = "diagonal_network";
    config.testbed_settings = Json::object();
    config.meters = Json::array({parse_meter(meter)});
    const RunFolder folder;
    expect_error([&] { execute(config, folder.path); }, words);
    EXPECT_FALSE(std::filesystem::exists(folder.path));
  }
}

TEST(Meters, WithTooFewSamplesAreRefusedBeforeAnythingIsWritten) {
  auto config = small_run();
  config.testbed = "modular_addition";
  config.testbed_settings = {{"modulus", 5}, {"d_model", 4}, {"heads", 1}, {"d_ff", 4}};
  // Labels of one sample are no samples.
  config.meters = Json::array({parse_meter("fisher:kind=monte_carlo_fisher,labels=20000")});
  const RunFolder folder;
  expect_error([&] { execute(config, folder.path); }, {"needs 100", "few_samples"});
  EXPECT_FALSE(std::filesystem::exists(folder.path));
}

TEST(Meters, OfGaugesThatAreNoSymmetryAreRefused) {
  auto config = small_run();
  config.testbed = "rope_grokking";
  // The paper's ablation: rotations as if nothing were rotary.
  config.testbed_settings = {{"modulus", 5}, {"sequence", 8},     {"batch_size", 4},
                             {"d_model", 8}, {"heads", 2},        {"d_ff", 4},
                             {"layers", 1},  {"rotation", "full"}};
  config.optimizer = "adamw";
  config.meters = Json::array({parse_meter("fisher:kind=empirical_fisher")});
  const RunFolder folder;
  expect_error([&] { execute(config, folder.path); }, {"is no symmetry of this loss"});
  EXPECT_FALSE(std::filesystem::exists(folder.path));
}

TEST(Meters, AreRefusedByName) {
  expect_error([] { parse_meter("fishr"); }, {"fishr", "fisher"});
  expect_error([] { parse_meter("fisher:tensor=a"); }, {"tensor", "tensors"});
  expect_error([] { parse_meter("fisher:every=0"); }, {"every"});
  expect_error([] { parse_meter("drift:every"); }, {"key=value"});
  expect_error(
      [] {
        complete_meters(Json::array({parse_meter("arc"), parse_meter("arc")}));
      },
      {"twice"});
}

}  // namespace
}  // namespace ddc::experiments
