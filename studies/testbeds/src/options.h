#pragma once

#include <c10/util/Exception.h>

#include <cstdint>

// Checks of options that the testbeds share. Each names the option and its value.

namespace ddc::testbeds {

inline void check_positive(const char* option, int64_t value) {
  TORCH_CHECK(value > 0, "testbed option ", option, " must be > 0, got ", value);
}

inline void check_degree(int64_t value) {
  TORCH_CHECK(value == 1 || value == 2,
              "testbed option degree must be 1 (ReLU) or 2 (squared ReLU), got ", value);
}

}  // namespace ddc::testbeds
