#include <algorithm>
#include <cmath>

#include "../tables.h"
#include "experiments.h"

namespace ddc::experiments {
namespace {

struct Arm {
  const char* name;
  const char* slug;
  const char* optimizer;
  double z_loss;
  double weight_decay;
  std::vector<uint64_t> seeds;
  bool torch_init = false;
};

/// The paper shows its z-loss arms for one seed. Without decay it is a study of its own (Figure "Descent
/// versus gauge on the readout").
const std::vector<Arm>& arms() {
  static const std::vector<Arm> all = {
      {"AdamW", "adamw", "adamw", 0, 1, three_seeds},
      {"AdamW, z-loss 1e-4", "zloss-1e-4", "adamw", 1e-4, 1, {42}},
      {"AdamW, z-loss 1", "zloss-1", "adamw", 1, 1, {42}},
      {"DDCAdam, shift frozen", "ddc-adam", "ddc-adam", 0, 1, three_seeds},
      {"AdamW, no decay", "adamw-wd0", "adamw", 0, 0, {42}},
      {"DDCAdam, no decay", "ddc-adam-wd0", "ddc-adam", 0, 0, {42}},
      {"AdamW, torch init", "adamw-torch", "adamw", 0, 1, three_seeds, true},
      {"AdamW, torch init, z-loss 1e-4", "zloss-1e-4-torch", "adamw", 1e-4, 1, {42}, true},
      {"AdamW, torch init, no decay", "adamw-wd0-torch", "adamw", 0, 0, {42}, true},
  };
  return all;
}

std::vector<PlannedRun> plan(bool quick) {
  std::vector<PlannedRun> runs;
  for (const uint64_t seed : three_seeds) {
    for (const auto& arm : arms()) {
      if (std::find(arm.seeds.begin(), arm.seeds.end(), seed) == arm.seeds.end()) continue;
      if (quick && arm.torch_init) continue;
      RunConfig config;
      config.testbed = "modular_addition";
      config.testbed_settings = {
          {"degree", 1}, {"z_loss", arm.z_loss}, {"torch_init", arm.torch_init}};
      config.optimizer = arm.optimizer;
      config.optimizer_settings = {{"lr", 1e-3}, {"weight_decay", arm.weight_decay}};
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

/// The largest it was on the way, relative to the start.
double peak_growth(const FinishedRun& run) {
  double peak = 0;
  for (const auto& measurement : run.metrics) {
    peak = std::max(peak, measurement.values.at("shift_norm"));
  }
  return peak / run.first("shift_norm");
}

std::string seeds(const std::vector<const FinishedRun*>& runs) {
  return runs.size() == 1 ? " (1 seed)" : " (" + std::to_string(runs.size()) + " seeds)";
}

/// " From our own initialisation, in which the mode starts sqrt(3) times as large, 1.82 ± 0.2 (3 seeds)."
std::string from_ours(const std::vector<const FinishedRun*>& runs, const Read& read) {
  if (runs.empty()) return "";
  return " From our own initialisation, in which the mode starts sqrt(3) times as large, " +
         spread_text(values(runs, read)) + seeds(runs) + ".";
}

/// The numbers that depend on how large the mode is at the start are read from torch's initialisation.
void add_claims(const std::vector<FinishedRun>& runs, Result& result) {
  const auto adamw = of_arm(runs, "AdamW, torch init");
  const auto weak = of_arm(runs, "AdamW, torch init, z-loss 1e-4");
  const auto free = of_arm(runs, "AdamW, torch init, no decay");
  const auto own_adamw = of_arm(runs, "AdamW");
  const auto own_weak = of_arm(runs, "AdamW, z-loss 1e-4");
  const auto own_free = of_arm(runs, "AdamW, no decay");
  const auto frozen = of_arm(runs, "DDCAdam, shift frozen");
  const auto strong = of_arm(runs, "AdamW, z-loss 1");
  if (!adamw.empty()) {
    const auto fraction = last("shift_fraction");
    const auto fractions = values(adamw, fraction);
    std::string note = "A study of its own in the paper, whose set-up is not stated." +
                       from_ours(own_adamw, fraction);
    if (!weak.empty()) {
      note += " With z-loss 1e-4: " + spread_text(values(weak, fraction)) + seeds(weak) + ".";
    }
    result.claims.push_back({.what = "share of the unembedding along the orbit, AdamW",
                             .paper = "0.145 to 0.16",
                             .measured = spread_text(fractions) + seeds(adamw),
                             .deviation = relative_deviation(mean(fractions), 0.1525),
                             .outcome = mean(fractions) > 0.1 && mean(fractions) < 0.25
                                            ? Outcome::reproduced
                                            : Outcome::not_reproduced,
                             .note = note});
    result.claims.push_back(
        {.what = "growth of the mode under AdamW, largest on the way",
         .paper = "3",
         .measured = spread_text(values(adamw, peak_growth)) + seeds(adamw),
         .deviation = relative_deviation(mean(values(adamw, peak_growth)), 3),
         .outcome = std::abs(mean(values(adamw, peak_growth)) - 3) < 1 ? Outcome::reproduced
                                                                       : Outcome::not_reproduced,
         .note = "It falls again when the network has grokked and decay pulls on all weights." +
                 from_ours(own_adamw, peak_growth)});
  }
  if (!frozen.empty()) {
    const double largest = largest_drift(frozen);
    result.claims.push_back(
        {.what = "DDCAdam holds the mode: largest change of any entry of the mean row",
         .paper = "at the floor (fraction 2.9e-15)",
         .measured = text(largest) + seeds(frozen),
         .deviation = std::nullopt,
         .outcome = largest < 1e-6 ? Outcome::reproduced : Outcome::not_reproduced,
         .note =
             "We hold the mode where it started (its entries are of size 0.1); the paper's starts "
             "at zero. What is left is the rounding of float32."});
  }
  if (!weak.empty() && !adamw.empty()) {
    const double with_loss = mean(values(weak, peak_growth));
    const double without = mean(values(adamw, peak_growth));
    result.claims.push_back(
        {.what = "growth of the mode with z-loss 1e-4, against AdamW without, largest on the way",
         .paper = "7 against 3",
         .measured = text(with_loss) + " against " + text(without),
         .deviation = relative_deviation(with_loss / without, 7.0 / 3),
         .outcome = with_loss > 1.5 * without ? Outcome::reproduced : Outcome::not_reproduced,
         .note = "Reproduced if the ratio is above 1.5. At the end it is " +
                 text(mean(values(weak, growth("shift_norm")))) + " against " +
                 text(mean(values(adamw, growth("shift_norm")))) +
                 "; the paper does not say when it reads." + from_ours(own_weak, peak_growth)});
  }
  if (!strong.empty()) {
    const double accuracy = mean(values(strong, last("test_accuracy")));
    result.claims.push_back(
        {.what = "strong z-loss (1.0) does not grok: final test accuracy",
         .paper = "fails to grok",
         .measured = text(accuracy),
         .deviation = std::nullopt,
         .outcome = accuracy < 0.9 ? Outcome::reproduced : Outcome::not_reproduced,
         .note = ""});
  }
  if (!free.empty()) {
    const double grown = mean(values(free, growth("shift_norm")));
    result.claims.push_back(
        {.what = "without decay: growth of the mode under AdamW",
         .paper = "1.19",
         .measured = text(grown),
         .deviation = relative_deviation(grown, 1.19),
         .outcome = std::abs(grown - 1.19) < 0.1 ? Outcome::reproduced : Outcome::not_reproduced,
         .note = from_ours(own_free, growth("shift_norm"))});
  }
  const auto free_ddc = of_arm(runs, "DDCAdam, no decay");
  if (!own_free.empty() && !free_ddc.empty()) {
    const double ratio = mean(values(free_ddc, last("quotient_norm"))) /
                         mean(values(own_free, last("quotient_norm")));
    result.claims.push_back(
        {.what = "without decay: quotient norm, DDCAdam over AdamW",
         .paper = "1.000",
         .measured = text(ratio),
         .deviation = relative_deviation(ratio, 1),
         .outcome = std::abs(ratio - 1) < 0.005 ? Outcome::reproduced : Outcome::not_reproduced,
         .note = "From our own initialisation, both."});
  }
}

void tabulate(const std::vector<FinishedRun>& runs, Result& result) {
  result.table.columns = {"arm",
                          "seeds",
                          "mode at the end / start",
                          "largest / start",
                          "share of the mode",
                          "quotient norm",
                          "step to 0.9",
                          "test accuracy",
                          "drift"};
  for (const auto& [arm, group] : by_arm(runs)) {
    const double largest = largest_drift(group);
    result.table.rows.push_back(
        {arm, std::to_string(group.size()), spread_text(values(group, growth("shift_norm"))),
         spread_text(values(group, peak_growth)),
         spread_text(values(group, last("shift_fraction"))),
         spread_text(values(group, last("quotient_norm"))),
         text(median(values(
             group, [](const FinishedRun& run) { return step_to(run, "test_accuracy", 0.9); }))),
         spread_text(values(group, last("test_accuracy"))), text(largest)});
  }
  result.curves = {
      curves_of(runs, "The gauge mode sqrt(C) |m|", "shift_norm", true),
      curves_of(runs, "Its share of the unembedding, C |m|² / |W|²", "shift_fraction", true),
      curves_of(runs, "The quotient norm |W - 1 m|", "quotient_norm", true),
      curves_of(runs, "Test accuracy", "test_accuracy", false),
      curves_of(runs, "Training loss", "loss", true)};
  if (!result.quick) add_claims(runs, result);
  for (const auto& [arm, group] : by_arm(runs)) {
    result.answer += arm + ": the mode ends at " + text(mean(values(group, growth("shift_norm")))) +
                     " of its start, the quotient norm at " +
                     text(mean(values(group, last("quotient_norm")))) + ". ";
  }
}

}  // namespace

Experiment row_shift() {
  return {.name = "row_shift",
          .title = "The shift of all logits, and z-loss",
          .question =
              "Does the readout drift along the direction that cross-entropy does not see, "
              "and does a z-loss hold it?",
          .plan = plan,
          .evaluate = tabulate};
}

}  // namespace ddc::experiments
