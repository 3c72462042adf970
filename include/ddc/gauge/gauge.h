#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ddc/enum_names.h"
#include "ddc/parameters.h"

// # The contract of a gauge
//
// ## Motivation
//
// A gauge is a group that acts on the parameters of a network and leaves its function alone.
// Optimizers that do not know of it train the same function differently depending on how it happens
// to be written down, and drift along directions that mean nothing. Everything this library does
// rests on a description of who acts on what, and that description is a list of *legs*:
//
//     a leg says: along this axis of this tensor, index i belongs to channel c(i), and the group
//     moves it with exponent e (or by a block of a matrix, or by a shift).
//
// That is all a new gauge has to say. Units, coordinates, projections, the section that is held,
// state and checkpoints are deduced from the legs, for any number of gauges that share tensors.
//
// ## A worked example
//
// Two layers with a squared ReLU between them, y = W2 relu(W1 x + b1)^2. For any c_i > 0
//
//     W1[i, :] -> c_i W1[i, :],   b1[i] -> c_i b1[i],   W2[:, i] -> c_i^-2 W2[:, i]
//
// leaves y unchanged. Written as legs, with one channel per hidden unit:
//
//     Gauge gauge;
//     gauge.name = "mlp";
//     gauge.action = Action::scale;
//     gauge.channels = d_hidden;
//     gauge.legs = {{.tensor = "fc1.weight", .axis = 0, .exponent = +1},
//                   {.tensor = "fc1.bias",   .axis = 0, .exponent = +1},
//                   {.tensor = "fc2.weight", .axis = 1, .exponent = -2}};
//
// which is what `relu_rescale({.in = ..., .in_bias = ..., .out = {...}, .degree = 2})` returns.
//
// A group that mixes channels acts on *blocks* of them: `block` consecutive channels c = b * block + p
// are the coordinates p of block b. One attention head's queries and keys, that may be turned
// together, are
//
//     gauge.action = Action::rotation;
//     gauge.block = d_head;
//     gauge.channels = heads * d_head;
//     gauge.legs = {{.tensor = "query.weight", .axis = 0}, {.tensor = "key.weight", .axis = 0}};
//
// and where several query heads share a key head, several rows of the query have the same channel.
//
// ## The identities
//
// Write g.theta for the action of a group element g on the parameters. Every gauge must satisfy
//
//   (1) group law             e.theta = theta,   (g h).theta = g.(h.theta),   g^-1.(g.theta) = theta
//   (2) invariance            L(g.theta) = L(theta), for the loss of every batch
//   (3) covariance            grad L(g.theta) = g^-T . grad L(theta); for a scale gauge this makes
//                             the Noether charge  sum_legs e <W, dL/dW>  zero channel by channel
//   (4) equivariance          step(g.theta) = g . step(theta), over many steps
//   (5) horizontality         the gauge coordinate r (see below) does not move
//
// (1) to (3) are properties of the gauge; (4) and (5) of an optimizer that binds it. (4) alone is
// cheap: bring the weights to a canonical place once and run any optimizer. (5) is what makes the
// trajectory one of the *function*. `ddc/testing/gauge_invariants.h` checks all five for any gauge,
// one of your own included, in one call.
//
// ## The gauge coordinate
//
// Legs with a positive exponent form the plus side of a scale gauge, the others the minus side. Per
// channel, r = log rho_plus - log rho_minus, where rho is the norm of all that a side holds of the
// channel, measured in the other gauges' units. Under the action r moves by (e_plus + e_minus) log
// c, so it tells where on the orbit the weights are. (If the unit is held instead, the coordinate is
// the log of the first leg's norm.) For a shift gauge the coordinate is the mean
// that the shift adds to, for an exchange the vector that is exchanged. For a linear gauge it is log S,
// where S is the symmetric positive matrix with S M_plus S = M_minus and M are the Gram matrices of the
// two sides. A rotation has no such coordinate (its orbits can be compared between neighbouring
// points only); what is asked of it is that no step has a part along the orbit.

