// Prints the measured figures of docs/results/exactness.md: equivariance of the transformer blocks under
// every base at both places, how well gradients of heads are conditioned, how far rotations turn the weights,
// and drift and final loss on the paper's small tasks. `figures equivariance` (conditions, rotations, drift)
// prints one of them.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <set>
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

/// Rotations and drift are of weights in place: at the canonical one they are zero by construction.
const ddc::Treatment kInPlace{.placement = ddc::Place::in_place};
/// Moved back in every step.
const ddc::Treatment kCanonical{
    .placement = ddc::Place::canonical, .project = ddc::Projection::step, .every = 1};

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
  std::vector<std::pair<std::string, OptimizerMaker>> optimizers = {
      {"AdamW", adamw(lr, 0.01)},
      {"Muon", muon({.lr = lr, .method = ddc::PolarMethod::newton_schulz},
                    {.lr = lr, .weight_decay = 0.01})}};
  for (const auto& [place, treatment] :
       {std::pair{"canonical", kCanonical}, std::pair{"in place", kInPlace}}) {
    const auto add = [&, where = std::string(place)](const std::string& name,
                                                     const OptimizerMaker& make) {
      optimizers.emplace_back(name + ", " + where, make);
    };
    auto cut = treatment;
    cut.heads = ddc::Heads::cut;
    add("DDCAdam", adam(lr, 0.01, treatment));
    add("DDCMuon, exact", ddc_muon({.lr = lr}, {.lr = lr}, treatment));
    add("DDCMuon, exact, all heads cut", ddc_muon({.lr = lr}, {.lr = lr}, cut));
    add("DDCMuon, fast",
        ddc_muon({.lr = lr, .method = ddc::PolarMethod::fast}, {.lr = lr}, treatment));
    add("DDCSgd", lifted<ddc::SgdRule>({.lr = lr, .momentum = 0.9}, treatment));
    add("DDCShampoo", lifted<ddc::ShampooRule>({.lr = lr}, treatment));
    add("DDCSoap", lifted<ddc::SoapRule>({.lr = lr}, treatment));
  }
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

/// What is left of the smallest singular value that is not zero, relative to the largest.
double condition(const at::Tensor& matrices) {
  const auto values = std::get<1>(at::linalg_svd(matrices, /*full_matrices=*/false));
  const auto relative = values / values.amax(-1, /*keepdim=*/true);
  return at::where(relative > 1e-11, relative, 1.0).min().item<double>();
}

void print_conditions() {
  std::printf(
      "\nSmallest singular value of the first gradient of values and outputs that is not zero (by\n"
      "1e-11), relative to the largest: of whole matrices, and of heads; smallest of both kinds\n\n"
      "| | whole | heads |\n| --- | --- | --- |\n");
  const auto gauges = GaugeSet::full;
  for (const auto& bed : {layer_norm_block({.relu_part = false, .gauges = gauges}),
                          rms_norm_block({.gauges = gauges}), gpt_j_block({.gauges = gauges}),
                          vit_block({.gauges = gauges})}) {
    const auto params = bed.init(1, at::kDouble);
    backward(bed, params, bed.batch(1, at::kDouble));
    double whole = 1;
    double heads = 1;
    for (const auto& gauge : bed.gauges(params)) {
      if (gauge.kind != "VO linear") continue;
      for (const auto& leg : gauge.legs) {
        const auto& gradient = params[leg.tensor].tensor.grad();
        if (gradient.dim() < 2) continue;
        whole = std::min(whole, condition(gradient));
        for (const auto& head : gradient.split(gauge.block, leg.axis)) {
          heads = std::min(heads, condition(head));
        }
      }
    }
    std::printf("| %s | %.0e | %.0e |\n", bed.name.c_str(), whole, heads);
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

int main(int count, char** arguments) {
  const std::set<std::string> wanted(arguments + 1, arguments + count);
  const auto is_wanted = [&](const char* table) {
    return wanted.empty() || wanted.count(table) > 0;
  };
  std::printf("%d threads\n\n", at::get_num_threads());
  if (is_wanted("equivariance")) print_equivariance();
  if (is_wanted("conditions")) print_conditions();
  if (is_wanted("rotations")) print_rotations();
  if (is_wanted("drift")) print_drift();
  return 0;
}
