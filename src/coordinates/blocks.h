#pragma once

#include <vector>

#include "coordinates/gauge_state.h"
#include "coordinates/plan.h"

// Gauges that mix channels: a unit is a matrix. Per block,
//
//     W = F X  on legs with exponent 1,     W = F^-T X  on legs with exponent -1
//
// where F is orthogonal for a rotation (so that both are F X) and invertible for a linear gauge. Under
// a group element A the frame becomes A F, and X stays. F is found from the weights:
//
//     linear     both sides' Gram matrices of X are equal (and diagonal)
//     rotation   the Gram matrix of X, summed over the legs, is diagonal
//
// A linear gauge's section (equal Gram matrices) is held as that of a scale is, by re-balancing. What
// is left of it, and a rotation altogether, is compact: there a step is made horizontal by taking out
// its orbit part. All tensors float64.

namespace ddc {

/// Sum over the legs of X X^T, [blocks, block, block]; of one side only for `sign` +1 or -1.
at::Tensor gram(const GaugePlan& gauge, const Tensors& x, int sign = 0);

/// Reads the frame of every block off the weights (in the other gauges' units), and whether it is
/// bound: a rotation needs weights that are not zero, a linear gauge two sides of full rank.
void bind_frame_(const GaugePlan& gauge, const Tensors& x, GaugeState& state);
/// Balances a linear gauge's frame further, `x` being in it; `damping` is the share of the way that is
/// gone. Returns the largest entry by which the factor differs from the identity.
double refine_frame_(const GaugePlan& gauge, const Tensors& x, double damping, GaugeState& state);
/// An orthogonal matrix per block, whose columns are the axes that the Gram matrix of `x` singles out:
/// an element of the group, the same place for all points of an orbit.
at::Tensor canonical_basis(const GaugePlan& gauge, const Tensors& x);
/// Turns frames, and `x` in them, so that the Gram matrix is diagonal.
void align_frame_(const GaugePlan& gauge, GaugeState& state, Tensors& x);

/// What one leg's tensor contributes to it.
at::Tensor leg_gram(const BoundLeg& leg, const at::Tensor& x);

/// Matrices, one per block, times what the leg's tensor holds of each; in place.
void multiply_(const BoundLeg& leg, const at::Tensor& matrices, at::Tensor& x);
/// The matrix of a group element on the leg: itself, or its inverse transposed.
at::Tensor leg_matrix(const BoundLeg& leg, const at::Tensor& element);

/// What a step needs to know of a gauge's orbit at X: the Lyapunov operator A -> M A + A M of the
/// Gram matrix M of X, as the eigenvectors of M (undefined where it is a multiple of the identity)
/// and the sums of pairs of eigenvalues, infinite where they do not fix an angle.
struct Orbit {
  at::Tensor eigenvectors;
  at::Tensor denominator;
};
Orbit orbit_at(const GaugePlan& gauge, const at::Tensor& gram);
/// What a leg's tensor contributes to D X^T - X D^T for a vector D, [blocks, block, block].
at::Tensor orbit_moment(const BoundLeg& leg, const at::Tensor& vector, const at::Tensor& x);
/// The skew matrices A for which A X has this moment: the rotation that points along the orbit.
at::Tensor orbit_angle(const Orbit& orbit, const at::Tensor& moment);
/// A X on the leg's tensor, zero where the gauge does not act.
at::Tensor along_orbit(const BoundLeg& leg, const at::Tensor& angle, const at::Tensor& x);

/// Lets blocks of a linear gauge leave the stratum where a side is not of full rank, and come into it.
void update_linear_binding_(const GaugePlan& gauge, const at::Tensor& plus, const at::Tensor& minus,
                            GaugeState& state);
/// The symmetric positive S for which S P S and S^-1 M S^-1 are equal, however far apart P and M are; the
/// identity where one of them is not of full rank.
at::Tensor exact_balancing_factor(const at::Tensor& p, const at::Tensor& m);
/// Moves X along the orbit of a linear gauge until both Gram matrices are equal (relative to the place
/// where the block was bound). `now` is X in the units it will be lifted in; `x` is what is moved.
/// Returns the largest relative difference before.
double rebalance_linear_(const GaugePlan& gauge, const Tensors& now, GaugeState& state, Tensors& x);
/// Turns the stepped X to where it fits the X before the step best.
void procrustes_(const GaugePlan& gauge, const Tensors& before, Tensors& x);

/// How to turn the frames of blocks that had none because they were zero, and (if `follow`) body frames
/// that follow the weights: per block the orthogonal matrix R by which coordinates change, X -> R^T X,
/// and the frame, F -> F R. Undefined if nothing changes.
at::Tensor follow_frame_(const GaugePlan& gauge, const Tensors& x, bool follow, GaugeState& state);

/// log S per block, see gauge.h; NaN where a side is not of full rank.
at::Tensor linear_coordinate(const GaugePlan& gauge, const Tensors& weights);

}  // namespace ddc
