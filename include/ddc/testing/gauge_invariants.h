#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "ddc/gauge/gauge.h"
#include "ddc/optim/lifted.h"
#include "ddc/parameters.h"

// The identities that every gauge must satisfy (see ddc/gauge/gauge.h), as one call. It needs no
// test framework:
//
//     const auto report = ddc::testing::check_gauge_invariants(my_gauge, params, my_loss);
//     EXPECT_TRUE(report.ok()) << report;
//
// Each identity is checked at the weights given and at nasty points made from them (one side tiny,
// one side zero), under group elements at the identity, near it, at random, and with huge ratios.

namespace ddc::testing {

/// One identity in one regime. A failed check shows the entry with the largest error.
struct Check {
  std::string identity;  ///< "group law", "invariance", ...
  std::string regime;    ///< "huge element, plus side tiny"
  std::string where;     ///< the tensor or channel with the largest error
  double expected = 0;
  double actual = 0;
  /// |actual - expected|, relative to the largest entry of what is compared (absolute for the gauge
  /// coordinate, which is a logarithm).
  double difference = 0;
  double tolerance = 0;

  bool passed() const { return difference <= tolerance; }
};

struct InvariantReport {
  std::vector<Check> checks;

  bool ok() const;
  /// The checks that failed.
  std::vector<Check> failures() const;
};
std::ostream& operator<<(std::ostream& out, const Check& check);
/// The failures, or one line that says how many checks passed.
std::ostream& operator<<(std::ostream& out, const InvariantReport& report);

/// The loss of batch number `batch` as a function of the parameters; differentiable, and the same
/// number each time it is asked for the same batch.
using Loss = std::function<at::Tensor(const Parameters& params, int64_t batch)>;

/// Makes the optimizer under test.
using OptimizerFactory =
    std::function<std::unique_ptr<LiftedOptimizer>(const Parameters&, std::vector<Gauge>)>;

struct InvariantOptions {
  uint64_t seed = 0;
  /// Steps over which equivariance and horizontality are followed.
  int64_t steps = 20;
  /// Unset: DDCAdam at a learning rate of 1e-3.
  OptimizerFactory optimizer;
  /// Further gauges that are bound together with the one under test.
  std::vector<Gauge> others;
  /// Bounds for identities of the gauge and for those of the optimizer; 0: by the parameters' type.
  double gauge_tolerance = 0;
  double step_tolerance = 0;
};

InvariantReport check_gauge_invariants(const Gauge& gauge, const Parameters& params,
                                       const Loss& loss, const InvariantOptions& options = {});

}  // namespace ddc::testing
