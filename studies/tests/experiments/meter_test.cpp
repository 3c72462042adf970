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
