#include "ddc/experiments/grid.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <string>
#include <vector>

#include "support/errors.h"
#include "support/folder.h"

namespace ddc::experiments {
namespace {

namespace fs = std::filesystem;
using tests::expect_error;

/// Runs of a grid are programs; these are scripts that get the folder of the run as $0.
class Grid : public testing::Test {
 protected:
  static std::vector<PlannedRun> plan(int64_t steps = 10) {
    std::vector<PlannedRun> runs;
    for (const auto* name : {"one", "two", "three"}) {
      runs.push_back(
          {.name = name, .arm = "arm", .config = {.testbed = "diagonal_network", .steps = steps}});
    }
    return runs;
  }

  static GridOptions script(const std::string& text) {
    return {.jobs = 2, .command = {"/bin/sh", "-c", text}};
  }

  const fs::path& folder() const { return folder_.path(); }

  static constexpr const char* finish =
      R"(echo '{"status": "finished", "steps": 10}' > "$0/summary.json")";

 private:
  tests::Folder folder_;
};

TEST_F(Grid, RunsOnlyWhatIsNotFinished) {
  auto options = script(std::string("case $0 in */two) exit 0;; esac; ") + finish);
  size_t finished_before = 9;
  options.started = [&](size_t finished, size_t) { finished_before = finished; };
  const auto first = run_grid(plan(), folder(), options);
  EXPECT_EQ(finished_before, 0);
  EXPECT_EQ(first.finished, 2);
  options.command = script(finish).command;
  std::vector<std::string> ended;
  options.ended = [&](const EndedRun& run) { ended.push_back(run.progress.name); };
  const auto second = run_grid(plan(), folder(), options);
  EXPECT_EQ(finished_before, 2);
  EXPECT_EQ(second.finished, 3);
  EXPECT_THAT(ended, testing::ElementsAre("two"));
}

TEST_F(Grid, SaysWhatWentWrongWithARunAndGoesOnWithTheOthers) {
  const auto outcome =
      run_grid(plan(), folder(),
               script(std::string("case $0 in */one) echo wrong; echo worse >&2; exit 3;; "
                                  "*/two) kill -KILL $$;; esac; ") +
                      finish));
  EXPECT_EQ(outcome.finished, 1);
  EXPECT_FALSE(outcome.interrupted);
  ASSERT_EQ(outcome.failed.size(), 2);
  for (const auto& run : outcome.failed) {
    EXPECT_EQ(run.error, run.progress.name == "one" ? "worse" : "killed: Killed");
  }
}

TEST_F(Grid, StopsItsRunsWhenItIsInterruptedAndWaitsForThem) {
  auto options = script(R"(trap 'echo saved > "$0/saved"; exit 130' TERM
                           echo ready > "$0/ready"; while :; do sleep 0.01; done)");
  options.interrupted = [&] {
    return fs::exists(folder() / "runs/one/ready") && fs::exists(folder() / "runs/two/ready");
  };
  options.ended = [](const EndedRun& run) { ADD_FAILURE() << run.progress.name; };
  const auto outcome = run_grid(plan(), folder(), options);
  EXPECT_TRUE(outcome.interrupted);
  EXPECT_TRUE(outcome.failed.empty());
  EXPECT_EQ(outcome.finished, 0);
  EXPECT_TRUE(fs::exists(folder() / "runs/one/saved") && fs::exists(folder() / "runs/two/saved"));
  EXPECT_FALSE(fs::exists(folder() / "runs/three/ready"));
}

TEST_F(Grid, RefusesAFolderOfAnotherPlanAndSaysWhatToDo) {
  run_grid(plan(), folder(), script(finish));
  expect_error([&] { run_grid(plan(20), folder(), script(finish)); },
               {"3 of its runs differ, such as runs/one (steps is 10 there, not 20)",
                "delete the folder to start over, or choose another with --out"});
}

}  // namespace
}  // namespace ddc::experiments
