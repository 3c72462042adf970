#include "interrupt.h"

#include <csignal>

namespace ddc::cli {
namespace {

volatile std::sig_atomic_t caught = 0;

void remember(int /*signal*/) { caught = 1; }

void remember_once(int /*signal*/) {
  caught = 1;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_DFL);
}

}  // namespace

void catch_interrupts(SecondInterrupt second) {
  auto* const handler = second == SecondInterrupt::ends ? remember_once : remember;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    // What is ignored already stays so: `nohup` asks for that.
    if (std::signal(signal, handler) == SIG_IGN) std::signal(signal, SIG_IGN);
  }
}

bool was_interrupted() { return caught != 0; }

}  // namespace ddc::cli
