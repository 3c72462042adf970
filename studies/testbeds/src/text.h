#pragma once

#include <filesystem>
#include <string>

namespace ddc::testbeds {

/// Where Debian's package bible-kjv-text puts the King James text.
inline constexpr const char* king_james_file = "/usr/lib/bible.data";

/// The file itself, or what it holds if it is packed as Debian's King James text is (the format of the
/// program `bible`: windows of the text, each in the code of Unix `compress`). Throws, naming the file, if
/// it cannot be read or unpacked.
std::string load_text(const std::filesystem::path& path);

}  // namespace ddc::testbeds
