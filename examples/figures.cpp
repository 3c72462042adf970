// Prints the measured figures that README.md quotes: equivariance of the transformer blocks, and drift
// and final loss on the paper's small tasks.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "ddc/testbeds/blocks.h"
#include "ddc/testbeds/diagonal_network.h"
#include "ddc/testbeds/runs.h"
#include "ddc/testbeds/teacher_student.h"

namespace {

using namespace ddc::testbeds;

OptimizerMaker lifted(double lr, double weight_decay) {
  return ddc_adam(ddc::DDCAdamOptions(lr).weight_decay(weight_decay));
}

struct Spread {
  double mean = 0;
  double deviation = 0;
};

Spread spread(const std::vector<double>& values) {
  Spread result;
  for (const double value : values) result.mean += value / static_cast<double>(values.size());
  for (const double value : values) {
    result.deviation +=
        (value - result.mean) * (value - result.mean) / static_cast<double>(values.size() - 1);
  }
  result.deviation = std::sqrt(result.deviation);
  return result;
}

void print_equivariance() {
  std::printf(
      "Two copies related by a random element of all gauges, 50 steps at lr 1e-3, each on\n"
      "gradients of its own: largest relative error of any tensor (largest of 5 seeds)\n\n");
  std::printf(
      "| network | gauges | AdamW, float64 | DDCAdam, float64 | DDCAdam, float32 |\n"
      "| --- | --- | --- | --- | --- |\n");
  for (const auto& testbed : {layer_norm_block(), rms_norm_block()}) {
    const auto gauges = testbed.gauges(testbed.init(1, at::kDouble));
    const auto worst = [&](const OptimizerMaker& make, at::ScalarType type) {
      double largest = 0;
      for (uint64_t seed = 1; seed <= 5; ++seed) {
        largest =
            std::max(largest, paired_error(testbed, gauges, make, {.seed = seed, .type = type}));
      }
      return largest;
    };
    std::printf("| %s | %zu | %.1e | %.1e | %.1e |\n", testbed.name.c_str(), gauges.size(),
                worst(adamw(1e-3, 0.01), at::kDouble), worst(lifted(1e-3, 0.01), at::kDouble),
                worst(lifted(1e-3, 0.01), at::kFloat));
  }
}

void print_drift() {
  struct Task {
    std::string name;
    Testbed testbed;
    double lr;
    double weight_decay;
  };
  const std::vector<Task> tasks = {
      {"ReLU teacher-student", relu_teacher_student(), 5e-3, 0.01},
      {"LayerNorm teacher-student", norm_teacher_student(), 1e-2, 0.01},
      {"diagonal linear network", diagonal_network(), 5e-3, 0}};
  std::printf(
      "\n4000 steps in float32, seeds 42, 142, 242: largest change of the gauge coordinate of any\n"
      "channel, and final loss (mean +- standard deviation over seeds)\n\n");
  std::printf(
      "| task | AdamW drift | DDCAdam drift | AdamW loss | DDCAdam loss |\n"
      "| --- | --- | --- | --- | --- |\n");
  for (const auto& task : tasks) {
    const auto run = [&](const OptimizerMaker& make, std::vector<double>& drifts) {
      std::vector<double> losses;
      for (const uint64_t seed : {42, 142, 242}) {
        const auto params = task.testbed.init(seed, at::kFloat);
        const auto result =
            drift(task.testbed, params, task.testbed.gauges(params), make, {.seed = seed});
        drifts.push_back(result.largest());
        losses.push_back(result.final_loss);
      }
      return spread(losses);
    };
    std::vector<double> plain_drift;
    std::vector<double> lifted_drift;
    const auto plain_loss = run(adamw(task.lr, task.weight_decay), plain_drift);
    const auto lifted_loss = run(lifted(task.lr, task.weight_decay), lifted_drift);
    std::printf("| %s | %.1e +- %.0e | %.1e +- %.0e | %.1e +- %.0e | %.1e +- %.0e |\n",
                task.name.c_str(), spread(plain_drift).mean, spread(plain_drift).deviation,
                spread(lifted_drift).mean, spread(lifted_drift).deviation, plain_loss.mean,
                plain_loss.deviation, lifted_loss.mean, lifted_loss.deviation);
  }
}

}  // namespace

int main() {
  std::printf("%d threads\n\n", at::get_num_threads());
  print_equivariance();
  print_drift();
  return 0;
}
