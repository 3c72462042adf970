#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ddc/gauge/gauge.h"
#include "ddc/options.h"

// How an optimizer treats the symmetries that it binds. What a symmetry is (gauge.h) is a fact about a
// network; everything here is a choice, made by whoever constructs the optimizer:
//
//     DDCAdam(params, gauges, {.lr = 1e-3}, Treatment{.coordinates = Coordinates::standard});
//     DDCAdam(params, gauges, {.lr = 1e-3},
//             Treatments().of("QK rotation", {.second_moment = SecondMoment::body_frame}));

namespace ddc {

/// Which coordinates, unchanged by the group, the base rule works in (design of the library:
/// docs/explanation/construction.md).
enum class Coordinates {
  /// The unit of a channel is the norm of the first leg, so that the other legs appear "folded":
  /// for a norm gain, X = W diag(gamma). Default where the first leg is a vector (a gain).
  folded,
  /// The unit of a channel makes both sides equally large. Default for matrix-matrix gauges.
  balanced,
  /// The unit of a channel gives its sides the proportion of a usual (fan-in scaled) initialisation. There the
  /// weights are their own coordinates, and keep being so: the base rule does what it does without
  /// gauges, less what it moves along the orbit.
  standard,
  /// The paper's coordinates: direction, joint scale, gauge coordinate.
  polar,
};

/// Quantity that is kept fixed when the weights are lifted back from folded coordinates. The function's
/// trajectory is the same; only the place on the orbit differs. (In all other coordinates the two
/// coincide.)
enum class Hold {
  ratio,  ///< r of every channel
  unit,   ///< the first leg's norm (gamma itself): needs no reduction over the others
};

/// Rule for the gauge coordinate itself. An invariant loss has no gradient along the orbit;
/// the last two matter for losses that break the symmetry a little (a z-loss, say). Only scales and
/// shifts of weights as they are stored can be moved; other gauges are frozen.
enum class Vertical {
  frozen,  ///< held
  sgd,     ///< moved by the momentum of the orbit component of the gradient
  adam,    ///< the same, divided by the root of its second moment
};

/// The coordinate of the joint scale in polar coordinates.
enum class Radial {
  linear,  ///< Adam on s itself; decay balances the loss at s* = 1/((p^2+1) weight_decay)
  log,     ///< Adam on log s; decay is a constant subtraction and can collapse a block
};

/// Second moment that a preconditioning base (Adam) keeps of gradients that a rotation or a linear
/// gauge mixes. All constructions commute with the group ("Second-moment constructions" of the paper).
enum class SecondMoment {
  /// One number per coordinate, in a frame that is chosen once from the weights and kept. Along a
  /// trajectory without orbit part, keeping it is parallel transport.
  transported,
  /// One number per coordinate, in the eigenbasis of the weights' Gram matrix, which is followed.
  body_frame,
  /// The same; directions with an eigenvalue below tau times the largest take momentum only.
  body_frame_topk,
  per_head_scalar,  ///< one number per head
  per_head_matrix,  ///< one matrix per head, of which the inverse root is taken
  none,             ///< momentum only
};

/// Vector from which the part along the orbit of a rotation or a linear gauge is subtracted, and whether
/// scales and shifts are brought back to where they are fixed. At the canonical place nothing is
/// subtracted: the weights are moved back along the orbit after the step, or not.
enum class Projection {
  step,  ///< the step that the base rule makes: the trajectory is horizontal
  /// The momentum, before the base rule makes a step of it: the order of the paper's DDCMuon. For
  /// rotations and linear gauges, and rules that have a momentum of their own (Muon).
  momentum,
  never,  ///< none: the step commutes with the group still, and the gauge coordinate drifts
};

/// How base rules that take matrices apart (Muon) see an attention projection.
enum class Heads {
  cut,    ///< as one matrix per head
  whole,  ///< as it is
};

/// Where the weights are while they are trained; docs/explanation/construction.md has the defaults. One
/// choice for all gauges of an optimizer.
enum class Place {
  canonical,  ///< moved at construction to the place of their orbits that all copies of a function share
  in_place,  ///< where they were found; coordinates are computed from them in every step
};

template <>
inline constexpr std::array EnumNames<Place> = {"canonical", "in_place"};
template <>
inline constexpr std::array EnumNames<Heads> = {"cut", "whole"};
template <>
inline constexpr std::array EnumNames<Coordinates> = {"folded", "balanced", "standard", "polar"};
template <>
inline constexpr std::array EnumNames<Hold> = {"ratio", "unit"};
template <>
inline constexpr std::array EnumNames<Vertical> = {"frozen", "sgd", "adam"};
template <>
inline constexpr std::array EnumNames<Radial> = {"linear", "log"};
template <>
inline constexpr std::array EnumNames<SecondMoment> = {
    "transported", "body_frame", "body_frame_topk", "per_head_scalar", "per_head_matrix", "none"};
template <>
inline constexpr std::array EnumNames<Projection> = {"step", "momentum", "never"};

/// Treatment of one gauge.
struct Treatment {
  /// Off: the gauge is not respected; it only tells base rules how tensors are cut into heads.
  bool bind = true;
  /// Unset: cut where a gauge is not bound, or cuts all its tensors along one axis (queries and keys). Polar
  /// factors per head of values and outputs cost Muon quality (docs/results/quality.md).
  std::optional<Heads> heads = std::nullopt;
  /// Unset: canonical; in place where the weights have no canonical place, or are not to be moved.
  std::optional<Place> placement = std::nullopt;
  /// Unset: folded where the first leg is a vector that others read through, balanced otherwise.
  std::optional<Coordinates> coordinates = std::nullopt;
  /// Unset: the ratio; the unit where other gauges act through the first leg (a gain).
  std::optional<Hold> hold = std::nullopt;
  Vertical vertical = Vertical::frozen;
  Radial radial = Radial::linear;
  double max_log_step = 0.1;
  SecondMoment second_moment = SecondMoment::transported;
  double tau = 1e-2;
  double frame_drift = 0.1;
  int64_t frame_interval = 1000;
  bool procrustes = false;
  double rebalance_above = 1e-12;
  /// Unset: the step; at the canonical place never for the rotation of a stream.
  std::optional<Projection> project = std::nullopt;
  /// Unset: 1; at the canonical place 10 for gauges that mix channels, but for rotary planes that are turned
  /// back in the pass of a step.
  std::optional<int64_t> every = std::nullopt;
  bool decay_held = false;

