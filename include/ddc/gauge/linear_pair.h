#pragma once

#include <string>

#include "ddc/gauge/rescale.h"

namespace ddc {

/// A product of two matrices with nothing between them, y = second first x: a LoRA pair, a factorised
/// layer. For any invertible R of the inner size, R first and second R^-1 are the same map. Group
/// GL(r). A `second` that starts at zero is a degenerate stratum and handled as such.
///
/// Broken by: dropout, an activation or a norm between the two.
struct LinearPair {
  NamedTensor first;   ///< [r, in]
  NamedTensor second;  ///< [out, r]
  Layout layout = Layout::out_in;
  std::string name = {};
};
Gauge linear_pair(const LinearPair& spec);

}  // namespace ddc
