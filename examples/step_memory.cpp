// What an optimizer's step takes of memory: what it remembers, and the most it needs besides while it
// works, for float32 networks.

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ddc/testbeds/runs.h"
#include "ddc/testbeds/tally.h"
#include "ddc/testbeds/zoo.h"

namespace {

using namespace ddc::testbeds;

struct Sizes {
  int64_t d_model = 128;
  int64_t layers = 4;
};

/// Prints a row of the table. State and peak are counted in bytes of tensors.
void measure(const ZooEntry& entry, const std::string& what, const OptimizerMaker& make,
             bool with_gauges) {
  const auto& testbed = entry.testbed;
  const auto params = testbed.init(entry.seed, at::kFloat);
  int64_t model = 0;
  int64_t largest = 0;
  for (const auto& tensor : params.tensors()) {
    model += static_cast<int64_t>(tensor.nbytes());
    largest = std::max(largest, static_cast<int64_t>(tensor.nbytes()));
  }
  const auto optimizer =
      make(params, with_gauges ? testbed.gauges(params) : std::vector<ddc::Gauge>{});
  backward(testbed, params, testbed.batch(0, at::kFloat));
  const auto state = tally_of([&] { optimizer->step(); })->live();
  backward(testbed, params, testbed.batch(1, at::kFloat));
  const auto start = std::clock();
  const auto peak = tally_of([&] { optimizer->step(); })->most();
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  const auto in = [](int64_t bytes, int64_t unit) {
    return static_cast<double>(bytes) / static_cast<double>(unit);
  };
  std::printf("| %s | %s | %.2f | %.2f | %.2f | %.2f | %.0f |\n", entry.name.c_str(), what.c_str(),
              in(model, largest), in(state, model), in(peak, model), in(peak, largest),
              1e3 * seconds);
  std::fflush(stdout);
}

void run(const std::vector<std::string>& names, const Sizes& sizes) {
  std::printf(
      "float32, width %lld, %lld layers. The state is what a step leaves behind; the peak is the "
      "most that\nthe next one has at once beyond it.\n\n"
      "| network | optimizer | model / largest tensor | state / model | peak / model | peak / "
      "largest tensor | CPU ms |\n| --- | --- | --- | --- | --- | --- | --- |\n",
      static_cast<long long>(sizes.d_model), static_cast<long long>(sizes.layers));
  for (const auto& name : names) {
    const auto entry = zoo_entry(name, {.d_model = sizes.d_model,
                                        .heads = 4,
                                        .d_ff = 4 * sizes.d_model,
                                        .layers = sizes.layers,
                                        .sequence = 8,
                                        .vocabulary = 2 * sizes.d_model,
                                        .batch_size = 2,
                                        .norm_eps = 1e-5});
    const ddc::Treatment in_place{.placement = ddc::Place::in_place};
    const auto adam = ddc_adam({.lr = 1e-3}, in_place);
    const auto muon = ddc_muon({.lr = 1e-2}, {}, in_place);
    measure(entry, "AdamW", adamw(1e-3, 0.01), false);
    measure(entry, "DDCAdam, no gauges", adam, false);
    measure(entry, "DDCAdam, all gauges in place", adam, true);
    measure(entry, "DDCMuon, no gauges", muon, false);
    measure(entry, "DDCMuon, all gauges in place", muon, true);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"What an optimizer's step takes of memory."};
  std::vector<std::string> models = {"rms_swiglu_rope", "ln_relu"};
  Sizes sizes;
  app.add_option("--models", models, "networks of the zoo")->delimiter(',')->capture_default_str();
  app.add_option("--width", sizes.d_model, "of the residual stream")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--layers", sizes.layers, "number of layers")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    run(models, sizes);
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "step_memory: %s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "step_memory: %s\n", error.what());
    return 1;
  }
  return 0;
}
