#pragma once

#include <array>
#include <span>

#include "coordinates/maps/absorb_bias.h"
#include "coordinates/maps/centre.h"
#include "coordinates/maps/change_basis.h"
#include "coordinates/maps/effective_weight.h"
#include "coordinates/maps/polar.h"
#include "coordinates/maps/scale.h"

namespace ddc {

/// Coordinates of one component that no gauge can change: maps nested from outside in, in the order in which
/// they are declared here. Weights and gradients go through the list forwards, stepped coordinates back.
///
/// What a map measures is measured inside the maps before it. A level of the nesting is named by the map that
/// comes next; null is the outermost level as `from`, the innermost one as `to`.
class CoordinateMaps {
 public:
  explicit CoordinateMaps(const ComponentView& component) : view(component) {}
  CoordinateMaps(const CoordinateMaps&) = delete;  // maps refer to the view
  CoordinateMaps& operator=(const CoordinateMaps&) = delete;

  const ComponentView view;
  AbsorbBias absorb_bias{view};
  Centre centre{view};
  Scale scale{view};
  EffectiveWeight effective_weight{view};
  ChangeBasis change_basis{view};
  Polar polar{view};
  const std::array<CoordinateMap*, 6> all{&absorb_bias,      &centre,       &scale,
                                          &effective_weight, &change_basis, &polar};

  /// Maps from one level to another.
  std::span<CoordinateMap* const> between(const CoordinateMap* from, const CoordinateMap* to) const;
  /// Lets the maps outside a level take notes of the weights.
  void read_(const CoordinateMap* to = nullptr);
  /// Weights of one tensor, with their offset, as a float64 copy. In float32 a factor and its inverse do not
  /// multiply to one, and that error, the same in every step, would make weights grow or shrink.
  at::Tensor value(size_t tensor) const;
  /// Coordinates of one tensor, as long as the weights are those that were read.
  at::Tensor coordinates(size_t tensor, const CoordinateMap* to = nullptr) const;
};

}  // namespace ddc
