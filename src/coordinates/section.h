#pragma once

#include <vector>

#include "coordinates/gauge_state.h"
#include "coordinates/plan.h"
#include "coordinates/squares.h"

// Sections of scale gauges: per channel one number, computed from the squared entries of the
// tensors a gauge acts on, that moves by a fixed weight times log c along the orbit. Fixing it
// picks one point of each orbit. The unit of a gauge is the choice of its section:
//
//     balanced, polar   r = log rho_plus - log rho_minus          (= 0: both sides equally large)
//     standard          the same                                  (= its value at a usual initialisation)
//     folded            log of the first leg's norm               (= 0: a gain of +-1)

namespace ddc {

/// Squares of coordinates, found by index in Plan::tensors.
using Squares = PerTensor<AxisSquares>;

struct SectionValue {
  at::Tensor value;
  /// Channels where every norm that enters (and r) is far enough from zero to take a logarithm.
  at::Tensor alive;
};

/// Joint squared norm of the side's legs, per channel; legs with a larger exponent enter by the
/// root that makes all of them move alike.
at::Tensor side_square(const GaugePlan& gauge, const Side& side, const Squares& squares);

/// r, and where it is defined. A side without legs counts as 1.
SectionValue ratio(const GaugePlan& gauge, const Squares& squares, double smallest);

SectionValue section(const GaugePlan& gauge, const Squares& squares, double smallest);
/// The same of folded coordinates, whether or not the other legs are there.
SectionValue first_leg_section(const GaugePlan& gauge, const Squares& squares, double smallest);
/// By how much the section moves under log c = 1.
double section_weight(const GaugePlan& gauge);
/// The value of the section at which X has the size of a usual initialisation.
at::Tensor section_target(const GaugePlan& gauge);

/// Log-unit of a channel one of whose sides is zero, from the other side alone; 0 if both are.
at::Tensor one_sided_log_unit(const GaugePlan& gauge, const Squares& squares, double smallest);
/// Whether the sides are within a factor of 100 of each other, in their reference norms.
at::Tensor comparable(const GaugePlan& gauge, const Squares& squares, double smallest);

/// Lets channels leave and enter degenerate strata, on the squares of stepped coordinates. What a channel
/// that is bound for the first time holds is where it is; one that was bound before goes back.
void update_binding_(const GaugePlan& gauge, const Squares& squares, double smallest,
                     GaugeState& state);

/// Moves the squares along the gauge's orbit: squares *= exp(2 e log_c).
void move_squares_(const GaugePlan& gauge, const at::Tensor& log_c, Squares& squares);

/// Norms below this are treated as zero: unit ratios beyond would leave the type's range.
double smallest_norm(const Plan& plan, const GaugePlan& gauge);
/// Machine epsilon of the least precise of the tensors that a gauge acts on.
double precision(const Plan& plan, const GaugePlan& gauge);

}  // namespace ddc
