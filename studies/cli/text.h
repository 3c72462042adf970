#pragma once

#include <cstddef>
#include <string>
#include <vector>

// Text for people. Widths are counted in characters of UTF-8.

namespace ddc::cli {

size_t width(const std::string& text);
/// With spaces up to the width.
std::string padded(const std::string& text, size_t columns);
/// Not wider than this; what is left out leaves a mark.
std::string cut(const std::string& text, size_t columns);

/// Four digits: "0.01234", "1.2e-07"; "-" for NaN.
std::string number(double value);
/// "0:07", "12:34", "1:02:03".
std::string duration(double seconds);

using Rows = std::vector<std::vector<std::string>>;
/// Lines with their columns one below the other, two spaces apart.
std::string aligned(const Rows& rows);
/// Lines of at most so many columns, each behind `indent` spaces.
std::string wrapped(const std::string& text, size_t columns, size_t indent = 0);
/// The width of standard output if that is a terminal, else (and at most) 100.
size_t page_width();

/// As one would type it into a shell.
std::string quoted(const std::vector<std::string>& words);
/// The words with which this program was called.
std::vector<std::string> called_with();

}  // namespace ddc::cli
