#pragma once

namespace ddc::cli {

/// From here on SIGINT, SIGTERM and SIGHUP (a terminal that is closed) do not end the program:
/// `was_interrupted` says that one came.
enum class SecondInterrupt {
  ends,     ///< at once: for who cannot wait
  ignored,  ///< for the runs of a grid, which get the signal both from the terminal and from the grid
};
void catch_interrupts(SecondInterrupt second);
bool was_interrupted();

}  // namespace ddc::cli
