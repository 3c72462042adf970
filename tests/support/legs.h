#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "ddc/gauge/gauge.h"

// Legs that tests of the ready-made gauges write down, compare and print.

namespace ddc {

inline void PrintTo(const Leg& leg, std::ostream* out) {
  *out << leg.tensor << " axis " << leg.axis << " exponent " << leg.exponent << " offset "
       << leg.offset << " heads of " << leg.head_size << " channels "
       << ::testing::PrintToString(leg.channel_of) << " through '" << leg.through.gain << "' + "
       << leg.through.gain_offset << ", '" << leg.through.shift << "', '" << leg.through.bias
       << "'";
}

namespace tests {

using Channels = std::vector<int64_t>;
using Legs = std::vector<Leg>;

inline NamedTensor named(std::string name, at::IntArrayRef shape) {
  return {std::move(name), at::ones(shape)};
}

inline NamedTensor undefined_tensor() { return {"nothing", at::Tensor()}; }

inline Leg leg(std::string tensor, int64_t axis, double exponent, Channels channel_of = {},
               double offset = 0) {
  return {.tensor = std::move(tensor),
          .axis = axis,
          .exponent = exponent,
          .channel_of = std::move(channel_of),
          .offset = offset};
}

inline Leg head_leg(int64_t head_size, std::string tensor, int64_t axis, double exponent,
                    Channels channel_of) {
  auto result = leg(std::move(tensor), axis, exponent, std::move(channel_of));
  result.head_size = head_size;
  return result;
}

inline Leg seen_through(Leg leg, Reading through) {
  leg.through = std::move(through);
  return leg;
}

}  // namespace tests
}  // namespace ddc
