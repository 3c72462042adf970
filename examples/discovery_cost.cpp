// What discovery costs as a model gets deeper: time, evaluations and memory, for float32 networks of width
// 192, of which 24 layers are about ten million parameters.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "ddc/discover/discover.h"
#include "ddc/testbeds/tally.h"
#include "ddc/testbeds/zoo.h"

namespace {

using namespace ddc::testbeds;

ZooEntry network(const std::string& name, int64_t layers) {
  return zoo_entry(name, {.d_model = 192,
                          .heads = 6,
                          .d_ff = 512,
                          .layers = layers,
                          .sequence = 16,
                          .vocabulary = 512,
                          .batch_size = 2,
                          .norm_eps = 1e-5});
}

/// A field of /proc/self/status that counts memory, in bytes.
double memory(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(field + ":", 0) == 0) return 1024 * std::stod(line.substr(field.size() + 1));
  }
  throw std::runtime_error("/proc/self/status has no field " + field);
}

/// Makes the peak of resident memory (VmHWM) start again from what is resident now.
void forget_peak() {
  std::ofstream refs("/proc/self/clear_refs");
  if (!(refs << "5" << std::flush))
    throw std::runtime_error("cannot write to /proc/self/clear_refs");
}

/// What any training needs at least: gradients and one step. The gradients stay.
void train_once(const Testbed& testbed, const ddc::Parameters& params) {
  testbed.loss(params, testbed.batch(0, at::kFloat)).backward();
  const at::NoGradGuard no_grad;
  for (const auto& tensor : params.tensors()) at::Tensor(tensor).sub_(tensor.grad(), 1e-3);
}

int64_t dimension(const std::vector<ddc::Gauge>& gauges, const ddc::Parameters& params) {
  int64_t sum = 0;
  for (const auto& gauge : gauges) sum += ddc::dimension(gauge, params);
  return sum;
}

/// Prints a row of the table; the time in seconds.
double measure(const std::string& name, int64_t layers) {
  const auto entry = network(name, layers);
  const auto& testbed = entry.testbed;
  const auto params = testbed.init(entry.seed, at::kFloat);
  int64_t entries = 0;
  for (const auto& tensor : params.tensors()) entries += tensor.numel();
  const double bytes = 4.0 * static_cast<double>(entries);

  int64_t evaluations = 0;
  const auto evaluate = [&, one = ddc::testbeds::evaluation_of(testbed, params)](uint64_t number) {
    ++evaluations;
    return one(number);
  };
  train_once(testbed, params);
  // What was freed and not given back would hide what discovery takes.
  malloc_trim(0);
  const double before = memory("VmRSS");
  forget_peak();
  const auto cpu = std::clock();
  const auto start = std::chrono::steady_clock::now();
  ddc::SymmetryGroup group;
  const auto tally = tally_of([&] { group = ddc::discover(params, evaluate); });
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
  const double cpu_seconds = static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC;
  const double above = memory("VmHWM") - before;

  const auto expected = testbed.gauges(params);
  std::printf("| %lld | %.2fM | %.1f | %.1f | %lld | %zu / %zu | %lld / %lld | %.2f | %.2f |\n",
              static_cast<long long>(layers), static_cast<double>(entries) / 1e6, wall.count(),
              cpu_seconds, static_cast<long long>(evaluations), group.findings.size(),
              expected.size(), static_cast<long long>(group.dimension()),
              static_cast<long long>(dimension(expected, params)),
              static_cast<double>(tally->most()) / bytes, above / bytes);
  std::fflush(stdout);
  return wall.count();
}

/// Slope of the line through (log x, log y) that has the least squares of errors.
double log_slope(const std::vector<int64_t>& x, const std::vector<double>& y) {
  const auto n = static_cast<double>(x.size());
  double sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (size_t k = 0; k < x.size(); ++k) {
    const double u = std::log(static_cast<double>(x[k]));
    const double v = std::log(y[k]);
    sx += u;
    sy += v;
    sxx += u * u;
    sxy += u * v;
  }
  return (n * sxy - sx * sy) / (n * sxx - sx * sx);
}

void run(const std::string& name, const std::vector<int64_t>& layers) {
  std::printf(
      "%s, float32, width 192, threads: %d. Memory: the most during discovery above what there "
      "was\n"
      "after one training step, of tensors and of the process, as a multiple of the model's "
      "own.\n\n",
      name.c_str(), at::get_num_threads());
  std::printf(
      "| layers | parameters | wall s | CPU s | evaluations | gauges found / expected | dimension "
      "| "
      "tensors | resident |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  std::vector<double> seconds;
  for (const int64_t count : layers) seconds.push_back(measure(name, count));
  if (layers.size() < 2) return;
  std::printf("\ntime grows as layers^%.2f\n", log_slope(layers, seconds));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"What discovery costs as a model gets deeper."};
  std::string model = "rms_swiglu_rope";
  std::vector<int64_t> layers = {2, 4, 8, 16, 24};
  app.add_option("--model", model, "a network of the zoo")->capture_default_str();
  app.add_option("--layers", layers, "numbers of layers")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    run(model, layers);
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "discovery_cost: %s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "discovery_cost: %s\n", error.what());
    return 1;
  }
  return 0;
}
