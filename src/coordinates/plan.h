#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "coordinates/dense.h"
#include "ddc/gauge/channel_map.h"
#include "ddc/gauge/gauge.h"
#include "ddc/optim/rule.h"
#include "ddc/parameters.h"
#include "gauge/block_map.h"

// The compiled form of (parameters, gauges): which factors multiply which axis of which tensor, and
// which reductions a step needs. Everything that depends on names, shapes and channel maps is
// resolved here, once; a step only walks these tables. Kernels that work from the plan need to know
// neither gauges nor base rules.

namespace ddc {

/// A leg whose tensor has been found.
struct BoundLeg {
  size_t tensor;  ///< index into Plan::tensors
  double exponent;
  ChannelMap map;
  /// Number of axes (in front) that the tensor of the first leg of a shift has more. The map is of a
  /// tensor with as many.
  int64_t more_axes = 0;
  /// Blocks of a gauge that mixes channels.
  std::optional<BlockMap> blocks;
  /// The tensor of the gain through which the leg is seen, and that of the bias beside it.
  std::optional<size_t> gain;
  std::optional<size_t> bias;
  /// The tensor is multiplied by the gauge's own first leg, its gain: the gauge's factor cancels in the
  /// product that is measured, and re-balancing must not apply it again.
  bool seen_through_first = false;
  /// Whether a gauge that is bound after this one also mixes another axis of the tensor. Until then entries
  /// along that axis are in an arbitrary basis, and must not be used one by one.
  bool mixed_later = false;
  /// Where what is remembered of the gauge is: with the tensor of its first leg.
  at::Device home = at::kCPU;

  /// u^(sign * e) along the leg's axis.
  at::Tensor factor(const at::Tensor& log_unit, double sign,
                    const at::TensorOptions& options) const;
};

/// A weight that is seen through a gain: X * gain along the axis.
struct SeenThrough {
  size_t gain;
  int64_t axis;
};

/// What a vector adds to a bias through a matrix that reads it, `sink + matrix source`, or as it is. In
/// coordinates the bias holds all of it; where on the orbit the vector is then makes no difference.
struct Drain {
  size_t source;
  ChannelMap source_map;
  /// None: the vector itself is added.
  std::optional<size_t> matrix;
  /// Channels of the matrix, or of the sink.
  ChannelMap map;
  size_t sink;

  /// The vector that the source is, or that all its rows have in common, along the axis of what reads it.
  at::Tensor given(const at::Tensor& value) const {
    return map.gather_vector(source_map.mean_all(value), 0);
  }
};

/// All legs whose exponents have the same sign.
struct Side {
  std::vector<size_t> legs;
  /// The smallest |exponent| on the side: its norm moves by exponent * log c.
  double exponent = 0;
  /// The norm that a channel of this side has at a usual (fan-in scaled) initialisation. A function
  /// of shapes alone, and so invariant; the yardstick where the other side is zero.
  at::Tensor reference;

  bool empty() const { return legs.empty(); }
};

struct GaugePlan {
  Gauge gauge;
  /// With what it leaves open resolved to what it is here.
  Treatment treatment;
  std::vector<BoundLeg> legs;
  Side plus;
  Side minus;
  /// The reference norm of the first leg, which carries the unit in folded coordinates.
  at::Tensor first_reference;
  /// Norm of (e_plus, e_minus): turns the orbit direction into a unit vector in log-norm space.
  double exponent_norm = 0;
  /// Inverse of the inner products of what the channels of a shift add, [channels, channels]; for several
  /// legs on one tensor.
  at::Tensor inverse_gram;
  /// Rows of an exchange's first leg, in each of which the vector is.
  double rows = 1;
  /// Basis of the complement of the vector of ones, for rotations that leave that vector alone.
  at::Tensor complement;
  /// Whether the gauge acts on two axes of one tensor (a recurrent weight, W -> D W D^-1).
  bool self_coupled = false;

