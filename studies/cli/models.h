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

/// By the name of one of them.
testbeds::Testbed make_model(const std::string& name);

}  // namespace ddc::cli
