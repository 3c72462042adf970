#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ddc/discover/evaluate.h"
#include "ddc/testbeds/testbed.h"

namespace ddc::cli {

/// A model that can be named on the command line.
struct Model {
  std::string name;
  /// One line.
  std::string description;
  std::function<testbeds::Testbed()> make;
};

const std::vector<Model>& models();

/// Nullptr if there is none.
const Model* find_model(const std::string& name);

/// The name that is spelled most alike; empty if none is near.
std::string nearest_model(const std::string& name);

}  // namespace ddc::cli
