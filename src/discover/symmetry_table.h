#pragma once

#include <cstddef>
#include <iosfwd>

#include "ddc/discover/symmetry_group.h"

namespace ddc {

/// Prints the table of a group. Lines are kept to the width by naming fewer tensors, and where that is not
/// enough by leaving out the columns of tensors, of kinds and of verdicts.
void print_table(std::ostream& out, const SymmetryGroup& group, size_t width);

}  // namespace ddc
