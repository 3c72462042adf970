#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

// What the targets share.

namespace ddc::fuzz {

inline std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// A folder of this process alone.
inline const std::filesystem::path& folder() {
  static const struct Made {
    std::filesystem::path path =
        std::filesystem::temp_directory_path() / ("ddc-fuzz-" + std::to_string(::getpid()));
    Made() { std::filesystem::create_directories(path); }
    ~Made() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  } made;
  return made.path;
}

}  // namespace ddc::fuzz
