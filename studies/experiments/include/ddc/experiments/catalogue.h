#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddc/experiments/settings.h"
#include "ddc/optim/lifted.h"
#include "ddc/testbeds/testbed.h"

// What can be named: testbeds, and optimizers to train them with.

namespace ddc::experiments {

struct TestbedEntry {
  std::string name;
  /// One line.
  std::string description;
  Settings settings;
  /// Makes a testbed of complete settings.
  std::function<testbeds::Testbed(const Json& settings)> make;
  /// The recipe that `ddc run` follows where nothing else is said: settings of the optimizer, and "steps".
  Json recipe = Json::object();
  /// Throws if data are missing that `make` would read, saying what to install. May be empty.
  std::function<void(const Json& settings)> check = {};
};

/// An optimizer by name. All of them are the one step loop of LiftedOptimizer: without gauges that is the
/// plain optimizer itself (which the tests of the library hold it to), with checkpoints that resume to the
/// last bit.
struct OptimizerEntry {
  std::string name;
  std::string description;
  Settings settings;
  /// Binds those of the testbed's gauges that the settings ask for.
  std::function<std::unique_ptr<LiftedOptimizer>(const Json& settings, const Parameters& params,
                                                 std::vector<Gauge> gauges)>
      make;
};

const std::vector<TestbedEntry>& testbed_entries();
const std::vector<OptimizerEntry>& optimizer_entries();

/// Throws, suggesting the nearest name, if there is none.
const TestbedEntry& testbed_entry(const std::string& name);
const OptimizerEntry& optimizer_entry(const std::string& name);

}  // namespace ddc::experiments
