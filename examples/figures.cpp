// Prints the measured figures that README.md quotes: equivariance of the transformer blocks under every
// base, how far rotations turn the weights, and drift and final loss on the paper's small tasks.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "ddc/gauge/attention.h"
#include "ddc/optim/sgd.h"
#include "ddc/optim/shampoo.h"
#include "ddc/optim/soap.h"
#include "ddc/testbeds/blocks.h"
#include "ddc/testbeds/diagonal_network.h"
#include "ddc/testbeds/runs.h"
#include "ddc/testbeds/teacher_student.h"

namespace {

using namespace ddc::testbeds;

/// The figures are of weights in place.
const ddc::Treatment kInPlace{.placement = ddc::Place::in_place};

OptimizerMaker adam(double lr, double weight_decay, const ddc::Treatments& treatments = kInPlace) {
  return ddc_adam({.lr = lr, .weight_decay = weight_decay}, treatments);
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

double worst(const Testbed& testbed, const std::vector<ddc::Gauge>& gauges,
             const OptimizerMaker& make, at::ScalarType type) {
  double largest = 0;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    largest = std::max(
        largest, paired_error(testbed, gauges, make, {.seed = seed, .steps = 40, .type = type}));
  }
  return largest;
}

void print_equivariance() {
  std::printf(
      "Two copies related by a random element of all gauges, 40 steps at lr 1e-2, each on\n"
      "gradients of its own: largest relative error of any tensor (largest of 3 seeds), float64 /\n"
      "float32\n\n");
  const std::vector<Testbed> beds = {
      layer_norm_block({.relu_part = false, .gauges = GaugeSet::with_residual_rotation}),
      rms_norm_block({.gauges = GaugeSet::with_residual_rotation}),
      gpt_j_block({.gauges = GaugeSet::with_residual_rotation}),
      vit_block({.gauges = GaugeSet::with_residual_rotation})};
  const double lr = 1e-2;
  const std::vector<std::pair<std::string, OptimizerMaker>> optimizers = {
      {"AdamW", adamw(lr, 0.01)},
      {"Muon", muon({.lr = lr, .method = ddc::PolarMethod::newton_schulz},
                    {.lr = lr, .weight_decay = 0.01})},
      {"DDCAdam", adam(lr, 0.01)},
      {"DDCMuon, exact", ddc_muon({.lr = lr}, {.lr = lr}, kInPlace)},
      {"DDCMuon, fast",
       ddc_muon({.lr = lr, .method = ddc::PolarMethod::fast}, {.lr = lr}, kInPlace)},
      {"DDCSgd", lifted<ddc::SgdRule>({.lr = lr, .momentum = 0.9}, kInPlace)},
      {"DDCShampoo", lifted<ddc::ShampooRule>({.lr = lr}, kInPlace)},
      {"DDCSoap", lifted<ddc::SoapRule>({.lr = lr}, kInPlace)}};
  std::printf("| |");
  for (const auto& bed : beds) {
    const auto params = bed.init(1, at::kDouble);
    const auto gauges = bed.gauges(params);
    int64_t dimension = 0;
    for (const auto& gauge : gauges) dimension += ddc::dimension(gauge, params);
    std::printf(" %s, %zu gauges of dimension %lld |", bed.name.c_str(), gauges.size(),
                static_cast<long long>(dimension));
  }
  std::printf("\n| --- | --- | --- | --- | --- |\n");
  for (const auto& [name, make] : optimizers) {
    std::printf("| %s |", name.c_str());
    for (const auto& bed : beds) {
      const auto gauges = bed.gauges(bed.init(1, at::kDouble));
      std::printf(" %.0e / %.0e |", worst(bed, gauges, make, at::kDouble),
                  worst(bed, gauges, make, at::kFloat));
      std::fflush(stdout);
    }
    std::printf("\n");
  }
}

/// Heads that nothing but rotations acts on, so that weights are coordinates.
void print_rotations() {
  const auto bed = layer_norm_block({.d_model = 8, .heads = 2, .relu_part = false});
  const auto params = bed.init(1, at::kDouble);
  const std::string attention = "layers.0.attention.";
  std::vector<ddc::Gauge> gauges = {
      ddc::qk_rotation({.query = params[attention + "query.weight"],
                        .query_bias = params[attention + "query.bias"],
                        .key = params[attention + "key.weight"],
                        .key_bias = params[attention + "key.bias"],
                        .heads = 2}),
      ddc::vo_rotation({.value = params[attention + "value.weight"],
                        .value_bias = params[attention + "value.bias"],
                        .output = params[attention + "output.weight"],
                        .heads = 2})};
  std::printf(
      "\nRotation of a head that aligns consecutive iterates best (largest of any head): "
      "accumulated\n"
      "over 2000 steps in float64 at lr 1e-2, and the largest of a single step\n\n"
      "| | accumulated angle | in a step |\n| --- | --- | --- |\n");
  const auto print = [&](const char* name, const OptimizerMaker& make) {
    const auto result = rotation_drift(bed, bed.init(1, at::kDouble), gauges, make,
                                       {.steps = 2000, .type = at::kDouble});
    std::printf("| %s | %.1e | %.1e |\n", name, result.most_accumulated(), result.most_in_a_step());
  };
  print("AdamW", adamw(1e-2, 0.01));
  print("DDCAdam", adam(1e-2, 0.01));
  print("DDCAdam, Procrustes lift", adam(1e-2, 0.01, ddc::Treatment{.procrustes = true}));
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
    const auto lifted_loss = run(adam(task.lr, task.weight_decay), lifted_drift);
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
  print_rotations();
  print_drift();
  return 0;
}
