#pragma once

#include "coordinates/plan.h"

// Sections of gauges that couple are found by sweeps over the gauges until nothing moves.

namespace ddc::sweeps {

/// Chains of balanced gauges converge linearly; these bounds reach rounding on chains of dozens of
/// layers. A set of units that has no fixed point (weights with a zero block can have none) is
/// taken as it is after the last sweep, and held there.
constexpr int kMostToBind = 10000;
/// Linear gauges that have no fixed point are refused, and those that have one get there in dozens of sweeps.
constexpr int kMostLinearToBind = 2000;
constexpr double kLinearTolerance = 1e-9;
constexpr int kMostPerStep = 200;
constexpr double kTolerance = 1e-14;

/// Gauges with two legs on one tensor over-correct by up to a factor of two in one sweep.
inline double damping(const GaugePlan& gauge) { return gauge.self_coupled ? 0.5 : 1; }

}  // namespace ddc::sweeps
