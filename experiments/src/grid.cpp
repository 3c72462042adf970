#include "ddc/experiments/grid.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <list>
#include <thread>
#include <utility>

#include "files.h"

extern char** environ;

namespace ddc::experiments {
namespace {

namespace fs = std::filesystem;

/// A run in a process of its own: a crash takes nobody along, and threads and random numbers are its own.
class Child {
 public:
  Child(const std::vector<std::string>& command, const PlannedRun& run, fs::path folder)
      : run_(run), folder_(std::move(folder)) {
    auto arguments = command;
    arguments.push_back(folder_.string());
    std::vector<char*> pointers;
    for (auto& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log().c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0644);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    const int error =
        posix_spawnp(&process_, pointers[0], &actions, nullptr, pointers.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    TORCH_CHECK(error == 0, "cannot start '", arguments[0], "': ", std::strerror(error));
  }

  const PlannedRun& run() const { return run_; }

  /// Whether it is over; then `failed` says how.
  bool over() { return waitpid(process_, &status_, WNOHANG) == process_; }
  bool failed() const { return !WIFEXITED(status_) || WEXITSTATUS(status_) != 0; }
  void stop() const { kill(process_, SIGINT); }

  std::string error() const {
    if (!failed()) return "";
    auto said = read_text(log());
    while (!said.empty() && said.back() == '\n') said.pop_back();
    if (WIFSIGNALED(status_)) {
      said.append(said.empty() ? "" : "; ")
          .append("killed by ")
          .append(strsignal(WTERMSIG(status_)));
    }
    return said;
  }

  RunProgress progress() const {
    const auto metrics = read_metrics(folder_);
    RunProgress result{.name = run_.name,
                       .step = 0,
                       .steps = run_.config.steps,
                       .loss = std::numeric_limits<double>::quiet_NaN(),
                       .drift = std::numeric_limits<double>::quiet_NaN()};
    if (metrics.empty()) return result;
    result.step = metrics.back().step;
    for (const auto& [name, value] : metrics.back().values) {
      if (name == "loss") result.loss = value;
      if (name == "drift") result.drift = value;
    }
    return result;
  }

 private:
  fs::path log() const { return folder_ / "log.txt"; }

  PlannedRun run_;
  fs::path folder_;
  pid_t process_ = -1;
  int status_ = 0;
};

}  // namespace

bool run_grid(const std::vector<PlannedRun>& runs, const fs::path& folder,
              const GridOptions& options) {
  TORCH_CHECK_VALUE(options.jobs > 0, "option jobs must be > 0, got ", options.jobs);
  std::deque<const PlannedRun*> waiting;
  // All of them before the first starts: what cannot run is to be known at once.
  for (const auto& run : runs) {
    const auto run_folder = folder / "runs" / run.name;
    prepare(run.config, run_folder);
    if (!read_summary(run_folder)) waiting.push_back(&run);
  }
  size_t finished = runs.size() - waiting.size();
  std::list<Child> active;
  bool stopping = false;
  while (!active.empty() || (!waiting.empty() && !stopping)) {
    if (!stopping && options.interrupted && options.interrupted()) {
      stopping = true;
      for (const auto& child : active) child.stop();
    }
    while (!stopping && !waiting.empty() && active.size() < static_cast<size_t>(options.jobs)) {
      const auto& run = *waiting.front();
      active.emplace_back(options.command, run, folder / "runs" / run.name);
      waiting.pop_front();
    }
    for (auto child = active.begin(); child != active.end();) {
      if (!child->over()) {
        ++child;
        continue;
      }
      const auto summary = read_summary(folder / "runs" / child->run().name);
      finished += summary ? 1 : 0;
      if (options.ended && (summary || !stopping)) {
        options.ended(child->run(), summary, child->error());
      }
      child = active.erase(child);
    }
    if (options.progress) {
      std::vector<RunProgress> under_way;
      for (const auto& child : active) under_way.push_back(child.progress());
      options.progress(under_way, finished, runs.size());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  return finished == runs.size();
}

}  // namespace ddc::experiments
