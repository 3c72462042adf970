#pragma once

#include <CLI/App.hpp>

// The subcommands of `ddc`, one file each. A subcommand declares its options, with their help, and
// what runs once they are parsed. It throws what is wrong: a CLI::ParseError for how it was called.

namespace ddc::cli {

void add_audit(CLI::App& app);
void add_run(CLI::App& app);
void add_experiment(CLI::App& app);

}  // namespace ddc::cli
