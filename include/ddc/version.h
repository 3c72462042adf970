#pragma once

#include <string_view>

namespace ddc {

/// The version of the library, which CMake and the Python package read here.
inline constexpr std::string_view kVersion = "0.2.0";

}  // namespace ddc