  OptionList options();
  bool operator==(const Treatment&) const = default;
};

/// Treatments of all gauges of an optimizer: one for all, and others by kind or by name.
class Treatments {
 public:
  Treatments(Treatment all = {}) : all_(all) {}  // NOLINT: implicit, most often there is only one

  /// Sets the treatment of the gauges of a kind, or of the one with a name, which goes before.
  Treatments& of(const std::string& kind_or_name, Treatment treatment);
  /// Sets one option, for all gauges where `kind_or_name` is empty (then for the others set so far
  /// too). Throws, naming the nearest option, if there is none of that name.
  Treatments& set(const std::string& option, const OptionValue& value,
                  const std::string& kind_or_name = "");

  /// Says that the weights are at their canonical place already, as after a copy of an optimizer.
  Treatments& already_placed(bool placed = true) {
    placed_ = placed;
    return *this;
  }
  bool are_placed() const { return placed_; }
  /// Says that steps are made in one pass over memory, in which rotary planes are turned back for nothing.
  Treatments& in_one_pass(bool one_pass) {
    one_pass_ = one_pass;
    return *this;
  }
  bool are_in_one_pass() const { return one_pass_; }

  const Treatment& of(const Gauge& gauge) const;
  /// Options that were set for this gauge, by kind or name. What is said for all is meant where it applies;
  /// what is said of one must be possible.
  std::set<std::string> specific(const Gauge& gauge) const;
  /// Throws, naming the nearest, if a kind or name is that of none of the gauges.
  void check(const std::vector<Gauge>& gauges) const;

 private:
  struct Other {
    Treatment treatment;
    /// Options that were set for it.
    std::set<std::string> said;
  };
  const Other* find(const Gauge& gauge) const;

  Treatment all_;
  std::map<std::string, Other> others_;
  bool placed_ = false;
  bool one_pass_ = false;
};

/// Differences from the defaults: "coordinates=standard, project=never"; empty if nothing does.
std::string to_string(const Treatment& treatment);

}  // namespace ddc
