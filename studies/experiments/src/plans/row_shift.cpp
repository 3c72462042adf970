#include <algorithm>
#include <cmath>
#include <limits>

#include "../tables.h"
#include "plans.h"

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

/// The peak of the run among `runs` with the seed of `other`; NaN if there is none.
double peak_of_same_seed(const std::vector<const FinishedRun*>& runs, const FinishedRun& other) {
  for (const auto* run : runs) {
    if (run->seed() == other.seed()) return peak_growth(*run);
  }
  return std::numeric_limits<double>::quiet_NaN();
}

/// Those that depend on where the mode starts. `start` is that of the arms' names: the paper does not state its
/// initialisation, and the mode starts sqrt(3) times as large in ours as in torch's.
void add_claims_from(const std::string& start, const std::vector<FinishedRun>& runs,
                     Result& result) {
  const auto adamw = of_arm(runs, "AdamW" + start);
  const auto weak = of_arm(runs, "AdamW" + start + ", z-loss 1e-4");
  const auto free = of_arm(runs, "AdamW" + start + ", no decay");
  if (!adamw.empty()) {
    const auto fractions = values(adamw, last("shift_fraction"));
    std::string note = "A study of its own in the paper, whose set-up is not stated.";
    if (!weak.empty()) {
      note += " With z-loss 1e-4 it is " + spread_text(values(weak, last("shift_fraction"))) +
              seeds(weak) + " here.";
    }
    result.claims.push_back({.what = "share of the unembedding along the orbit, AdamW" + start,
                             .paper = "0.145 to 0.16",
                             .measured = spread_text(fractions) + seeds(adamw),
                             .deviation = relative_deviation(mean(fractions), 0.1525),
                             .outcome = mean(fractions) > 0.1 && mean(fractions) < 0.25
                                            ? Outcome::reproduced
                                            : Outcome::not_reproduced,
                             .note = note});
    const auto peaks = values(adamw, peak_growth);
    std::string listed;
    for (const double peak : peaks) listed += (listed.empty() ? "" : ", ") + text(peak);
    result.claims.push_back(
        {.what = "growth of the mode, AdamW" + start + ", largest on the way",
         .paper = "3",
         .measured = spread_text(peaks) + seeds(adamw),
         .deviation = relative_deviation(mean(peaks), 3),
         .outcome = std::abs(mean(peaks) - 3) < 1 ? Outcome::reproduced : Outcome::not_reproduced,
         .note = "Seed by seed " + listed +
                 ". It rises in spikes of the loss and falls between them; the paper does not say "
                 "when it reads."});
  }
  if (!weak.empty() && !adamw.empty()) {
    const double with_loss = mean(values(weak, peak_growth));
    const double without = mean(values(adamw, peak_growth));
    result.claims.push_back(
        {.what =
             "growth of the mode, z-loss 1e-4 against none, AdamW" + start + ", largest on the way",
         .paper = "7 against 3",
         .measured = text(with_loss) + " against " + text(without),
         .deviation = relative_deviation(with_loss / without, 7.0 / 3),
         .outcome = with_loss > 1.5 * without ? Outcome::reproduced : Outcome::not_reproduced,
         .note = "Reproduced if the ratio is above 1.5. At the end it is " +
                 text(mean(values(weak, growth("shift_norm")))) + " against " +
                 text(mean(values(adamw, growth("shift_norm")))) +
                 "; of the seed with z-loss alone, " + text(peak_growth(*weak.front())) +
                 " against " + text(peak_of_same_seed(adamw, *weak.front())) + " on the way."});
  }
  if (!free.empty()) {
    const double grown = mean(values(free, growth("shift_norm")));
    result.claims.push_back(
        {.what = "without decay: growth of the mode, AdamW" + start,
         .paper = "1.19",
         .measured = text(grown) + seeds(free),
         .deviation = relative_deviation(grown, 1.19),
         .outcome = std::abs(grown - 1.19) < 0.1 ? Outcome::reproduced : Outcome::not_reproduced,
         .note = ""});
  }
}

void add_claims(const std::vector<FinishedRun>& runs, Result& result) {
  for (const char* start : {", torch init", ""}) add_claims_from(start, runs, result);
  const auto frozen = of_arm(runs, "DDCAdam, shift frozen");
  const auto strong = of_arm(runs, "AdamW, z-loss 1");
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
  const auto free_adamw = of_arm(runs, "AdamW, no decay");
  const auto free_ddc = of_arm(runs, "DDCAdam, no decay");
  if (!free_adamw.empty() && !free_ddc.empty()) {
    const double ratio = mean(values(free_ddc, last("quotient_norm"))) /
                         mean(values(free_adamw, last("quotient_norm")));
    result.claims.push_back(
        {.what = "without decay: quotient norm, DDCAdam over AdamW",
         .paper = "1.000",
         .measured = text(ratio),
         .deviation = relative_deviation(ratio, 1),
         .outcome = std::abs(ratio - 1) < 0.005 ? Outcome::reproduced : Outcome::not_reproduced,
         .note = ""});
  }
}

void tabulate(const std::vector<FinishedRun>& runs, Result& result) {
  result.table = table_by_arm(
      runs, {spread_of("mode at the end / start", growth("shift_norm")),
             spread_of("largest / start", peak_growth),
             spread_of("share of the mode", last("shift_fraction")),
             spread_of("quotient norm", last("quotient_norm")),
             median_of("step to 0.9",
                       [](const FinishedRun& run) { return step_to(run, "test_accuracy", 0.9); }),
             spread_of("test accuracy", last("test_accuracy")), drift_column("drift")});
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
