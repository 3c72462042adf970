#include "comparison.h"

#include <algorithm>
#include <cmath>

namespace ddc::experiments {
namespace {

struct Pair {
  std::vector<double> first;
  std::vector<double> second;

  bool complete() const { return !first.empty() && !second.empty(); }
  double difference() const { return mean(second) - mean(first); }
  /// Standard error of the difference.
  double standard_error() const {
    const auto of_mean = [](const std::vector<double>& of) {
      return deviation(of) * deviation(of) / static_cast<double>(of.size());
    };
    return std::sqrt(of_mean(first) + of_mean(second));
  }
};

Pair pair_of(const std::vector<FinishedRun>& runs, const Comparison& comparison) {
  return {values(of_arm(runs, comparison.first), comparison.read),
          values(of_arm(runs, comparison.second), comparison.read)};
}

Claim claim_of(const Comparison& comparison, const Pair& pair, bool agrees) {
  return {.what = comparison.what,
          .paper = text(comparison.paper_first) + " against " + text(comparison.paper_second),
          .measured = spread_text(pair.first) + " against " + spread_text(pair.second),
          .deviation = std::nullopt,
          .outcome = !pair.complete() ? Outcome::not_run
                     : agrees         ? Outcome::reproduced
                                      : Outcome::not_reproduced,
          .note = comparison.note};
}

}  // namespace

Claim compared(const std::vector<FinishedRun>& runs, const Comparison& comparison) {
  const auto pair = pair_of(runs, comparison);
  const double direction = comparison.paper_second > comparison.paper_first ? 1 : -1;
  return claim_of(comparison, pair,
                  pair.complete() && direction * pair.difference() > 2 * pair.standard_error());
}

Claim tied(const std::vector<FinishedRun>& runs, const Comparison& comparison, double tolerance) {
  const auto pair = pair_of(runs, comparison);
  return claim_of(comparison, pair,
                  pair.complete() && std::abs(pair.difference()) <=
                                         std::max(tolerance, 2 * pair.standard_error()));
}

}  // namespace ddc::experiments
