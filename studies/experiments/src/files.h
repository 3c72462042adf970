#pragma once

#include <filesystem>
#include <string>

namespace ddc::experiments {

/// Throws, naming the file, if it cannot be read.
std::string read_text(const std::filesystem::path& path);

/// The file appears whole or not at all, and replaces its predecessor.
void write_text(const std::filesystem::path& path, const std::string& text);

}  // namespace ddc::experiments
