// Runs measure by what angle a step turns weights along the orbits of rotations.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "ddc/experiments/run.h"

namespace ddc::experiments {
namespace {

/// A folder that is gone with the test.
struct Folder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("ddc-turn-test-" + std::to_string(getpid()));
  ~Folder() { std::filesystem::remove_all(path); }
};

std::vector<Measurement> metrics_of(const Json& testbed_settings, const std::string& optimizer,
                                    const Json& settings) {
  RunConfig config;
  config.testbed = "rope_grokking";
  config.testbed_settings = testbed_settings;
  config.optimizer = optimizer;
  config.optimizer_settings = settings;
  config.steps = 10;
  config.evaluate_every = 5;
  config.dtype = "float64";
  const Folder folder;
  execute(config, folder.path);
  return read_metrics(folder.path);
}

const Json small = {{"modulus", 7}, {"sequence", 8}, {"batch_size", 8}, {"d_model", 16},
                    {"heads", 2},   {"d_ff", 12},    {"layers", 2}};

/// After five steps, when momentum has gathered.
double turn(const std::string& optimizer, double lr) {
  const auto metrics =
      metrics_of(small, optimizer, {{"lr", lr}, {"weight_decay", 1.0}, {"adam_lr", lr}});
  EXPECT_EQ(metrics.size(), 3u);
  return metrics[1].values.at("turn");
}

TEST(Turn, IsOfTheOrderOfAStepForMuonAndRoundingIfTheTorusIsBound) {
  for (const double lr : {1e-2, 1e-3}) {
    EXPECT_GT(turn("muon", lr), 0.1 * lr) << lr;
    EXPECT_LT(turn("ddc-muon", lr), 1e-12) << lr;
  }
}

TEST(Turn, IsSaidOfEveryHead) {
  const auto values = metrics_of(small, "muon", Json::object()).front().values;
  double largest = 0;
  int64_t heads = 0;
  for (const auto& [name, value] : values) {
    if (!name.starts_with("turn[")) continue;
    largest = std::max(largest, value);
    ++heads;
  }
  // Two layers of two heads with two rotary planes each, and a rotation of values.
  EXPECT_GE(heads, 8);
  EXPECT_EQ(largest, values.at("turn"));
}

TEST(Turn, IsNotMeasuredAtTheEndWhereNoStepFollows) {
  const auto metrics = metrics_of(small, "muon", Json::object());
  EXPECT_TRUE(metrics.front().values.contains("turn"));
  EXPECT_FALSE(metrics.back().values.contains("turn"));
}

TEST(Turn, IsNotMeasuredWhereScalesChangeTheUnitsOfRotations) {
  auto scaled = small;
  scaled["scales_and_shifts"] = true;
  for (const auto& measurement : metrics_of(scaled, "muon", Json::object())) {
    EXPECT_FALSE(measurement.values.contains("turn"));
  }
}

TEST(Turn, IsMeasuredWithoutChangingTheRun) {
  auto none = small;
  none["rotation"] = "none";
  const auto a = metrics_of(small, "muon", Json::object());
  const auto b = metrics_of(none, "muon", Json::object());
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_FALSE(b[i].values.contains("turn"));
    EXPECT_EQ(a[i].values.at("loss"), b[i].values.at("loss"));
  }
}

}  // namespace
}  // namespace ddc::experiments
