// The files of a run.

#include "fuzz/targets.h"

#include <filesystem>
#include <fstream>

#include "ddc/experiments/run.h"
#include "fuzz/files.h"

namespace ddc::fuzz {
namespace {

namespace fs = std::filesystem;

/// The first byte says which file of a run the others are.
void run_run(std::string_view bytes) {
  if (bytes.empty()) return;
  constexpr const char* names[] = {"config.json", "metrics.jsonl", "summary.json"};
  const auto which = static_cast<unsigned char>(bytes.front()) % 3;
  const auto path = folder() / "run";
  fs::create_directories(path);
  for (const auto* name : names) fs::remove(path / name);
  std::ofstream(path / names[which], std::ios::binary) << bytes.substr(1);
  switch (which) {
    case 0:
      experiments::completed(experiments::read_config(path));
      break;
    case 1:
      experiments::read_metrics(path);
      break;
    default:
      experiments::read_summary(path);
  }
}

std::vector<std::string> seeds_of_run() {
  const auto path = folder() / "seed";
  fs::remove_all(path);
  experiments::execute({.testbed = "relu_teacher_student",
                        .testbed_settings = {{"d_hidden", 4}, {"samples", 8}},
                        .optimizer = "ddc-adam",
                        .steps = 4,
                        .evaluate_every = 2},
                       path);
  return {std::string(1, '\0') + contents(path / "config.json"),
          std::string(1, '\1') + contents(path / "metrics.jsonl"),
          std::string(1, '\2') + contents(path / "summary.json")};
}

std::vector<std::string> deep_files() {
  std::vector<std::string> files;
  for (const char which : {'\0', '\2'}) {
    files.push_back(which + std::string(100'000, '[') + std::string(100'000, ']'));
  }
  return files;
}

}  // namespace

const std::vector<Target>& targets() {
  static const std::vector<Target> all = {{"run", run_run, seeds_of_run, deep_files}};
  return all;
}

}  // namespace ddc::fuzz
