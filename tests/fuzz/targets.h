#pragma once

#include <cstdint>
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
};

/// The readers of safetensors files, of symmetries, of the description of an optimizer's state in a
/// checkpoint, and of the files of a run.
const std::vector<Target>& targets();

/// The target called `name`.
const Target& target(const std::string& name);

}  // namespace ddc::fuzz
