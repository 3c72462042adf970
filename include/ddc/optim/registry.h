#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddc/optim/lifted.h"

namespace ddc {

/// Base rule by name: what Python, the command line and the contract tests need to offer it.
struct RegisteredRule {
  /// The name of the optimizer: "DDCAdam".
  std::string name;
  /// One line.
  std::string help;
  /// Options with their defaults.
  std::function<std::unique_ptr<LiftedOptions>()> options;
  /// Groups must have options that `options` made.
  std::function<std::unique_ptr<LiftedOptimizer>(
      const std::vector<torch::optim::OptimizerParamGroup>& groups, const Parameters& names,
      std::vector<Gauge> gauges, Treatments treatments)>
      make;
};

const std::vector<RegisteredRule>& registered_rules();
/// Throws, naming the nearest, if there is none of that name.
const RegisteredRule& registered_rule(const std::string& name);

}  // namespace ddc
