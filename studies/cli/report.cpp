// ddc report: pages about the results of experiments.

#include "ddc/experiments/report.h"

#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>

#include "commands.h"

namespace ddc::cli {
namespace {

struct Settings {
  std::string directory;
  bool markdown = false;
};

std::filesystem::path write_markdown(const std::filesystem::path& directory) {
  const auto path = directory / "README.md";
  const auto text = experiments::results_markdown(experiments::read_results(directory));
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  TORCH_CHECK(file, "cannot write '", path.string(), "'");
  return path;
}

void run(const Settings& settings) {
  if (settings.markdown) {
    std::cout << write_markdown(settings.directory).string() << '\n';
    return;
  }
  for (const auto& page : experiments::write_report(settings.directory)) {
    std::cout << page.string() << '\n';
  }
}

}  // namespace

void add_report(CLI::App& app) {
  auto* command = app.add_subcommand("report", "write pages about the results of experiments");
  const auto settings = std::make_shared<Settings>();
  command
      ->add_option("DIR", settings->directory,
                   "folder of an experiment, of several, or of their result.json files")
      ->required();
  command->add_flag("--markdown", settings->markdown, "write one README.md there instead of HTML");
  command->callback([settings] { run(*settings); });
}

}  // namespace ddc::cli
