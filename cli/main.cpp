#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>
#include <string>

#include "commands.h"
#include "ddc/version.h"

namespace {

constexpr int kFailure = 1;
constexpr int kUsage = 2;

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Symmetries of networks, and optimizers that respect them.", "ddc"};
  app.set_version_flag("--version", std::string(ddc::kVersion));
  app.require_subcommand(0, 1);
  ddc::cli::add_audit(app);
  ddc::cli::add_run(app);
  ddc::cli::add_experiment(app);
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) {
      std::cerr << app.help();
      return kUsage;
    }
    // A full disk or a reader that is gone must not pass for success.
    std::cout.flush();
    if (std::cout) return 0;
    std::cerr << "ddc: cannot write to standard output\n";
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  } catch (const c10::Error& error) {
    std::cerr << "ddc: " << error.what_without_backtrace() << '\n';
  } catch (const std::exception& error) {
    std::cerr << "ddc: " << error.what() << '\n';
  }
  return kFailure;
}
