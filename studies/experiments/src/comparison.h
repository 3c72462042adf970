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

/// Claim on two arms that the paper calls tied: reproduced if they differ by at most `tolerance`, or by less
/// than two standard errors.
Claim tied(const std::vector<FinishedRun>& runs, const Comparison& comparison, double tolerance);

}  // namespace ddc::experiments
