// Trains one small transformer from two initialisations that compute the same function, once with
// AdamW and once with DDCAdam.
//
// The second initialisation is the first one moved by a random element of every gauge the network
// has. Whatever the data, the two are the same function, so an optimizer that trains functions
// trains them alike; one that trains the numbers they happen to be written in does not.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ddc/gauge/action.h"
#include "ddc/optim/adam.h"
#include "ddc/testbeds/modular_addition.h"
#include "ddc/testbeds/runs.h"

namespace {

using ddc::testbeds::Drift;

struct Settings {
  int64_t steps = 400;
  uint64_t seed = 1;
  double lr = 1e-3;
  double weight_decay = 0.01;
  double distance = 0.5;
  std::string output = "out/same_function_twice.json";
};

/// A bar on standard error that redraws in place; silent when nobody is watching.
class Progress {
 public:
  Progress(std::string label, int64_t total) : label_(std::move(label)), total_(total) {}
  ~Progress() {
    if (watched_) std::fprintf(stderr, "\r\033[K");
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(int64_t done, double loss) const {
    if (!watched_) return;
    constexpr int kWidth = 40;
    const int filled = static_cast<int>(kWidth * done / total_);
    std::fprintf(stderr, "\r%-9s [%s%s] %3d%%  loss %.4f", label_.c_str(),
                 std::string(filled, '#').c_str(), std::string(kWidth - filled, '.').c_str(),
                 static_cast<int>(100 * done / total_), loss);
  }

 private:
  std::string label_;
  int64_t total_;
  bool watched_ = isatty(fileno(stderr)) != 0;
};

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app{"Trains one transformer from two initialisations that compute the same function."};
  app.add_option("--steps", settings.steps, "steps of training")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--seed", settings.seed, "seed of weights and batches")->capture_default_str();
  app.add_option("--lr", settings.lr, "learning rate")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--weight-decay", settings.weight_decay, "decoupled weight decay")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--distance", settings.distance, "size of the group element between the two")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--output", settings.output, "where to write the loss curves")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  const auto testbed = ddc::testbeds::modular_addition({.modulus = 59,
                                                        .batch_size = 256,
                                                        .d_model = 32,
                                                        .heads = 4,
                                                        .d_ff = 64,
                                                        .attention_biases = true,
                                                        .final_norm = true,
                                                        .gain_spread = 0.1,
                                                        .bias_spread = 0.1});
  const auto first = testbed.init(settings.seed, at::kDouble);
  const auto gauges = testbed.gauges(first);
  const auto second = first.clone();
  ddc::act_(gauges,
            ddc::random_element(gauges, first, settings.distance,
                                ddc::testbeds::generator(settings.seed + 1000)),
            second);

  std::printf(
      "A transformer on (a + b) mod 59 in float64, %lld steps at learning rate %g, %d threads.\n",
      static_cast<long long>(settings.steps), settings.lr, at::get_num_threads());
  const auto probe = testbed.batch(settings.seed, at::kDouble);
  std::printf("Loss of the two initialisations: %.15f and %.15f\n\n",
              testbed.loss(first, probe).item<double>(),
              testbed.loss(second, probe).item<double>());

  nlohmann::json result;
  std::vector<Drift> adamw;
  std::vector<Drift> ddcadam;
  // Gauge coordinates of the weights as they are, to compare with AdamW's.
  const ddc::Treatment in_place{.placement = ddc::Place::in_place};
  const auto train = [&](const char* label, const ddc::Parameters& start,
                         const ddc::testbeds::OptimizerMaker& make) {
    const Progress progress(label, settings.steps);
    return ddc::testbeds::drift(
        testbed, start.clone(), gauges, make,
        {.seed = settings.seed, .steps = settings.steps, .type = at::kDouble},
        [&](int64_t done, double loss) { progress.show(done, loss); });
  };
  for (const auto* start : {&first, &second}) {
    adamw.push_back(
        train("AdamW", *start, ddc::testbeds::adamw(settings.lr, settings.weight_decay)));
    ddcadam.push_back(
        train("DDCAdam", *start,
              ddc::testbeds::ddc_adam({.lr = settings.lr, .weight_decay = settings.weight_decay},
                                      in_place)));
    result["adamw"].push_back(adamw.back().losses);
    result["ddcadam"].push_back(ddcadam.back().losses);
  }
  std::cout << ddc::DDCAdam(first, gauges, {}, in_place).report() << '\n';

  std::printf("%-10s %20s %20s %14s\n", "", "loss, first start", "loss, second start",
              "difference");
  const auto row = [](const char* name, const std::vector<Drift>& runs) {
    const double a = runs[0].losses.back();
    const double b = runs[1].losses.back();
    std::printf("%-10s %20.12f %20.12f %14.1e\n", name, a, b, std::abs(a - b));
  };
  row("AdamW", adamw);
  row("DDCAdam", ddcadam);

  size_t width = 5;
  for (const auto& gauge : gauges) width = std::max(width, gauge.name.size());
  std::printf(
      "\nLargest change of the gauge coordinate of any channel (second start):\n%-*s %10s %10s\n",
      static_cast<int>(width), "gauge", "AdamW", "DDCAdam");
  for (size_t k = 0; k < gauges.size(); ++k) {
    const double plain = adamw[1].of_gauge[k].abs().max().item<double>();
    const double lifted = ddcadam[1].of_gauge[k].abs().max().item<double>();
    std::printf("%-*s %10.1e %10.1e\n", static_cast<int>(width), gauges[k].name.c_str(), plain,
                lifted);
    result["drift"][gauges[k].name] = {{"adamw", plain}, {"ddcadam", lifted}};
  }

  const std::filesystem::path path(settings.output);
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path);
  file << result.dump(1) << '\n';
  file.close();
  if (!file) {
    std::fprintf(stderr, "could not write '%s'\n", path.c_str());
    return 1;
  }
  std::printf("\nWrote the loss curves to %s\n", path.c_str());
  return 0;
}
