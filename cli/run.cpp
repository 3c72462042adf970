// ddc run: trains a testbed.

#include "ddc/experiments/run.h"

#include <malloc.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "ddc/experiments/catalogue.h"
#include "interrupt.h"

namespace ddc::cli {
namespace {

using namespace experiments;  // NOLINT: the command is about nothing else

struct Settings {
  std::string testbed;
  std::string resume;
  pid_t parent = 0;
};

/// Large tensors are made and freed at every step. By default each is mapped anew, and its pages are
/// faulted in one by one: a sixth of the time of a training step.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_TOP_PAD, 64 << 20);
}

/// A run of a grid ends, and saves, with the process that started it.
void follow(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) std::raise(SIGTERM);
}

void run(const Settings& settings) {
  catch_interrupts();
  if (settings.parent > 0) follow(settings.parent);
  keep_freed_memory();
  resume(settings.resume, {.interrupted = interrupted});
}

}  // namespace

void add_run(CLI::App& app) {
  auto* command = app.add_subcommand("run", "train a testbed");
  const auto settings = std::make_shared<Settings>();
  command->add_option("TESTBED", settings->testbed, "name of a testbed (ddc list)");
  command->add_option("--resume", settings->resume, "go on with the run in this folder")
      ->type_name("FOLDER");
  command->add_option("--with-parent", settings->parent)->group("");
  command->callback([settings] { run(*settings); });
}

}  // namespace ddc::cli
