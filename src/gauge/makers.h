#pragma once

#include <optional>
#include <string>
#include <utility>

#include "ddc/gauge/norm.h"
#include "ddc/gauge/rescale.h"

// What the ready-made gauges share. Not installed.

namespace ddc::makers {

inline int64_t out_axis(Layout layout) { return layout == Layout::out_in ? 0 : 1; }
inline int64_t in_axis(Layout layout) { return layout == Layout::out_in ? 1 : 0; }

inline int64_t size_of(const NamedTensor& tensor, int64_t axis, const char* role) {
  TORCH_CHECK(tensor.tensor.defined(), "ddc gauge: '", tensor.name, "' (", role,
              ") is an undefined tensor");
  TORCH_CHECK(axis < tensor.tensor.dim(), "ddc gauge: '", tensor.name, "' (", role, ") has shape ",
              tensor.tensor.sizes(), " and no axis ", axis);
  return tensor.tensor.size(axis);
}

inline std::string name_or(const std::string& name, const NamedTensor& tensor, const char* kind) {
  return name.empty() ? tensor.name + ":" + kind : name;
}

inline void add_leg(Gauge& gauge, const NamedTensor& tensor, int64_t axis, double exponent,
                    std::vector<int64_t> channel_of = {}) {
  TORCH_CHECK(tensor.tensor.defined(), "gauge '", gauge.name, "': '", tensor.name,
              "' is an undefined tensor");
  gauge.legs.push_back({.tensor = tensor.name,
                        .axis = axis,
                        .exponent = exponent,
                        .channel_of = std::move(channel_of)});
}

inline void add_leg(Gauge& gauge, const std::optional<NamedTensor>& tensor, int64_t axis,
                    double exponent, std::vector<int64_t> channel_of = {}) {
  if (tensor) add_leg(gauge, *tensor, axis, exponent, std::move(channel_of));
}

inline Reading reading(const NormReaders& norm, const NormReaders::Reader& reader) {
  Reading result;
  result.gain = norm.gain.name;
  result.gain_offset = norm.gain_is_offset ? 1 : 0;
  if (norm.shift) {
    result.shift = norm.shift->name;
    result.bias = reader.bias ? reader.bias->name : std::string();
  }
  return result;
}

}  // namespace ddc::makers
