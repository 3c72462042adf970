#include "ddc/measure/gauge_coordinates.h"

#include "coordinates/coordinate_system.h"

namespace ddc {
namespace {

std::vector<GroupedParameter> in_one_group(const Parameters& params) {
  std::vector<GroupedParameter> grouped;
  for (const auto& parameter : params) grouped.push_back({parameter, 0});
  return grouped;
}

}  // namespace

GaugeCoordinates::GaugeCoordinates(const Parameters& params, const std::vector<Gauge>& gauges,
                                   const Treatments& treatments)
    : system_(std::make_unique<CoordinateSystem>(in_one_group(params), gauges, treatments)) {}

GaugeCoordinates::~GaugeCoordinates() = default;
GaugeCoordinates::GaugeCoordinates(GaugeCoordinates&&) noexcept = default;
GaugeCoordinates& GaugeCoordinates::operator=(GaugeCoordinates&&) noexcept = default;

std::vector<at::Tensor> GaugeCoordinates::measure() const {
  std::vector<at::Tensor> result;
  for (size_t k = 0; k < system_->plan().gauges.size(); ++k) {
    result.push_back(system_->gauge_coordinate(k).clone());
  }
  return result;
}

}  // namespace ddc
