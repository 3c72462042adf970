#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

// Readers of files that others may have written, fed with any bytes. They read them or throw a c10::Error;
// anything else is a fault: a crash, another exception, memory without bound, a value that is not the
// same after it was written and read again. libFuzzer runs them for long (`make fuzz`), the tests on a
// fixed set of inputs.

namespace ddc::fuzz {

struct Target {
  std::string name;
  /// Feeds the reader.
  void (*run)(std::string_view bytes);
  /// Inputs to start from, which are read without an error.
  std::vector<std::string> (*seeds)();
  /// Inputs to start from, which are refused.
  std::vector<std::string> (*refused)() = [] { return std::vector<std::string>(); };
};

/// Readers of safetensors files, of symmetries and of the description of an optimizer's state in a
/// checkpoint; in the tests of the studies, of the files of a run.
const std::vector<Target>& targets();

inline const Target& target(const std::string& name) {
  for (const auto& each : targets()) {
    if (each.name == name) return each;
  }
  throw std::logic_error("no fuzz target is called " + name);
}

}  // namespace ddc::fuzz
