#include <array>
#include <cmath>
#include <map>

#include "../tables.h"
#include "experiments.h"

namespace ddc::experiments {
namespace {

/// When validation accuracy has reached this a network is said to have grokked.
constexpr double grokked = 0.9;

struct Arm {
  const char* name;
  const char* slug;
  const char* optimizer;
  Json settings;
};

const std::vector<Arm>& adam_arms() {
  static const std::vector<Arm> arms = {
      {"AdamW", "adamw", "adamw", Json::object()},
      {"DDCAdam", "ddc-adam", "ddc-adam", Json::object()},
      {"DDCAdam, polar", "ddc-adam-polar", "ddc-adam", {{"coordinates", "polar"}}},
  };
  return arms;
}

const std::vector<Arm>& muon_arms() {
  static const std::vector<Arm> arms = {{"Muon", "muon", "muon", Json::object()},
                                        {"DDCMuon", "ddc-muon", "ddc-muon", Json::object()}};
  return arms;
}

PlannedRun planned(const Arm& arm, double lr, double weight_decay, uint64_t seed, int64_t steps,
                   int64_t evaluate_every) {
  RunConfig config;
  config.testbed = "modular_addition";
  config.optimizer = arm.optimizer;
  config.optimizer_settings = arm.settings;
  config.optimizer_settings["lr"] = lr;
  config.optimizer_settings["weight_decay"] = weight_decay;
  if (std::string(arm.optimizer).find("muon") != std::string::npos) {
    // All matrices by Muon, embeddings too: with Adam for those it did not grok in 1500 steps.
    config.optimizer_settings["adam_embeddings"] = false;
    config.optimizer_settings["adam_weight_decay"] = weight_decay;
  }
  config.steps = steps;
  config.seed = seed;
  config.evaluate_every = evaluate_every;
  config.stop_metric = "test_accuracy";
  config.stop_at = grokked;
  return {.name = std::string(arm.slug) + "-lr" + text(lr) + "-wd" + text(weight_decay) + "-seed" +
                  std::to_string(seed),
          .arm = arm.name,
          .config = config};
}

/// (learning rate, weight decay), those that grok soonest first.
constexpr std::array<std::pair<double, double>, 9> adam_cells = {{{3e-3, 2},
                                                                  {1e-3, 2},
                                                                  {3e-3, 1},
                                                                  {3e-3, 0.5},
                                                                  {1e-3, 1},
                                                                  {1e-3, 0.5},
                                                                  {3e-4, 2},
                                                                  {3e-4, 1},
                                                                  {3e-4, 0.5}}};

std::vector<PlannedRun> plan(bool quick) {
  std::vector<PlannedRun> runs;
  if (quick) return runs;
  for (const double lr : {0.04, 0.02, 0.01}) {
    for (const uint64_t seed : three_seeds) {
      for (const auto& arm : muon_arms()) runs.push_back(planned(arm, lr, 0.4, seed, 5000, 25));
    }
  }
  for (const bool polar : {false, true}) {
    for (const auto& [lr, weight_decay] : adam_cells) {
      for (const uint64_t seed : three_seeds) {
        for (const auto& arm : adam_arms()) {
          if (arm.settings.contains("coordinates") != polar) continue;
          runs.push_back(planned(arm, lr, weight_decay, seed, 15000, 50));
        }
      }
    }
  }
  return runs;
}

}  // namespace

Experiment grokking() {
  return {
      .name = "grokking",
      .title = "Steps to grokking",
      .question = "How many steps until (a + b) mod 113 is understood, with and without gauges?",
      .plan = plan,
      .evaluate = [](const std::vector<FinishedRun>&, Result&) {}};
}

}  // namespace ddc::experiments
