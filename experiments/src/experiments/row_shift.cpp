#include "../tables.h"
#include "experiments.h"

namespace ddc::experiments {
namespace {

struct Arm {
  const char* name;
  const char* slug;
  const char* optimizer;
  double z_loss;
  std::vector<uint64_t> seeds;
};

/// The paper shows its z-loss arms for one seed.
const std::vector<Arm>& arms() {
  static const std::vector<Arm> all = {
      {"AdamW", "adamw", "adamw", 0, three_seeds},
      {"AdamW, z-loss 1e-4", "zloss-1e-4", "adamw", 1e-4, {42}},
      {"AdamW, z-loss 1", "zloss-1", "adamw", 1, {42}},
      {"DDCAdam, shift frozen", "ddc-adam", "ddc-adam", 0, three_seeds},
  };
  return all;
}

std::vector<PlannedRun> plan(bool quick) {
  std::vector<PlannedRun> runs;
  for (const uint64_t seed : three_seeds) {
    for (const auto& arm : arms()) {
      if (std::find(arm.seeds.begin(), arm.seeds.end(), seed) == arm.seeds.end()) continue;
      RunConfig config;
      config.testbed = "modular_addition";
      config.testbed_settings = {{"degree", 1}, {"z_loss", arm.z_loss}};
      config.optimizer = arm.optimizer;
      config.optimizer_settings = {{"lr", 1e-3}, {"weight_decay", 1.0}};
      if (config.optimizer == "ddc-adam") {
        config.optimizer_settings["gauges"] = "CE row shift";
      }
      config.steps = 8000;
      config.seed = seed;
      if (quick) {
        config.testbed_settings.update({{"modulus", 31}, {"d_model", 32}, {"d_ff", 64}});
        config.steps = 600;
      }
      runs.push_back({.name = std::string(arm.slug) + "-seed" + std::to_string(seed),
                      .arm = arm.name,
                      .config = config});
    }
  }
  return runs;
}

}  // namespace

Experiment row_shift() {
  return {.name = "row_shift",
          .title = "The shift of all logits, and z-loss",
          .question =
              "Does the readout drift along the direction that cross-entropy does not see, "
              "and does a z-loss hold it?",
          .plan = plan,
          .evaluate = [](const std::vector<FinishedRun>&, Result&) {}};
}

}  // namespace ddc::experiments
