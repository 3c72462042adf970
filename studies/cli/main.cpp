#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>
#include <string>

#include "commands.h"
#include "ddc/version.h"

int main(int argc, char** argv) {
  using namespace ddc::cli;  // NOLINT: this is what it is made of
  CLI::App app{"Symmetries of networks, and optimizers that respect them.", "ddc"};
  app.set_version_flag("--version", std::string(ddc::kVersion));
  app.require_subcommand(0, 1);
  add_list(app);
  add_audit(app);
  add_run(app);
  add_experiment(app);
  add_compare(app);
  add_measure(app);
  add_report(app);
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) {
      std::cerr << app.help();
      return usage;
    }
    // A full disk or a reader that is gone must not pass for success.
    std::cout.flush();
    if (std::cout) return 0;
    std::cerr << "ddc: cannot write to standard output\n";
  } catch (const Exit& exit) {
    return exit.code;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : usage;
  } catch (const c10::ValueError& error) {
    std::cerr << "ddc: " << error.what_without_backtrace() << '\n';
    return usage;
  } catch (const c10::Error& error) {
    std::cerr << "ddc: " << error.what_without_backtrace() << '\n';
  } catch (const std::exception& error) {
    std::cerr << "ddc: " << error.what() << '\n';
  }
  return failure;
}
