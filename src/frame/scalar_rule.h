#pragma once

#include "frame/chart.h"

namespace ddc {

/// One step of Adam on numbers that each stand for a whole direction (a gauge coordinate, a joint
/// scale). Returns the displacement. Without `divide` the second moment is not used.
at::Tensor scalar_step(ScalarMoments& moments, const at::Tensor& gradient,
                       const StepSettings& settings, bool divide = true);

}  // namespace ddc
