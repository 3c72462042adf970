#include <cmath>

#include "../tables.h"
#include "plans.h"

// Paper, appendices "Matching the rotation gauge to the rotary architecture" and, for the masked arm,
// "Curvature of the converged minimum". Depth, width and batch are smaller here, and how the paper packs
// sums into sequences is not known, so that directions are compared and not levels.

namespace ddc::experiments {
namespace {

/// When test accuracy has reached this a network is said to have grokked.
constexpr double grokked = 0.9;
constexpr const char* same_size =
    "The paper's network has 8 layers and sequences of 128, and runs 5000 steps."
    " Arms with gauges take polar factors per head, those without of whole matrices; rate and size "
    "were "
    "chosen on seed 42.";

struct Arm {
  const char* name;
  const char* slug;
  const char* optimizer;
  /// The gauges of queries and keys that the testbed lists, bound or not.
  const char* rotation;
  Json settings;
  double accuracy;
  const char* seeds;
};

/// In the order of the paper: each adds one thing to the one before it. The last is the control.
const std::vector<Arm>& arms() {
  static const std::vector<Arm> all = {
      {"Muon", "muon", "muon", "torus", Json::object(), 0.867, "1 of 3"},
      {"scaled polar, no gauge",
       "polar",
       "ddc-muon",
       "torus",
       {{"gauges", "none"}, {"method", "sharpen"}},
       0.937,
       "2 of 3"},
      {"full rotation", "full", "ddc-muon", "full", {{"method", "sharpen"}}, 0.955, "3 of 3"},
      {"torus", "torus", "ddc-muon", "torus", {{"method", "sharpen"}}, 0.977, "3 of 3"},
      {"masked Muon", "masked", "masked-muon", "torus", Json::object(), 0.880, "1 of 3"},
  };
  return all;
}
const Arm& muon = arms()[0];
const Arm& polar = arms()[1];
const Arm& full = arms()[2];
const Arm& torus = arms()[3];
const Arm& masked = arms()[4];

std::vector<PlannedRun> plan(bool quick) {
  std::vector<PlannedRun> runs;
  for (const uint64_t seed : three_seeds) {
    if (quick && seed != three_seeds.front()) break;
    for (const auto& arm : arms()) {
      RunConfig config;
      config.testbed = "rope_grokking";
      config.testbed_settings = {{"rotation", arm.rotation}};
      config.optimizer = arm.optimizer;
      config.optimizer_settings = arm.settings;
      // A scale of the update that is the same for a head and for the whole matrix: gauges have a polar
      // factor per head, and the arms are to differ in nothing else.
      config.optimizer_settings.update({{"scale", "match_rms_adamw"},
                                        {"lr", 0.0125},
                                        {"weight_decay", 1.0},
                                        {"adam_lr", 0.00125},
                                        {"adam_weight_decay", 1.0}});
      config.steps = 1000;
      config.seed = seed;
      if (quick) {
        config.testbed_settings["layers"] = 2;
        config.steps = 400;
      }
      runs.push_back({.name = std::string(arm.slug) + "-seed" + std::to_string(seed),
                      .arm = arm.name,
                      .config = config});
    }
  }
  return runs;
}

double final_accuracy(const FinishedRun& run) { return run.last("test_accuracy"); }
double final_sigma(const FinishedRun& run) { return run.last("sigma_min"); }
double first_grokked(const FinishedRun& run) { return step_to(run, "test_accuracy", grokked); }
/// Turn of a typical step.
double typical_turn(const FinishedRun& run) {
  std::vector<double> turns;
  for (const auto& measurement : run.metrics) {
    const auto found = measurement.values.find("turn");
    if (found != measurement.values.end()) turns.push_back(found->second);
  }
  return median(turns);
}

size_t count_grokked(const std::vector<const FinishedRun*>& runs) {
  size_t count = 0;
  for (const auto* run : runs) count += std::isfinite(first_grokked(*run)) ? 1 : 0;
  return count;
}

std::string grokked_text(const std::vector<const FinishedRun*>& runs) {
  return std::to_string(count_grokked(runs)) + " of " + std::to_string(runs.size());
}

/// What the spread of seeds lets the difference of two means vary by.
double uncertainty(const std::vector<double>& a, const std::vector<double>& b) {
  return std::hypot(deviation(a), deviation(b)) /
         std::sqrt(static_cast<double>(std::min(a.size(), b.size())));
}

/// `upper` is to end with more accuracy than `lower`, by more than the seeds explain.
Claim step_up(const std::vector<FinishedRun>& runs, const Arm& upper, const Arm& lower) {
  const auto a = of_arm(runs, upper.name);
  const auto b = of_arm(runs, lower.name);
  Claim claim{
      .what = std::string(upper.name).append(" against ").append(lower.name).append(": accuracy"),
      .paper = text(upper.accuracy) + " (" + upper.seeds + ") against " + text(lower.accuracy) +
               " (" + lower.seeds + ")",
      .measured = "",
      .deviation = std::nullopt,
      .outcome = Outcome::not_run,
      .note = ""};
  if (a.size() < 3 || b.size() < 3) return claim;
  const auto ours = values(a, final_accuracy);
  const auto theirs = values(b, final_accuracy);
  const double gain = mean(ours) - mean(theirs);
  const double noise = uncertainty(ours, theirs);
  claim.measured = spread_text(ours) + " (" + grokked_text(a) + ") against " + spread_text(theirs) +
                   " (" + grokked_text(b) + ")";
  claim.deviation = relative_deviation(gain, upper.accuracy - lower.accuracy);
  claim.outcome = gain > noise ? Outcome::reproduced : Outcome::not_reproduced;
  claim.note =
      gain > noise ? same_size
      : gain < -noise
          ? std::string("The order is the other one. ").append(same_size)
          : std::string("The difference is within the spread of the seeds. ").append(same_size);
  return claim;
}

/// Masking does what Muon does, and not what the torus does.
Claim masking(const std::vector<FinishedRun>& runs) {
  const auto control = values(of_arm(runs, masked.name), final_accuracy);
  const auto plain = values(of_arm(runs, muon.name), final_accuracy);
  Claim claim{.what = "masked Muon is Muon: accuracy",
              .paper = "0.880 against 0.867 (0.848 beside it)",
              .measured = "",
              .deviation = std::nullopt,
              .outcome = Outcome::not_run,
              .note = ""};
  if (control.size() < 3 || plain.size() < 3) return claim;
  const double gap = std::abs(mean(control) - mean(plain));
  claim.measured = spread_text(control) + " against " + spread_text(plain);
  claim.outcome =
      gap <= 2 * uncertainty(control, plain) ? Outcome::reproduced : Outcome::not_reproduced;
  claim.note =
      "The paper does not define its mask. Ours takes out the singular directions in which the "
      "momentum has less than a thousandth of its largest.";
  return claim;
}

Claim compression(const std::vector<FinishedRun>& runs) {
  const auto plain = values(of_arm(runs, muon.name), final_sigma);
  const auto held = values(of_arm(runs, torus.name), final_sigma);
  Claim claim{.what = "smallest singular value of the last residual stream, torus against Muon",
              .paper = "0.4 against 2.27",
              .measured = "",
              .deviation = std::nullopt,
              .outcome = Outcome::not_run,
              .note = ""};
  if (plain.size() < 3 || held.size() < 3) return claim;
  claim.measured = spread_text(held) + " against " + spread_text(plain);
  claim.deviation = relative_deviation(mean(held) / mean(plain), 0.4 / 2.27);
  claim.outcome = mean(held) < mean(plain) - uncertainty(held, plain) ? Outcome::reproduced
                                                                      : Outcome::not_reproduced;
  claim.note = "It grows with the number of inputs, which the paper does not give.";
  return claim;
}

void tabulate(const std::vector<FinishedRun>& runs, Result& result) {
  result.table = table_by_arm(runs, {spread_of("test accuracy", final_accuracy),
                                     {"grokked", grokked_text},
                                     median_of("steps to 0.9", first_grokked),
                                     spread_of("loss, in bits", last("test_bits")),
                                     spread_of("σ_min", final_sigma),
                                     spread_of("effective rank", last("effective_rank")),
                                     median_of("turn of a step", typical_turn)});
  if (!result.quick) {
    result.claims = {step_up(runs, polar, muon),
                     step_up(runs, full, polar),
                     step_up(runs, torus, full),
                     step_up(runs, torus, muon),
                     masking(runs),
                     compression(runs)};
  }
  result.curves = {
      curves_of(runs, "Accuracy on pairs that were held out", "test_accuracy", /*log_y=*/false),
      curves_of(runs, "Smallest singular value of the last residual stream", "sigma_min",
                /*log_y=*/true),
      curves_of(runs, "Largest angle by which a step turns a head along its orbit", "turn",
                /*log_y=*/true)};
  const auto accuracy_of = [&](const Arm& arm) {
    return text(mean(values(of_arm(runs, arm.name), final_accuracy)));
  };
  const auto turn_of = [&](const Arm& arm) {
    return text(median(values(of_arm(runs, arm.name), typical_turn)));
  };
  result.answer = "Final accuracy is " + accuracy_of(muon) + " with Muon, " + accuracy_of(polar) +
                  " with the polar factor alone, " + accuracy_of(full) +
                  " with the full rotation, which the rotary embedding breaks, and " +
                  accuracy_of(torus) + " with the torus, which it leaves. A step turns a head by " +
                  turn_of(torus) + " along the orbit with the torus bound, by " + turn_of(muon) +
                  " with Muon.";
}

}  // namespace

Experiment rope() {
  return {.name = "rope",
          .title = "The rotation gauge of rotary attention",
          .question =
              "Does binding the rotations that a rotary embedding leaves make a deep transformer "
              "grok more reliably than Muon, than its polar factor alone, and than binding "
              "rotations that it breaks?",
          .plan = plan,
          .evaluate = tabulate};
}

}  // namespace ddc::experiments
