#include "labels.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace ddc {
namespace {

bool ends_with(const std::string& name, const char* suffix) {
  const std::string end(suffix);
  return name.size() >= end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
}

/// A gated layer has a second tensor like the first, the gate, that reads the same and takes part in
/// nothing else; or one tensor holds both.
bool is_gated(const Search& search, const Gauge& gauge) {
  const auto& leg = gauge.legs.front();
  const auto& in = search.probe.params()[leg.tensor].tensor;
  const auto& used = search.used[search.slot_of(leg.tensor, leg.axis)];
  if (std::find(used.begin(), used.end(), false) != used.end()) return true;
  const size_t here = search.slot(search.slot_of(leg.tensor, leg.axis)).tensor;
  for (size_t k = 0; k < search.probe.slots().size(); ++k) {
    const auto& slot = search.slot(k);
    const auto& tensor = search.tensor_of(k);
    if (slot.stacked || slot.axis != leg.axis || tensor.tensor.sizes() != in.sizes()) continue;
    const bool own = std::any_of(gauge.legs.begin(), gauge.legs.end(),
                                 [&](const Leg& other) { return other.tensor == tensor.name; });
    if (own || !search.is_free(k, 0, slot.size)) continue;
    const bool read_together =
        std::any_of(search.gains.begin(), search.gains.end(), [&](const Gain& gain) {
          const auto reads = [&](const std::string& name) {
            return std::any_of(gain.readers.begin(), gain.readers.end(),
                               [&](const Gain::Reader& reader) { return reader.weight == name; });
          };
          return reads(leg.tensor) && reads(tensor.name);
        });
    const bool neighbours = slot.tensor + 2 >= here && slot.tensor <= here + 2;
    if (read_together || (search.gains.empty() && neighbours)) return true;
  }
  return false;
}

void label_scale_(const Search& search, Gauge& gauge) {
  const auto& first = gauge.legs.front().tensor;
  const auto& params = search.probe.params();
  for (const auto& gain : search.gains) {
    if (std::none_of(gauge.legs.begin(), gauge.legs.end(),
                     [&](const Leg& leg) { return leg.tensor == gain.gain; }) ||
        gauge.legs.front().exponent < 0 || params[first].tensor.dim() != 1) {
      continue;
    }
    gauge.kind = gain.on_output ? "layer scale" : "norm scale";
    gauge.name = gain.gain + ":scale";
    // The gain carries the unit.
    std::stable_partition(gauge.legs.begin(), gauge.legs.end(),
                          [&](const Leg& leg) { return leg.tensor == gain.gain; });
    return;
  }
  const bool vectors = std::all_of(gauge.legs.begin(), gauge.legs.end(), [&](const Leg& leg) {
    return params[leg.tensor].tensor.dim() == 1;
  });
  if (vectors) {
    gauge.kind = "diagonal linear";
    gauge.name = first + ":rescale";
    return;
  }
  if (ends_with(gauge.name, ":qk_scale")) {
    gauge.kind = "QK plane scale";
    return;
  }
  gauge.name = first + ":rescale";
  gauge.kind = is_gated(search, gauge) ? "glu rescale" : "relu rescale";
}

void label_blocks_(const Search& search, Gauge& gauge) {
  // Queries and keys are both rows of their weights; the output projection is read by columns.
  std::vector<int64_t> axes;
  for (const auto& leg : gauge.legs) {
    if (search.probe.params()[leg.tensor].tensor.dim() > 1) axes.push_back(leg.axis);
  }
  const bool same_axis = std::equal(axes.begin() + 1, axes.end(), axes.begin());
  const bool torus = gauge.action == Action::rotation && gauge.block == 2;
  const std::string what = gauge.action == Action::linear ? "linear" : torus ? "torus" : "rotation";
  const bool shared = std::any_of(gauge.legs.begin(), gauge.legs.end(), [&](const Leg& leg) {
    return search.probe.params()[leg.tensor].tensor.size(leg.axis) > gauge.channels;
  });
  if (!same_axis && gauge.action == Action::linear && gauge.blocks() == 1 && !shared) {
    gauge.kind = "linear pair";
    gauge.name = gauge.legs.front().tensor + ":linear";
    for (auto& leg : gauge.legs) leg.head_size = 0;
    return;
  }
  gauge.kind = (same_axis ? "QK " : "VO ") + what;
  gauge.name = gauge.legs.front().tensor + (same_axis ? ":qk_" : ":vo_") + what;
}

}  // namespace

void label_(const Search& search, Gauge& gauge) {
  if (gauge.kind != "custom") return;
  gauge.action == Action::scale ? label_scale_(search, gauge) : label_blocks_(search, gauge);
}

void label_shift_(const Parameters& params, Gauge& gauge, bool shifts_logits) {
  const auto& tensor = params[gauge.legs.front().tensor];
  gauge.kind = !shifts_logits             ? "residual mean shift"
               : tensor.tensor.dim() == 1 ? "CE bias shift"
                                          : "CE row shift";
  gauge.name = tensor.name + (shifts_logits ? ":shift" : ":mean");
}

}  // namespace ddc
