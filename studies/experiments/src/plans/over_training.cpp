#include <algorithm>
#include <string>

#include "../comparison.h"
#include "../rate_grid.h"
#include "plans.h"

namespace ddc::experiments {
namespace {

struct Arm {
  const char* name;
  const char* slug;
  const char* optimizer;
  Json settings;
};

/// The paper does not say at which rates it trains.
constexpr double adam_lr = 2e-3;
constexpr double muon_lr = 0.02;
constexpr double weight_decay = 0.1;

const std::vector<Arm>& arms() {
  static const std::vector<Arm> all = {
      {"AdamW", "adamw", "adamw", Json::object()},
      {"DDCAdam", "ddc-adam", "ddc-adam", Json::object()},
      {"DDCAdam, polar", "ddc-adam-polar", "ddc-adam", {{"coordinates", "polar"}}},
      {"Muon", "muon", "muon", Json::object()},
      {"Muon, exact", "muon-exact", "muon", {{"method", "exact"}}},
      {"DDCMuon", "ddc-muon", "ddc-muon", Json::object()},
  };
  return all;
}

PlannedRun planned(const Arm& arm, uint64_t seed, bool quick) {
  RunConfig config;
  config.testbed = "language_model";
  // About seven parameters for every byte to train on, as in the paper for every token.
  config.testbed_settings = {
      {"train_characters", 12000}, {"layers", 2}, {"batch_size", 8}, {"observed_windows", 16}};
  config.optimizer = arm.optimizer;
  config.optimizer_settings = arm.settings;
  const bool muon = std::string(arm.optimizer).ends_with("muon");
  config.optimizer_settings["lr"] = muon ? muon_lr : adam_lr;
  config.optimizer_settings["weight_decay"] = weight_decay;
  if (muon) {
    config.optimizer_settings["adam_lr"] = adam_lr;
    config.optimizer_settings["adam_weight_decay"] = weight_decay;
  }
  config.seed = seed;
  config.steps = 1000;
  config.evaluate_every = 20;
  if (quick) {
    config.testbed_settings = {
        {"train_characters", 4000}, {"d_model", 32},         {"d_ff", 80}, {"layers", 1},
        {"batch_size", 8},          {"observed_windows", 16}};
    config.steps = 300;
    config.evaluate_every = 10;
  }
  config.meters.push_back(parse_meter("arc"));
  config.meters.push_back(parse_meter("activations"));
  for (int64_t l = 0; l < config.testbed_settings["layers"].get<int64_t>(); ++l) {
    const auto norms = "fisher:samples=2,tensors=layers." + std::to_string(l);
    config.meters.push_back(parse_meter(norms + ".attention_norm.weight"));
    config.meters.push_back(parse_meter(norms + ".mlp_norm.weight"));
  }
  return {.name = std::string(arm.slug) + "-seed" + std::to_string(seed),
          .arm = arm.name,
          .config = config};
}

std::vector<PlannedRun> plan(bool quick) {
  std::vector<PlannedRun> runs;
  for (const uint64_t seed : quick ? std::vector<uint64_t>{42} : three_seeds) {
    for (const auto& arm : arms()) runs.push_back(planned(arm, seed, quick));
  }
  return runs;
}

/// The paper's DDCAdam works in polar coordinates.
constexpr const char* papers_adam = "DDCAdam, polar";
constexpr const char* about_coordinates =
    "In the paper's coordinates. The row without them tells how much is their doing, and how much "
    "the gauges'.";

/// Whether the smallest singular value rises under AdamW and falls under DDCAdam.
Claim collapse(const std::vector<FinishedRun>& runs) {
  const auto plain = values(of_arm(runs, "AdamW"), growth("sigma_min"));
  const auto gauged = values(of_arm(runs, papers_adam), growth("sigma_min"));
  Claim claim{.what = "sigma_min of the last activations, end over start, AdamW against DDCAdam",
              .paper = "rises against falls by up to 3.8 orders",
              .measured = spread_text(plain) + " against " + spread_text(gauged),
              .note = "On the training windows, before the final norm."};
  if (plain.empty() || gauged.empty()) return claim;
  claim.outcome =
      mean(plain) > 1 && mean(gauged) < 1 ? Outcome::reproduced : Outcome::not_reproduced;
  return claim;
}

void add_claims(const std::vector<FinishedRun>& runs, Result& result) {
  const Comparison on_adam[] = {
      {"validation less train loss, AdamW against DDCAdam", "AdamW", papers_adam, last("gap"), 5.88,
       0.67, about_coordinates},
      {"validation loss, AdamW against DDCAdam", "AdamW", papers_adam, last("validation_loss"),
       7.17, 5.25, about_coordinates},
      {"validation accuracy, AdamW against DDCAdam", "AdamW", papers_adam,
       last("validation_accuracy"), 0.202, 0.252, about_coordinates},
      {"train accuracy, AdamW against DDCAdam", "AdamW", papers_adam, last("train_accuracy"), 0.70,
       0.31, about_coordinates},
  };
  const Comparison on_muon[] = {
      {"validation loss, Muon against DDCMuon", "Muon", "DDCMuon", last("validation_loss"), 4.88,
       4.78, ""},
      {"validation accuracy, Muon against DDCMuon", "Muon", "DDCMuon", last("validation_accuracy"),
       0.254, 0.262, ""},
  };
  for (const auto& comparison : on_adam) result.claims.push_back(compared(runs, comparison));
  result.claims.push_back(collapse(runs));
  for (const auto& comparison : on_muon) result.claims.push_back(compared(runs, comparison));
  result.claims.push_back(
      tied(runs,
           {"validation loss, Muon against Muon with the exact polar factor: tied", "Muon",
            "Muon, exact", last("validation_loss"), 4.88, 4.89, ""},
           0.02));
}

std::string answer(const std::vector<FinishedRun>& runs) {
  std::string losses;
  for (const auto& [arm, group] : by_arm(runs)) {
    losses += (losses.empty() ? "" : ", ") + arm + " " +
              text(mean(values(group, last("validation_loss"))));
  }
  return "Validation loss at the end: " + losses +
         ". The network has a tenth of a million parameters and the slice twelve thousand bytes "
         "(paper: 75 million, ten million tokens), so that directions can be compared, not "
         "numbers.";
}

/// "3 of 11 (2 ascend)".
std::string text_of(const RateGrid::Cells& cells) {
  return std::to_string(cells.readable) + " of " + std::to_string(cells.all) + " (" +
         std::to_string(cells.ascending) + " ascend)";
}

const RateGrid::Cells* cells_of(const RateGrid& grid, const std::string& arm) {
  const auto found = std::find_if(grid.cells.begin(), grid.cells.end(),
                                  [&](const auto& cells) { return cells.arm == arm; });
  return found == grid.cells.end() ? nullptr : &*found;
}

/// Whether more rates can be read under DDCAdam than under AdamW.
Claim readability(const RateGrid& grid) {
  Claim claim{.what = "cells (layer and observable) whose rate can be read, AdamW against DDCAdam",
              .paper = "7 of 65 (55 ascend) against 32 of 65",
              .measured = "",
              .deviation = std::nullopt,
              .outcome = Outcome::not_run,
              .note =
                  "Smallest singular value at every node of the residual stream; smallest "
                  "eigenvalue and trace of the Fisher matrix of every norm, modulo gauges."};
  const auto* plain = cells_of(grid, "AdamW");
  const auto* gauged = cells_of(grid, papers_adam);
  if (plain == nullptr || gauged == nullptr) return claim;
  claim.measured = text_of(*plain) + " against " + text_of(*gauged);
  claim.outcome =
      gauged->readable > plain->readable ? Outcome::reproduced : Outcome::not_reproduced;
  return claim;
}

void tabulate(const std::vector<FinishedRun>& runs, Result& result) {
  result.table = table_by_arm(
      runs, {spread_of("train loss", last("train_loss")),
             spread_of("validation loss", last("validation_loss")), spread_of("gap", last("gap")),
             spread_of("least validation loss", least("validation_loss")),
             spread_of("train accuracy", last("train_accuracy")),
             spread_of("validation accuracy", last("validation_accuracy")),
             spread_of("sigma_min, end / start", growth("sigma_min")),
             spread_of("effective rank", last("effective_rank")), drift_column("largest drift")});
  result.curves = {
      curves_of(runs, "Validation loss", "validation_loss", false),
      curves_of(runs, "Train loss", "train_loss", false),
      curves_of(runs, "Smallest singular value of the last activations", "sigma_min", true),
      curves_of(runs, "Drift of the gauge coordinates", "drift", true)};
  const auto grid = rate_grid(runs, {"sigma_min", "smallest", "trace"});
  if (!grid.map.panels.empty()) {
    result.heat_maps = {grid.map};
    result.table.columns.emplace_back("readable cells");
    for (size_t i = 0; i < grid.cells.size(); ++i) {
      result.table.rows[i].push_back(text_of(grid.cells[i]));
    }
  }
  if (!result.quick) add_claims(runs, result);
  if (!result.quick) result.claims.push_back(readability(grid));
  if (!result.quick && !runs.empty()) result.answer = answer(runs);
}

}  // namespace

Experiment over_training() {
  return {.name = "over_training",
          .title = "Over-training a language model",
          .question =
              "A small language model memorises a slice of a text far below its capacity: "
              "do the gauges keep the validation loss from rising?",
          .plan = plan,
          .evaluate = tabulate};
}

}  // namespace ddc::experiments
