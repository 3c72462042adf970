#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "search.h"

namespace ddc {

/// Where axes are cut into the pieces whose charges are compared.
struct Cut {
  View view;
  /// Cut axes into at most so many pieces.
  int64_t most_pieces = 4;
  /// Look at runs of indices that share a channel, and at offsets, too.
  bool whole_axes = true;
  /// Only say whether there are relations.
  bool look_only = false;
  /// Worth many batches.
  bool hinted = false;
  /// Look at stacks of matrices, and at nothing else; or at no stacks.
  bool stacks = false;
};

/// Finds the relations at one cut and marks what they explain. True if there were any.
bool find_at(Search& search, const Cut& cut);

inline std::vector<int64_t> descending(std::set<int64_t> values) {
  return {values.rbegin(), values.rend()};
}

/// Columns of tensors further apart than this in the table are not looked at together where axes are
/// cut into heads.
inline constexpr size_t window_of_heads = 12;

}  // namespace ddc
