#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ddc/gauge/gauge.h"

// Group elements and what they do to parameters and gradients. Deduced from the legs: a gauge does
// not write its action.

namespace ddc {

/// An element of a gauge's group, in float64:
///
///     scale      log c, of shape [channels]
///     shift      s, of the first leg's shape with its axis running over channels
///     exchange   s, of shape [channels]
///     rotation   orthogonal matrices, [blocks, block, block]
///     linear     invertible matrices, [blocks, block, block]
///
/// The first three are added, matrices are multiplied.
using GroupElement = at::Tensor;

GroupElement identity_element(const Gauge& gauge, const Parameters& params);
/// Normally distributed with standard deviation `size`; matrices are exponentials of such ones.
GroupElement random_element(const Gauge& gauge, const Parameters& params, double size,
                            std::optional<at::Generator> generator = std::nullopt);
/// The element that acts as `second` does after `first`.
GroupElement compose(const Gauge& gauge, const GroupElement& second, const GroupElement& first);
GroupElement inverse(const Gauge& gauge, const GroupElement& element);

/// Moves the parameters by the element, in place.
void act_(const Gauge& gauge, const GroupElement& element, const Parameters& params);

/// Moves gradients (a table of the same names) by the element as gradients move when the
/// parameters do, in place. `params` are the parameters before they are moved.
void act_on_gradient_(const Gauge& gauge, const GroupElement& element, const Parameters& params,
                      const Parameters& gradients);

/// The same for several gauges at once. An element of their product has one part per gauge; the
/// parts act in the order of the gauges.
std::vector<GroupElement> random_element(const std::vector<Gauge>& gauges, const Parameters& params,
                                         double size,
                                         std::optional<at::Generator> generator = std::nullopt);
void act_(const std::vector<Gauge>& gauges, const std::vector<GroupElement>& element,
          const Parameters& params);
void act_on_gradient_(const std::vector<Gauge>& gauges, const std::vector<GroupElement>& element,
                      const Parameters& params, const Parameters& gradients);

/// By how much the tensors that a gauge moves move along an element of its Lie algebra, by name, in
/// float64: the derivative at t = 0 of acting with exp(t element). Elements of the algebra have the shape
/// of group elements; those of a rotation are antisymmetric, and their rows sum to zero if it
/// `fixes_ones`. The map is linear, and noether_charge is its transpose.
std::map<std::string, at::Tensor> orbit_tangent(const Gauge& gauge, const at::Tensor& element,
                                                const Parameters& params);

/// The orbit's tangent space at `params`: one row per dimension of the group, one column per
/// parameter entry (tensors flattened, in the order of the table), float64.
at::Tensor orbit_tangents(const Gauge& gauge, const Parameters& params);

/// The Noether charges of a gauge: the derivative of the loss along the orbit, zero on every batch
/// if the gauge is one. `scale` is the sum of the absolute values of what was added up (for
/// matrices, a bound of it), against which "zero" has to be judged.
///
/// <gradients, orbit_tangent(element)> = <charge, element>, but half of it for a rotation, whose
/// charges are antisymmetric and have every derivative twice.
struct Charge {
  at::Tensor value;
  at::Tensor scale;
};
Charge noether_charge(const Gauge& gauge, const Parameters& params, const Parameters& gradients);

}  // namespace ddc
