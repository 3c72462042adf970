#include "plan_checks.h"

#include <ATen/ATen.h>

#include <unordered_map>

#include "gauge/leg_maps.h"

namespace ddc {
namespace {

/// Whether indices with the same entry in `groups` have the same entry in `values` (empty: i -> i).
bool is_constant_within(const std::vector<int64_t>& values, const std::vector<int64_t>& groups,
                        int64_t size) {
  std::unordered_map<int64_t, int64_t> value_of_group;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t group = groups.empty() ? i : groups[i];
    const int64_t value = values.empty() ? i : values[i];
    if (group >= 0 && value_of_group.emplace(group, value).first->second != value) return false;
  }
  return true;
}

/// Whether two legs act on none of the same indices of one axis.
bool act_apart(const Leg& a, const Leg& b) {
  if (a.stacked == b.stacked) return a.axis != b.axis || disjoint(a, b);
  return a.axis != b.axis && (a.stacked ? b : a).axis != 0;
}

/// A matrix may mix along an axis only what no other gauge tells apart there.
void check_blocks(const Plan& plan, const TensorPlan& tensor) {
  for (const auto& use : tensor.blocks) {
    const auto& gauge = plan.gauges[use.gauge].gauge;
    const auto& leg = gauge.legs[use.leg];
    std::vector<int64_t> block_of(tensor.tensor.size(leg.axis));
    for (size_t i = 0; i < block_of.size(); ++i) {
      const int64_t c = leg.channel_of.empty() ? static_cast<int64_t>(i) : leg.channel_of[i];
      block_of[i] = c < 0 ? -1 : c / gauge.block;
    }
    for (const auto& scale : tensor.scales) {
      const auto& other = plan.gauges[scale.gauge].gauge;
      const auto& scale_leg = other.legs[scale.leg];
      const bool seen_through = !leg.through.gain.empty() && !other.legs.empty() &&
                                other.legs.front().tensor == leg.through.gain;
      TORCH_CHECK(
          seen_through || act_apart(leg, scale_leg) ||
              (gauge.action == Action::rotation && !scale_leg.stacked &&
               is_constant_within(scale_leg.channel_of, block_of, tensor.tensor.size(leg.axis))),
          "gauges '", gauge.name, "' and '", other.name, "' both act on axis ", leg.axis, " of '",
          tensor.name, "': ",
          gauge.action == Action::linear ? "the linear one contains the other"
                                         : "the scale tells apart what the rotation mixes");
      TORCH_CHECK(!seen_through || plan.gauges[scale.gauge].is_folded(), "gauge '", gauge.name,
                  "' acts through '", leg.through.gain, "', so gauge '", other.name,
                  "' must have folded coordinates");
    }
    for (const auto& other : tensor.blocks) {
      if (&other == &use) continue;
      const auto& other_gauge = plan.gauges[other.gauge].gauge;
      TORCH_CHECK(act_apart(leg, other_gauge.legs[other.leg]), "gauges '", gauge.name, "' and '",
                  other_gauge.name, "' both mix axis ", leg.axis, " of '", tensor.name, "'");
    }
  }
}

}  // namespace

/// A gain that other gauges act through is kept itself (Hold::unit), not its ratio: the others' group elements
/// are relative to the gain as it is.
void choose_hold_(Plan& plan) {
  for (auto& gauge : plan.gauges) {
    if (!gauge.is_scale()) continue;
    for (auto& leg : gauge.legs) {
      const auto& through = plan.tensors[leg.tensor].through;
      leg.seen_through_first = through && through->gain == gauge.legs.front().tensor;
    }
    const auto& first = plan.tensors[gauge.legs.front().tensor];
    gauge.treatment.hold =
        gauge.treatment.hold.value_or(first.read_by.empty() ? Hold::ratio : Hold::unit);
    TORCH_CHECK(first.read_by.empty() || gauge.treatment.hold == Hold::unit, "gauge '",
                plan.gauges[first.read_by.front()].gauge.name, "' acts through '", first.name,
                "', so gauge '", gauge.gauge.name, "' must hold the unit (hold = unit)");
  }
}

void check_sharing(const Plan& plan) {
  for (const auto& tensor : plan.tensors) {
    check_blocks(plan, tensor);
    for (const auto& shift : tensor.shifts) {
      const auto& shift_gauge = plan.gauges[shift.gauge];
      for (const auto& scale : tensor.scales) {
        const auto& scale_gauge = plan.gauges[scale.gauge];
        const auto& shift_leg = shift_gauge.gauge.legs[shift.leg];
        const auto& scale_leg = scale_gauge.gauge.legs[scale.leg];
        const bool seen_through = !shift_leg.through.gain.empty() &&
                                  scale_gauge.gauge.legs.front().tensor == shift_leg.through.gain;
        TORCH_CHECK(!seen_through || scale_gauge.is_folded(), "gauge '", shift_gauge.gauge.name,
                    "' acts through '", shift_leg.through.gain, "', so gauge '",
                    scale_gauge.gauge.name, "' must have folded coordinates");
        const bool of_rows = shift_gauge.gauge.action == Action::exchange &&
                             tensor.tensor.dim() > 1 && scale_leg.axis != shift_leg.axis;
        TORCH_CHECK(!of_rows, "gauge '", scale_gauge.gauge.name, "' scales rows of '", tensor.name,
                    "' that gauge '", shift_gauge.gauge.name,
                    "' shifts together: they do not form the group that either describes");
        TORCH_CHECK(seen_through || act_apart(shift_leg, scale_leg) ||
                        (!scale_leg.stacked &&
                         is_constant_within(scale_leg.channel_of, shift_leg.channel_of,
                                            tensor.tensor.size(shift_leg.axis))),
                    "gauge '", scale_gauge.gauge.name, "' scales entries along axis ",
                    scale_leg.axis, " of '", tensor.name, "' differently that gauge '",
                    shift_gauge.gauge.name,
                    "' shifts together: they do not form the group that either describes");
      }
      for (const auto& other : tensor.shifts) {
        TORCH_CHECK(
            other.gauge == shift.gauge || act_apart(plan.gauges[other.gauge].gauge.legs[other.leg],
                                                    shift_gauge.gauge.legs[shift.leg]),
            "gauges '", shift_gauge.gauge.name, "' and '", plan.gauges[other.gauge].gauge.name,
            "' shift the same axis of '", tensor.name, "'");
        const bool of_rows = shift_gauge.gauge.action == Action::exchange &&
                             tensor.tensor.dim() > 1 &&
                             plan.gauges[other.gauge].gauge.action == Action::shift;
        TORCH_CHECK(!of_rows, "gauges '", shift_gauge.gauge.name, "' and '",
                    plan.gauges[other.gauge].gauge.name, "' both shift all rows of '", tensor.name,
                    "'");
      }
      if (shift_gauge.shift_legs() == 1) continue;
      const auto& first = plan.tensors[shift_gauge.legs.front().tensor];
      bool same = first.scales.size() == tensor.scales.size();
      for (size_t i = 0; same && i < tensor.scales.size(); ++i) {
        same = first.scales[i].gauge == tensor.scales[i].gauge;
      }
      TORCH_CHECK(same, "gauge '", shift_gauge.gauge.name, "' shifts '", first.name, "' and '",
                  tensor.name, "' together, but not the same gauges scale them");
    }
  }
}

}  // namespace ddc