namespace ddc {

/// How the group moves the entries of a channel.
enum class Action {
  scale,  ///< W[i] -> c^e W[i], one positive number c per channel
  /// W[i] -> W[i] + e s, one vector s (over the leg's other axes) per channel. Tensors with different
  /// numbers of axes are in line at the last one, as in broadcasting; that of the first leg has the
  /// most. Several legs may act on the same indices, each for its own channels.
  shift,
  rotation,  ///< W[b] -> R W[b], one orthogonal matrix R per block of channels
  linear,    ///< W[b] -> A W[b] on legs with exponent 1, A^-T W[b] on legs with -1
  /// Moves a constant between a vector v (the first leg, or what all rows of a table have in common) and the
  /// biases downstream of it: v += s. Every matrix leg W reads v, and its bias (`through.bias`) loses W s. A
  /// further vector leg is a bias that is added to the same residual stream, and loses s itself.
  exchange,
};

template <>
inline constexpr std::array EnumNames<Action> = {"scale", "shift", "rotation", "linear",
                                                 "exchange"};

/// A weight W that reads a normalised vector n through a norm's affine part: y = W (gain * n + shift) +
/// bias. A leg with a reading acts on the effective weight W diag(gain) along its axis, and adjusts `bias`
/// so that the effective bias W shift + bias does not change. Empty names: there is none.
/// With a gain alone it describes an output that is multiplied by a learned vector, gain * (W h + b): the
/// leg then acts on W, and on the vector b, along their first axis.
struct Reading {
  std::string gain = {};
  /// The gain is `tensor + gain_offset`.
  double gain_offset = 0;
  std::string shift = {};
  std::string bias = {};

  bool empty() const { return gain.empty() && shift.empty() && bias.empty(); }
  bool operator==(const Reading&) const = default;
};

/// One tensor's part in a gauge.
struct Leg {
  /// The name of the tensor in the table of parameters.
  std::string tensor;
  /// Axis that the group acts along. A shift may have -1, an axis of size one in front of all others: the
  /// tensor is one row, as a bias is beside the rows of a table.
  int64_t axis = 0;
  /// For a scale: the exponent. For a shift: the coefficient with which the shift is added.
  double exponent = 1;
  /// c(i) for each index i along the axis; -1 where the group does not act. Empty: c(i) = i.
  std::vector<int64_t> channel_of;
  /// The group acts on `tensor + offset`: 1 for norms that store their gain as (1 + w).
  double offset = 0;
  Reading through = {};
  /// The axis consists of attention heads of this many indices, one after the other. Bases that treat
  /// heads one by one (Muon) cut the tensor there; 0: it is not cut.
  int64_t head_size = 0;
  /// For scales: the tensor is a stack of others along its first axis, such as the experts of a layer, and a
  /// channel is a pair: index i along the axis in number s of the stack belongs to c(s * size + i).
  bool stacked = false;

  bool operator==(const Leg&) const = default;
};

/// A group with its action on the parameters. How an optimizer treats it is a Treatment's to say.
struct Gauge {
  /// Unique among the gauges of one optimizer; names state in checkpoints and lines in reports.
  std::string name;
  /// Kind of the gauge, for people ("relu rescale").
  std::string kind = "custom";
  Action action = Action::scale;
  int64_t channels = 0;
  /// Rotation and linear gauges: the number of consecutive channels that one matrix mixes.
  int64_t block = 1;
  /// Rotations that leave the vector of ones alone, O(block - 1): those of a residual stream that is
  /// read through LayerNorms.
  bool fixes_ones = false;
  /// The first leg gives the unit in folded coordinates.
  std::vector<Leg> legs;

  bool mixes() const { return action == Action::rotation || action == Action::linear; }
  int64_t blocks() const { return channels / block; }
  bool operator==(const Gauge&) const = default;
};

/// Throws, naming the gauge and the leg, unless the gauge fits the tensors in `params`.
void validate(const Gauge& gauge, const Parameters& params);

/// The dimension of the group: for a scale the number of channels, for a shift that times the length
/// of the shift vector, for blocks that of their matrices.
int64_t dimension(const Gauge& gauge, const Parameters& params);

/// The group in the usual notation: "(R+)^64", "R^32", "O(16)^4", "GL(8)^2".
std::string group_name(const Gauge& gauge, const Parameters& params);

}  // namespace ddc
