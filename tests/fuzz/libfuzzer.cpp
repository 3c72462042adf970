// A program of libFuzzer for one target, DDC_FUZZ_TARGET. Before it starts, seeds are written into the first
// folder it is given.

#include <c10/util/Exception.h>

#include <filesystem>
#include <fstream>

#include "fuzz/targets.h"

namespace {

const ddc::fuzz::Target& target() {
  static const auto& found = ddc::fuzz::target(DDC_FUZZ_TARGET);
  return found;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  for (int i = 1; i < *count; ++i) {
    const std::filesystem::path folder = (*arguments)[i];
    if (!std::filesystem::is_directory(folder)) continue;
    int number = 0;
    for (const auto& seeds : {target().seeds(), target().refused()}) {
      for (const auto& seed : seeds) {
        std::ofstream(folder / ("seed" + std::to_string(number++)), std::ios::binary) << seed;
      }
    }
    break;
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    target().run({reinterpret_cast<const char*>(data), size});
  } catch (const c10::Error&) {
  }
  return 0;
}