  at::Device device() const { return legs.front().home; }
  /// Type and device of all that is remembered in numbers.
  at::TensorOptions options() const { return at::TensorOptions(at::kDouble).device(device()); }
  bool is_scale() const { return gauge.action == Action::scale; }
  bool is_folded() const { return treatment.coordinates == Coordinates::folded; }
  bool projects(Projection when) const { return treatment.project == when; }
  /// Moves by adding: shifts, and the first leg of an exchange.
  bool is_shift() const {
    return gauge.action == Action::shift || gauge.action == Action::exchange;
  }
  bool is_linear() const { return gauge.action == Action::linear; }
  /// The legs along which an additive gauge adds its shift.
  size_t shift_legs() const { return gauge.action == Action::exchange ? 1 : legs.size(); }
  /// By how much r moves under log c = 1.
  double ratio_weight() const { return plus.exponent + minus.exponent; }
};

/// A set of legs whose joint norm is one coordinate in polar coordinates: a side of a gauge.
/// Adjacent gauges of a chain share nodes.
struct PolarNode {
  struct Member {
    size_t tensor;
    ChannelMap map;
  };
  /// A gauge that moves the node, and the exponent (with its sign) with which it does.
  struct Mover {
    size_t gauge;
    double exponent;
  };
  std::vector<Member> members;
  std::vector<Mover> movers;
};

/// The joint scale of connected polar gauges, s = prod_n rho_n^weight_n: the one combination of
/// their norms that none of them moves. For a single gauge (e_plus, e_minus) = (1, p) it is the
/// paper's s = rho_1^p rho_2.
struct RadialMode {
  std::vector<size_t> nodes;
  std::vector<double> weights;
  double weight_norm_squared = 0;
  /// Gauge whose options (radial, max_log_step) govern the mode, and whose first tensor's param
  /// group gives learning rate and decay.
  size_t gauge;
};

struct TensorPlan {
  struct Use {
    size_t gauge;
    size_t leg;
  };
  std::string name;
  at::Tensor tensor;
  size_t param_group;
  double offset = 0;
  std::vector<Use> scales;
  std::vector<Use> shifts;
  /// Rotations and linear gauges.
  std::vector<Use> blocks;
  std::optional<SeenThrough> through;
  std::optional<HeadCut> cut;
  /// Gauges that act through this tensor as a gain.
  std::vector<size_t> read_by;
  /// Nodes through which polar gauges see the tensor, with the member's index in each.
  struct NodeUse {
    size_t node;
    size_t member;
  };
  std::vector<NodeUse> nodes;

  bool has_gauge() const {
    return !scales.empty() || !shifts.empty() || !blocks.empty() || !read_by.empty();
  }
  /// float64 for float64 parameters, float32 for all narrower ones.
  at::ScalarType compute_type() const;
};

/// Tensors that gauges tie together; a step treats one component at a time.
///
/// Gauges are in the order of re-balancing: folded gauges first, since nothing moves their units; gauges that
/// mix channels last, those that others see through first among them.
struct Component : Items {
  /// In an order in which no drain fills a vector that an earlier one has emptied.
  std::vector<size_t> drains;
  std::vector<size_t> radial_modes;
  /// Whether re-balancing one gauge disturbs another one, so that a single sweep is not enough.
  bool coupled = false;
};

struct Plan {
  std::vector<TensorPlan> tensors;
  std::vector<GaugePlan> gauges;
  std::vector<PolarNode> nodes;
  std::vector<RadialMode> radial_modes;
  std::vector<Drain> drains;
  std::vector<Component> components;
  /// Per item: its place in the list of its component.
  Items places;

  void add(Component component);
  const BoundLeg& leg(const TensorPlan::Use& use) const { return gauges[use.gauge].legs[use.leg]; }
  /// Whether two legs move entries in common of one tensor: along different axes they do, along the same one
  /// if they share an index. (Queries, keys and values in one projection do not.)
  bool meet(const TensorPlan::Use& a, const TensorPlan::Use& b) const;
};

/// Whether moving one of these gauges along its orbit changes what another one is re-balanced by.
bool is_coupled(const Plan& plan, const std::vector<size_t>& gauges);

/// Tensors, found by index in Plan::tensors.
using Tensors = PerTensor<at::Tensor>;

/// Whether base rules are told of the heads that a gauge acts on (Treatment::heads).
bool tells_heads(const Gauge& gauge, const Treatment& treatment);

/// A parameter and the index of the param group it belongs to.
struct GroupedParameter {
  NamedTensor parameter;
  size_t param_group;
};

/// Throws, naming gauge and tensor, if a gauge does not fit the parameters. Gauges that are not to be bound
/// only say how tensors are cut into heads.
Plan compile(const std::vector<GroupedParameter>& parameters, const std::vector<Gauge>& gauges,
             const Treatments& treatments = {});

}  // namespace ddc
