#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "coordinates/blocks.h"
#include "coordinates/section.h"
#include "coordinates/step.h"

namespace ddc {

/// Gauges bound to tensors: the plan, and where on its orbit each gauge is held. Steps are made one
/// component at a time (coordinates/step.h).
class CoordinateSystem {
 public:
  CoordinateSystem() = default;
  /// Compiles the gauges and reads units, frames and held coordinates off the current weights.
  CoordinateSystem(const std::vector<GroupedParameter>& parameters,
                   const std::vector<Gauge>& gauges, const Treatments& treatments = {});

  const Plan& plan() const { return plan_; }
  /// Names of the gauges with their treatments, resolved.
  std::vector<std::pair<std::string, Treatment>> treatments() const;

  /// A further tensor on which no gauge acts.
  void add(const GroupedParameter& parameter);

  /// The gauge coordinate as measured on the weights now: r per channel, a shift's mean, log S per
  /// block of a linear gauge; empty for a rotation. NaN in a degenerate stratum.
  at::Tensor gauge_coordinate(size_t gauge) const;
  int64_t degenerate_channels(size_t gauge) const;
  /// The same of other weights: those that `tensor` gives by place in the plan.
  CoordinateSystem at(const std::function<at::Tensor(size_t)>& tensor) const;

  /// Lets channels of a scale leave and enter degenerate strata, on the squares of stepped coordinates.
  void update_binding_(const Squares& squares, size_t gauge) {
    const auto& of = plan_.gauges[gauge];
    ddc::update_binding_(of, squares, smallest_norm(plan_, of), gauge_states_[gauge]);
  }

  std::vector<GaugeState>& gauge_states() { return gauge_states_; }
  const std::vector<GaugeState>& gauge_states() const { return gauge_states_; }
  std::vector<ScalarMoments>& radial_states() { return radial_states_; }
  const std::vector<ScalarMoments>& radial_states() const { return radial_states_; }

 private:
  void bind_(const Component& component, const std::vector<bool>& all);
  /// Finds units and linear frames together; `x` is centred.
  void bind_sections_(CoordinateMaps& maps, const Tensors& x);

  Plan plan_;
  std::vector<GaugeState> gauge_states_;
  std::vector<ScalarMoments> radial_states_;
};

}  // namespace ddc
