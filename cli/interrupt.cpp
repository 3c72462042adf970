#include "interrupt.h"

#include <csignal>

namespace ddc::cli {
namespace {

volatile std::sig_atomic_t caught = 0;

void remember(int /*signal*/) { caught = 1; }

void remember_once(int /*signal*/) {
  caught = 1;
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

}  // namespace

void catch_interrupts(SecondInterrupt second) {
  auto* const handler = second == SecondInterrupt::ends ? remember_once : remember;
  std::signal(SIGINT, handler);
  std::signal(SIGTERM, handler);
}

bool was_interrupted() { return caught != 0; }

}  // namespace ddc::cli
