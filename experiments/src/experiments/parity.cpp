#include <algorithm>
#include <cmath>

#include "../tables.h"
#include "experiments.h"

// Paper, appendix "Keeping or shedding a load-bearing block".

namespace ddc::experiments {
namespace {

struct Arm {
  const char* name;
  const char* slug;
  const char* optimizer;
  Json optimizer_settings;
  Json testbed_settings;
};

const std::vector<Arm>& arms() {
  const Json linear = {{"coordinates", "polar"}, {"radial", "linear"}};
  const Json log = {{"coordinates", "polar"}, {"radial", "log"}};
  static const std::vector<Arm> all = {
      {"AdamW", "adamw", "adamw", Json::object(), Json::object()},
      {"Muon", "muon", "muon", Json::object(), Json::object()},
      {"DDCAdam, log", "ddc-adam-log", "ddc-adam", log, Json::object()},
      {"DDCAdam, linear", "ddc-adam-linear", "ddc-adam", linear, Json::object()},
      {"DDCMuon, log", "ddc-muon-log", "ddc-muon", log, Json::object()},
      {"DDCMuon, linear", "ddc-muon-linear", "ddc-muon", linear, Json::object()},
      {"AdamW, gain 1 + w", "adamw-offset", "adamw", Json::object(), {{"gain_is_offset", true}}},
      {"DDCAdam, folded", "ddc-adam", "ddc-adam", Json::object(), Json::object()},
  };
  return all;
}

std::string arm_name(const Arm& arm, double weight_decay) {
  return std::string(arm.name).append(", wd ").append(text(weight_decay));
}

std::vector<PlannedRun> plan(bool quick) {
  std::vector<PlannedRun> runs;
  const auto decays = quick ? std::vector<double>{2} : std::vector<double>{2, 1, 5};
  for (const double weight_decay : decays) {
    for (const auto& arm : arms()) {
      for (const uint64_t seed : three_seeds) {
        if (quick && seed != three_seeds.front()) continue;
        RunConfig config;
        config.testbed = "sparse_parity";
        config.testbed_settings = arm.testbed_settings;
        config.optimizer = arm.optimizer;
        config.optimizer_settings = arm.optimizer_settings;
        config.optimizer_settings["weight_decay"] = weight_decay;
        const bool muon = config.optimizer.find("muon") != std::string::npos;
        config.optimizer_settings["lr"] = muon ? 0.02 : 1e-3;
        if (muon) config.optimizer_settings["adam_weight_decay"] = weight_decay;
        config.steps = 10000;
        config.evaluate_every = 100;
        config.seed = seed;
        if (quick) {
          config.testbed_settings["d_hidden"] = 64;
          config.steps = 8000;
        }
        runs.push_back({.name = std::string(arm.slug) + "-wd" + text(weight_decay) + "-seed" +
                                std::to_string(seed),
                        .arm = arm_name(arm, weight_decay),
                        .config = config});
      }
    }
  }
  return runs;
}

}  // namespace

Experiment parity() {
  return {.name = "parity",
          .title = "Keeping or shedding a block that the task needs",
          .question =
              "Under weight decay, which coordinates keep a block alive that the task needs, "
              "and which hold the scale between its gain and its readout?",
          .plan = plan,
          .evaluate = [](const std::vector<FinishedRun>&, Result&) {}};
}

}  // namespace ddc::experiments
