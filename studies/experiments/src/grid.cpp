#include "ddc/experiments/grid.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <deque>
#include <list>
#include <system_error>
#include <thread>
#include <utility>

#include "files.h"
#include "folder_lock.h"

extern char** environ;

namespace ddc::experiments {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const auto end = text.rfind('\n');
  return end == std::string::npos ? text : text.substr(end + 1);
}

/// The step of the last evaluation in the folder; 0 if there is none.
int64_t step_in(const fs::path& folder) {
  const auto metrics = read_metrics(folder);
  return metrics.empty() ? 0 : metrics.back().step;
}

/// A run in a process of its own: a crash takes nobody along, and threads and random numbers are its own.
class Child {
 public:
  Child(const std::vector<std::string>& command, const PlannedRun& run, fs::path folder)
      : run_(run), folder_(std::move(folder)), done_before_(step_in(folder_)) {
    auto arguments = command;
    arguments.push_back(folder_.string());
    std::vector<char*> pointers;
    pointers.reserve(arguments.size() + 1);
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

  bool is_over() { return waitpid(process_, &status_, WNOHANG) == process_; }
  void stop() const { kill(process_, SIGTERM); }

  RunProgress progress() const {
    RunProgress result{.name = run_.name,
                       .step = done_before_,
                       .steps = run_.config.steps,
                       .done_before = done_before_,
                       .seconds = seconds_since(start_)};
    const auto metrics = read_metrics(folder_);
    if (metrics.empty()) return result;
    const auto& [step, values] = metrics.back();
    // Until it has caught up with what it did before it was killed.
    result.step = std::max(step, done_before_);
    if (const auto loss = values.find("loss"); loss != values.end()) result.loss = loss->second;
    if (const auto drift = values.find("drift"); drift != values.end()) {
      result.drift = drift->second;
    }
    return result;
  }

  /// Result of a run that is over.
  EndedRun result() const {
    EndedRun ended{.progress = progress(), .summary = read_summary(folder_), .error = ""};
    if (ended.summary) {
      ended.progress.step = ended.summary->steps;
    } else {
      ended.error = error();
    }
    std::error_code ignored;
    if (fs::is_empty(log(), ignored)) fs::remove(log(), ignored);
    return ended;
  }

 private:
  fs::path log() const { return folder_ / "log.txt"; }

  std::string error() const {
    if (WIFSIGNALED(status_)) return std::string("killed: ").append(strsignal(WTERMSIG(status_)));
    const auto said = last_line(read_text(log()));
    return said.empty() ? "ended without a word, with code " + std::to_string(WEXITSTATUS(status_))
                        : said;
  }

  const PlannedRun& run_;
  fs::path folder_;
  int64_t done_before_;
  Clock::time_point start_ = Clock::now();
  pid_t process_ = -1;
  int status_ = 0;
};

class Grid {
 public:
  Grid(const std::vector<PlannedRun>& runs, const fs::path& folder, const GridOptions& options)
      : runs_(runs), folder_(folder), options_(options) {
    outcome_.all = runs.size();
    check_plan();
    // All of them before the first starts: what cannot run is to be known at once.
    for (const auto& run : runs) {
      prepare(run.config, folder_of(run));
      steps_ += run.config.steps;
      if (read_summary(folder_of(run))) {
        ++outcome_.finished;
      } else {
        waiting_.push_back(&run);
        steps_waiting_ += run.config.steps - step_in(folder_of(run));
      }
    }
  }

  GridOutcome go() {
    if (options_.started) options_.started(outcome_.finished, outcome_.all);
    while (!active_.empty() || (!waiting_.empty() && !outcome_.interrupted)) {
      stop_if_interrupted();
      if (!outcome_.interrupted) start();
      // Before those that have ended are asked why: an interruption of a whole process group reaches
      // them as soon as this process.
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      stop_if_interrupted();
      collect();
      show();
    }
    return outcome_;
  }

 private:
  fs::path folder_of(const PlannedRun& run) const { return folder_ / "runs" / run.name; }

  void check_plan() const {
    std::vector<std::string> changed;
    std::string first;
    for (const auto& run : runs_) {
      auto difference = conflict(run.config, folder_of(run));
      if (difference.empty()) continue;
      if (changed.empty()) first = std::move(difference);
      changed.push_back(run.name);
    }
    if (changed.empty()) return;
    TORCH_CHECK_VALUE(false, "'", folder_.string(), "' was made by another plan: ", changed.size(),
                      " of its runs differ, such as runs/", changed.front(), " (", first,
                      "); delete the folder to start over, or choose another with --out");
  }

  void stop_if_interrupted() {
    if (outcome_.interrupted || !options_.interrupted || !options_.interrupted()) return;
    outcome_.interrupted = true;
    for (const auto& child : active_) child.stop();
  }

  void start() {
    while (!waiting_.empty() && active_.size() < static_cast<size_t>(options_.jobs)) {
      const auto& run = *waiting_.front();
      waiting_.pop_front();
      steps_waiting_ -= run.config.steps - step_in(folder_of(run));
      active_.emplace_back(options_.command, run, folder_of(run));
    }
  }

  void collect() {
    for (auto child = active_.begin(); child != active_.end();) {
      if (!child->is_over()) {
        ++child;
        continue;
      }
      const auto ended = child->result();
      child = active_.erase(child);
      steps_done_ += ended.progress.step - ended.progress.done_before;
      if (ended.summary) {
        ++outcome_.finished;
      } else if (outcome_.interrupted) {
        continue;
      } else {
        outcome_.failed.push_back(ended);
      }
      if (options_.ended) options_.ended(ended);
    }
  }

  void show() {
    if (!options_.progress || Clock::now() < next_show_) return;
    next_show_ = Clock::now() + std::chrono::milliseconds(200);
    GridProgress progress{.finished = outcome_.finished,
                          .failed = outcome_.failed.size(),
                          .all = outcome_.all,
                          .steps = steps_,
                          .steps_done = steps_done_,
                          .steps_left = steps_waiting_,
                          .seconds = seconds_since(start_)};
    for (const auto& child : active_) {
      const auto run = child.progress();
      progress.steps_done += run.step - run.done_before;
      progress.steps_left += run.steps - run.step;
      progress.active.push_back(run);
    }
    options_.progress(progress);
  }

  const std::vector<PlannedRun>& runs_;
  const fs::path& folder_;
  const GridOptions& options_;
  GridOutcome outcome_;
  std::deque<const PlannedRun*> waiting_;
  std::list<Child> active_;
  int64_t steps_ = 0;
  int64_t steps_done_ = 0;
  int64_t steps_waiting_ = 0;
  Clock::time_point start_ = Clock::now();
  Clock::time_point next_show_ = start_;
};

}  // namespace

GridOutcome run_grid(const std::vector<PlannedRun>& runs, const fs::path& folder,
                     const GridOptions& options) {
  TORCH_CHECK_VALUE(options.jobs > 0, "option jobs must be > 0, got ", options.jobs);
  const FolderLock lock(folder);
  return Grid(runs, folder, options).go();
}

}  // namespace ddc::experiments
