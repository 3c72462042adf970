#pragma once

namespace ddc::cli {

/// From here on the first SIGINT or SIGTERM does not end the program: `interrupted` says that it came.
/// The second one does.
void catch_interrupts();
bool interrupted();

/// What a program says that was interrupted (128 + SIGINT, as shells do).
inline constexpr int kInterrupted = 130;

/// Thrown to leave with kInterrupted once everything is saved and said.
struct Interrupted {};

}  // namespace ddc::cli
