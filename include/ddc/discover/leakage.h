#pragma once

#include <ATen/core/Tensor.h>

#include "ddc/gauge/gauge.h"
#include "ddc/parameters.h"

namespace ddc {}  // namespace ddc
