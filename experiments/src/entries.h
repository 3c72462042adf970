#pragma once

#include "ddc/experiments/catalogue.h"

// Entries of the catalogue that have a file of their own.

namespace ddc::experiments {

TestbedEntry rope_grokking_entry();

}  // namespace ddc::experiments
