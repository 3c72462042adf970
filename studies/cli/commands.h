#pragma once

#include <CLI/App.hpp>

// The subcommands of `ddc`, one file each. A subcommand declares its options, with their help, and
// what runs once they are parsed. It throws what is wrong: a CLI::ParseError for how it was called.

namespace ddc::cli {

void add_audit(CLI::App& app);
void add_compare(CLI::App& app);
void add_experiment(CLI::App& app);
void add_list(CLI::App& app);
void add_measure(CLI::App& app);
void add_report(CLI::App& app);
void add_run(CLI::App& app);

/// What the program returns, besides 0.
enum ExitCode { failure = 1, usage = 2, interrupted = 128 + 2 /* SIGINT, as shells have it */ };

/// Thrown to leave once everything is said.
struct Exit {
  ExitCode code;
};

}  // namespace ddc::cli
