#include "coordinates/coordinate_maps.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace ddc {

std::span<CoordinateMap* const> CoordinateMaps::between(const CoordinateMap* from,
                                                        const CoordinateMap* to) const {
  return {from == nullptr ? all.begin() : std::ranges::find(all, from), std::ranges::find(all, to)};
}

void CoordinateMaps::read_(const CoordinateMap* to) {
  for (auto* map : between(nullptr, to)) {
    map->read([&](size_t t) { return coordinates(t, map); });
  }
}

at::Tensor CoordinateMaps::value(size_t t) const {
  const auto& tensor = view.plan.tensors[t];
  auto x = tensor.tensor.detach().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  if (tensor.offset != 0) x.add_(tensor.offset);
  return x;
}

at::Tensor CoordinateMaps::coordinates(size_t t, const CoordinateMap* to) const {
  auto x = value(t);
  for (const auto* map : between(nullptr, to)) map->to_coordinates_(t, x);
  return x;
}

}  // namespace ddc
