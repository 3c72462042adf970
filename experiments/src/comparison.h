#pragma once

#include <string>
#include <vector>

#include "tables.h"

namespace ddc::experiments {

/// What the paper says about two arms, of which ours are trained on other data and at another size: the
/// direction can be compared, the numbers cannot.
struct Comparison {
  std::string what;
  std::string first;
  std::string second;
  Read read;
  double paper_first = 0;
  double paper_second = 0;
  std::string note;
};

/// Reproduced if the second arm's mean lies on the same side of the first's as the paper's does, by more
/// than two standard errors of the difference. Not run if an arm has no runs.
Claim compared(const std::vector<FinishedRun>& runs, const Comparison& comparison);

/// Of two arms that the paper calls tied: reproduced if they differ by at most `tolerance`, or by less
/// than two standard errors.
Claim tied(const std::vector<FinishedRun>& runs, const Comparison& comparison, double tolerance);

/// The last value of a metric.
Read last(const std::string& metric);
/// The mean over the last quarter of the measurements, where single ones are noisy.
Read late(const std::string& metric);
/// The least value on the way, and the last as a multiple of the first.
Read least(const std::string& metric);
Read growth(const std::string& metric);

/// Of all runs of an arm, the largest drift of any gauge channel at the end; NaN counts as infinite.
double largest_drift(const std::vector<const FinishedRun*>& runs);

}  // namespace ddc::experiments
