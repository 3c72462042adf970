#include "ddc/experiments/run.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "support/errors.h"
#include "support/folder.h"

namespace ddc::experiments {
namespace {

namespace fs = std::filesystem;
using tests::expect_error;

class Run : public testing::Test {
 protected:
  fs::path folder(const std::string& name) const { return folder_.path() / name; }

  static RunConfig config() {
    return {.testbed = "relu_teacher_student",
            .testbed_settings = {{"d_hidden", 4}, {"samples", 16}},
            .optimizer = "ddc-adam",
            .steps = 60,
            .evaluate_every = 7,
            .warmup = 10,
            .cosine = true};
  }

  static std::string text_of(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  /// Interrupted after so many steps of its own.
  static std::optional<RunSummary> execute_some(const RunConfig& config, const fs::path& folder,
                                                int64_t steps) {
    int64_t done = 0;
    return execute(
        config, folder,
        {.step = [&](int64_t, double) { ++done; }, .interrupted = [&] { return done >= steps; }});
  }

 private:
  tests::Folder folder_;
};

TEST_F(Run, InterruptedManyTimesIsTheSameToTheLastBit) {
  for (const auto* optimizer : {"adamw", "ddc-adam", "ddc-muon"}) {
    auto some = config();
    some.optimizer = optimizer;
    const auto whole = folder(std::string("whole-") + optimizer);
    const auto parts = folder(std::string("parts-") + optimizer);
    const auto expected = execute(some, whole);
    ASSERT_TRUE(expected.has_value());
    // Steps that are evaluated, and others.
    for (const int64_t steps : {1, 6, 7, 13, 22}) {
      EXPECT_FALSE(execute_some(some, parts, steps).has_value());
    }
    const auto summary = resume(parts);
    ASSERT_TRUE(summary.has_value());
    EXPECT_EQ(summary->steps, expected->steps);
    EXPECT_EQ(text_of(parts / "metrics.jsonl"), text_of(whole / "metrics.jsonl")) << optimizer;
  }
}

TEST_F(Run, DropsWhatWasMeasuredAfterTheLastCheckpoint) {
  execute(config(), folder("whole"));
  execute_some(config(), folder("killed"), 10);
  // As a process leaves it that is killed while it writes.
  std::ofstream(folder("killed") / "metrics.jsonl", std::ios::app)
      << "{\"loss\":1.5,\"step\":14}\n{\"loss\":1.25,\"st";
  EXPECT_EQ(read_metrics(folder("killed")).size(), 3);
  resume(folder("killed"));
  EXPECT_EQ(text_of(folder("killed") / "metrics.jsonl"),
            text_of(folder("whole") / "metrics.jsonl"));
}

TEST_F(Run, RefusesToGoOnWithoutTheMeasurementsBeforeItsCheckpoint) {
  execute_some(config(), folder("run"), 20);
  std::ofstream(folder("run") / "metrics.jsonl") << "{\"loss\":1.5,\"step\":0}\n";
  expect_error([&] { resume(folder("run")); },
               {"has 1 measurements before step 20", "latest.safetensors' to start the run over"});
}

TEST_F(Run, NamesACheckpointThatItCannotReadAndStartsOverWithoutIt) {
  execute(config(), folder("whole"));
  execute_some(config(), folder("run"), 20);
  const auto checkpoint = folder("run") / "checkpoints" / "latest.safetensors";
  fs::resize_file(checkpoint, fs::file_size(checkpoint) / 2);
  expect_error([&] { resume(folder("run")); },
               {"cannot go on from '" + checkpoint.string() + "'",
                "delete '" + checkpoint.string() + "' to start the run over"});
  fs::remove(checkpoint);
  resume(folder("run"));
  EXPECT_EQ(text_of(folder("run") / "metrics.jsonl"), text_of(folder("whole") / "metrics.jsonl"));
}

TEST_F(Run, RefusesAFolderOfAnotherRunAndSaysWhatDiffers) {
  prepare(config(), folder("run"));
  prepare(config(), folder("run"));
  auto other = config();
  other.optimizer_settings = {{"lr", 0.5}};
  EXPECT_EQ(conflict(config(), folder("run")), "");
  EXPECT_EQ(conflict(other, folder("none")), "");
  EXPECT_EQ(conflict(other, folder("run")), "optimizer_settings/lr is 0.001 there, not 0.5");
  expect_error([&] { execute(other, folder("run")); },
               {"holds another run (optimizer_settings/lr is 0.001 there, not 0.5)"});
}

TEST_F(Run, SettingsThatDidNotExistWhenItWasMadeHaveTheirDefaults) {
  prepare(config(), folder("run"));
  const auto file = folder("run") / "config.json";
  auto stored = Json::parse(text_of(file));
  const auto removed = stored["optimizer_settings"].erase("beta1");
  ASSERT_EQ(removed, 1u);
  std::ofstream(file) << stored;
  auto other = config();
  other.optimizer_settings["beta1"] = 0.5;
  EXPECT_EQ(conflict(config(), folder("run")), "");
  EXPECT_EQ(conflict(other, folder("run")), "optimizer_settings/beta1 is 0.9 there, not 0.5");
  execute(config(), folder("run"));
  execute(config(), folder("whole"));
  EXPECT_EQ(text_of(folder("run") / "metrics.jsonl"), text_of(folder("whole") / "metrics.jsonl"));
}

/// From where it finished, at a step that is evaluated and at one that is not, and from where it was
/// interrupted.
TEST_F(Run, ExtendedIsTheSameAsOneThatWasMadeForSoMany) {
  auto longer = config();
  longer.cosine = false;
  execute(longer, folder("whole"));
  const auto expected = text_of(folder("whole") / "metrics.jsonl");
  for (const int64_t steps : {35, 40, 50}) {
    auto shorter = longer;
    shorter.steps = steps;
    const auto extended = folder("extended-" + std::to_string(steps));
    if (steps == 50) {
      execute_some(shorter, extended, 20);
    } else {
      execute(shorter, extended);
    }
    extend(extended, longer.steps);
    EXPECT_FALSE(read_summary(extended).has_value());
    resume(extended);
    EXPECT_EQ(text_of(extended / "metrics.jsonl"), expected) << steps;
    EXPECT_EQ(conflict(longer, extended), "");
  }
}

TEST_F(Run, RefusesExtensionsThatWouldBeOtherRuns) {
  const auto expect = [&](const fs::path& run, int64_t steps, const std::string& said) {
    const auto before = text_of(run / "config.json") + text_of(run / "summary.json");
    expect_error([&] { extend(run, steps); }, {run.string(), said});
    EXPECT_EQ(text_of(run / "config.json") + text_of(run / "summary.json"), before);
  };
  execute(config(), folder("cosine"));
  expect(folder("cosine"), 100, "its learning rate falls over the 60 that it was made for");
  auto constant = config();
  constant.cosine = false;
  execute(constant, folder("constant"));
  expect(folder("constant"), 60, "option steps must be > 60");
  fs::remove_all(folder("constant") / "checkpoints");
  expect(folder("constant"), 100, "latest.safetensors");
  constant.stop_metric = "loss";
  execute(constant, folder("reached"));
  expect(folder("reached"), 100, "it ended at step 0 (reached)");
}

TEST_F(Run, KeepsCheckpointsThatAreAskedFor) {
  auto keeping = config();
  keeping.keep_every = 25;
  execute(keeping, folder("run"));
  for (const auto* name : {"step-0", "step-25", "step-50", "latest"}) {
    EXPECT_TRUE(fs::exists(folder("run") / "checkpoints" / (std::string(name) + ".safetensors")));
  }
}

TEST_F(Run, EndsWhereItDiverges) {
  auto wild = config();
  wild.optimizer = "sgd";
  wild.optimizer_settings = {{"lr", 1e6}};
  const auto summary = execute(wild, folder("run"));
  ASSERT_TRUE(summary.has_value());
  EXPECT_EQ(summary->status, RunStatus::diverged);
  EXPECT_LT(summary->steps, wild.steps);
  EXPECT_EQ(read_summary(folder("run"))->status, RunStatus::diverged);
}

TEST_F(Run, RefusesOptionsBeforeItWritesAnything) {
  const auto expect = [&](const std::string& said, auto&& change) {
    auto wrong = config();
    change(wrong);
    expect_error([&] { execute(wrong, folder("run")); }, {said});
  };
  expect("did you mean 'relu_teacher_student'?",
         [](auto& wrong) { wrong.testbed = "relu_teacher_studnt"; });
  expect("option steps must be > warmup, which is 10, got 10",
         [](auto& wrong) { wrong.steps = wrong.warmup; });
  expect("option evaluate_every must be > 0, got 0", [](auto& wrong) { wrong.evaluate_every = 0; });
  expect("option dtype must be float32 or float64, got 'float16'",
         [](auto& wrong) { wrong.dtype = "float16"; });
  expect("option threads must be from 1 to 1024, got 1000000",
         [](auto& wrong) { wrong.threads = 1'000'000; });
  expect("option stop_at must be finite, got nan",
         [](auto& wrong) { wrong.stop_at = std::numeric_limits<double>::quiet_NaN(); });
  expect("option lr must be finite and >= 0, got nan", [](auto& wrong) {
    wrong.optimizer_settings["lr"] = std::numeric_limits<double>::quiet_NaN();
  });
  // What only the gauges or the base rule can refuse.
  expect("coordinates=polar is no matter of place", [](auto& wrong) {
    wrong.optimizer_settings = {{"coordinates", "polar"}, {"placement", "canonical"}};
  });
  EXPECT_FALSE(fs::exists(folder("run")));
}

TEST_F(Run, FilesThatAreDamagedAreNamedWithWhatIsWrong) {
  const auto run = folder("run");
  execute(config(), run);
  const auto written = [&](const std::string& name, const std::string& text) {
    std::ofstream(run / name, std::ios::binary) << text;
  };
  const auto refused = [&](const std::string& name, const std::string& text, const auto& read,
                           const std::string& said) {
    const auto before = text_of(run / name);
    written(name, text);
    expect_error(read, {(run / name).string(), said});
    written(name, before);
  };
  const auto config_of = [&] { read_config(run); };
  refused("config.json", "[1]", config_of, "is [1], must be an object");
  refused("config.json", "{\"steps\": 3}", config_of, "it has no 'testbed'");
  refused("config.json", std::string(50'000, '['), config_of, "nested deeper than 16 levels");
  refused("config.json", text_of(run / "config.json").substr(0, 50), config_of, "at byte");
  auto wrong = text_of(run / "config.json");
  const std::string steps = "\"steps\": 60";
  ASSERT_NE(wrong.find(steps), std::string::npos);
  wrong.replace(wrong.find(steps), steps.size(), "\"steps\": 1e99");
  refused("config.json", wrong, config_of, "its 'steps' is 1e+99, must be a whole number");
  const auto summary_of = [&] { read_summary(run); };
  refused("summary.json", "{\"status\": \"won\", \"steps\": 1}", summary_of, "must be finished");
  refused("summary.json", "{\"status\": \"finished\"}", summary_of, "it has no 'steps'");
  const auto metrics_of = [&] { read_metrics(run); };
  refused("metrics.jsonl", "{\"step\": 0}\n7\n", metrics_of, "line 2: it is 7, must be an object");
  refused("metrics.jsonl", "{\"step\": \"0\"}\n", metrics_of, "its 'step' is \"0\"");
  refused("metrics.jsonl", "{\"step\": 0, \"loss\": true}\n", metrics_of, "its 'loss' is true");
  // Whoever was killed while writing left half a line.
  written("metrics.jsonl", "{\"step\": 0, \"loss\": 1}\n{\"step\": 7, \"lo");
  EXPECT_EQ(read_metrics(run).size(), 1);
}

}  // namespace
}  // namespace ddc::experiments
