#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddc/treatment.h"

// Interface of base rules: what one is given, and what it must provide. A rule is a struct of static members:
//
//     struct SignRule {
//       static constexpr const char* name = "DDCSign";
//       static constexpr const char* help = "sign descent";
//       struct Options {                                     // lr, weight_decay and maximize are a must
//         double lr = 1e-3, momentum = 0.9, weight_decay = 0;
//         bool maximize = false;
//         OptionList options();
//       };
//       struct State {
//         at::Tensor average;
//         StateTensors tensors() { return {{"average", &average}}; }
//       };
//       static State init(const TensorView& view, const Options&) { return {view.zeros()}; }
//       static at::Tensor step(const at::Tensor& gradient, int64_t step, const TensorView& view,
//                              State& state, const Options& options);
//     };
//     ddc::Lifted<SignRule> optimizer(params, gauges, {.lr = 1e-2});
//
// and inherits every gauge, decay, param groups, checks, checkpoints and reports; with a line in
// src/optim/registry.cpp also Python, the command line and the contract tests. examples/own_base.cpp is a
// complete one. Optional members:
//
//     change_basis(State&, const BasisChange&)   lets body frames follow the weights
//     step_settings(const Options&)              the options of the scalar rules on gauge coordinates
//     momentum(...), displacement(...)           `step` in two parts, between which the momentum may be
//                                                projected (Projection::momentum)
//     check(const Options&, const TensorView&)   refuses a tensor that the rule cannot step
//     flops(view, options)                       operations of its matrices in a step. The rule is then called
//                                                for several tensors at once, the largest first
//     in_place(state, step, options, entry)      says by which kernel, and with which tensors of state, a
//                                                tensor is stepped as it is stored, decay included, in one
//                                                pass over memory; false if by none

namespace ddc {

class BlockMap;
namespace kernels {
struct PassEntry;
}

/// Options of a step that the construction itself needs, of one tensor.
struct StepSettings {
  double lr = 0;
  double weight_decay = 0;
  bool maximize = false;
  /// For the scalar Adam rules on gauge coordinates and joint scales.
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
};

/// Axis that consists of heads of equal size, one after the other.
struct HeadCut {
  int64_t axis;
  int64_t size;
};

/// Cut of a tensor into the heads that a gauge mixes.
struct HeadView {
  const BlockMap& map;
  SecondMoment second_moment;
  /// For body_frame_topk, [blocks, block]: directions that are adapted. Undefined: all.
  at::Tensor live;
};

/// Tensor that a base rule steps, as far as the rule may know it beside its gradient.
struct TensorView {
  std::string name;
  /// The parameter, for its shape, memory format and device.
  at::Tensor parameter;
  std::vector<HeadView> heads;
  /// Heads of an attention projection, bound or not by a gauge that mixes them.
  std::optional<HeadCut> cut;

  /// float64 for float64 parameters, float32 for all narrower ones: the type of gradients and state.
  at::ScalarType compute_type() const;
  /// Zeros of the parameter's shape and memory format, in the compute type.
  at::Tensor zeros() const;
  at::Tensor zeros(at::IntArrayRef shape) const;
  at::Tensor zeros(at::IntArrayRef shape, at::ScalarType type) const;
};

/// Tensors of a state by name. An undefined tensor is not in use.
using StateTensors = std::vector<std::pair<std::string, at::Tensor*>>;

/// Change of basis of coordinates along one axis of a tensor, block by block.
class BasisChange {
 public:
  BasisChange(const BlockMap& map, const at::Tensor& basis) : map_(map), basis_(basis) {}

  /// Changes a vector, such as a momentum; in place. Undefined tensors are left alone.
  void apply_(at::Tensor& vector) const;
  /// Changes second moments by the squares of the basis, which know nothing of signs and permutations.
  void apply_to_squares_(at::Tensor& squares) const;

 private:
  const BlockMap& map_;
  at::Tensor basis_;
};

}  // namespace ddc
