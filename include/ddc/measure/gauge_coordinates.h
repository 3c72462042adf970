#pragma once

#include <memory>
#include <vector>

#include "ddc/gauge/gauge.h"
#include "ddc/parameters.h"
#include "ddc/treatment.h"

namespace ddc {

class CoordinateSystem;

/// Observer of the gauge coordinates of parameters (see gauge.h), whatever trains them. Binds nothing and
/// changes nothing; units are those that the parameters have at construction.
class GaugeCoordinates {
 public:
  GaugeCoordinates(const Parameters& params, const std::vector<Gauge>& gauges,
                   const Treatments& treatments = {});
  ~GaugeCoordinates();
  GaugeCoordinates(GaugeCoordinates&&) noexcept;
  GaugeCoordinates& operator=(GaugeCoordinates&&) noexcept;

  /// Coordinates of all gauges now, in their order: one number per channel, NaN in a degenerate stratum;
  /// empty for a rotation.
  std::vector<at::Tensor> measure() const;

 private:
  std::unique_ptr<CoordinateSystem> system_;
};

}  // namespace ddc
