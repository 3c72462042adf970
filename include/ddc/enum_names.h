#pragma once

#include <array>
#include <cstddef>

namespace ddc {

/// Names of the values of an enum, in order. Specialised beside every enum that has a text.
template <class Enum>
inline constexpr std::array<const char*, 0> EnumNames = {};

template <class Enum>
requires(!EnumNames<Enum>.empty()) constexpr const char* to_string(Enum value) {
  return EnumNames<Enum>[static_cast<size_t>(value)];
}

}  // namespace ddc
