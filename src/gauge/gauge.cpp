#include "ddc/gauge/gauge.h"

#include <ATen/ATen.h>

#include <cmath>
#include <sstream>
#include <vector>

namespace ddc {
namespace {

/// The shape of the shift vector that one leg admits: the tensor's without the leg's axis.
std::vector<int64_t> free_shape(const Leg& leg, const at::Tensor& tensor) {
  auto shape = tensor.sizes().vec();
  shape.erase(shape.begin() + leg.axis);
  return shape;
}

void validate_leg(const Gauge& gauge, size_t k, const Parameters& params,
                  std::vector<bool>& in_use) {
  const Leg& leg = gauge.legs[k];
  const auto where = [&] {
    std::ostringstream text;
    text << "gauge '" << gauge.name << "', leg " << k << " ('" << leg.tensor << "'): ";
    return text.str();
  };
  TORCH_CHECK(params.contains(leg.tensor), where(), "no parameter has that name");
  const auto& tensor = params[leg.tensor].tensor;
  TORCH_CHECK(at::isFloatingType(tensor.scalar_type()), where(),
              "must be a floating-point tensor, is ", tensor.scalar_type());
  TORCH_CHECK(leg.axis >= 0 && leg.axis < tensor.dim(), where(), "axis ", leg.axis,
              " is not one of a tensor of shape ", tensor.sizes());
  TORCH_CHECK(std::isfinite(leg.exponent) && leg.exponent != 0, where(),
              "exponent must be finite and not zero, got ", leg.exponent);
  TORCH_CHECK(std::isfinite(leg.offset), where(), "offset must be finite, got ", leg.offset);
  TORCH_CHECK(gauge.action == Action::scale || leg.offset == 0, where(),
              "a shift takes no offset, got ", leg.offset);
  const int64_t size = tensor.size(leg.axis);
  const auto given = static_cast<int64_t>(leg.channel_of.size());
  if (leg.channel_of.empty()) {
    TORCH_CHECK(size == gauge.channels, where(), "axis ", leg.axis, " has ", size,
                " indices, the gauge has ", gauge.channels,
                " channels, and no channel map is given");
    in_use.assign(in_use.size(), true);
    return;
  }
  TORCH_CHECK(given == size, where(), "the channel map has ", given, " entries for ", size,
              " indices along axis ", leg.axis);
  for (int64_t i = 0; i < size; ++i) {
    const int64_t c = leg.channel_of[i];
    TORCH_CHECK(c >= -1 && c < gauge.channels, where(), "index ", i, " is mapped to channel ", c,
                ", which is not in [-1, ", gauge.channels, ")");
    if (c >= 0) in_use[c] = true;
  }
}

}  // namespace

void validate(const Gauge& gauge, const Parameters& params) {
  TORCH_CHECK(!gauge.name.empty(), "a gauge of kind '", gauge.kind, "' has no name");
  TORCH_CHECK(gauge.channels > 0, "gauge '", gauge.name, "': channels must be > 0, got ",
              gauge.channels);
  TORCH_CHECK(!gauge.legs.empty(), "gauge '", gauge.name, "' has no legs");
  TORCH_CHECK(gauge.max_log_step > 0 && std::isfinite(gauge.max_log_step), "gauge '", gauge.name,
              "': max_log_step must be finite and > 0, got ", gauge.max_log_step);
  std::vector<bool> in_use(gauge.channels, false);
  for (size_t k = 0; k < gauge.legs.size(); ++k) validate_leg(gauge, k, params, in_use);
  for (int64_t c = 0; c < gauge.channels; ++c) {
    TORCH_CHECK(in_use[c], "gauge '", gauge.name, "': no leg acts on channel ", c);
  }
  for (size_t k = 0; k < gauge.legs.size(); ++k) {
    for (size_t j = 0; j < k; ++j) {
      TORCH_CHECK(
          gauge.legs[j].tensor != gauge.legs[k].tensor || gauge.legs[j].axis != gauge.legs[k].axis,
          "gauge '", gauge.name, "': legs ", j, " and ", k, " both act on axis ",
          gauge.legs[k].axis, " of '", gauge.legs[k].tensor, "'");
    }
    if (gauge.action == Action::shift) {
      const auto& first = gauge.legs.front();
      const auto expected = free_shape(first, params[first.tensor].tensor);
      const auto actual = free_shape(gauge.legs[k], params[gauge.legs[k].tensor].tensor);
      TORCH_CHECK(expected == actual && first.axis == gauge.legs[k].axis, "gauge '", gauge.name,
                  "': the legs '", first.tensor, "' and '", gauge.legs[k].tensor,
                  "' do not admit the same shift vector");
    }
  }
}

int64_t dimension(const Gauge& gauge, const Parameters& params) {
  if (gauge.action == Action::scale) return gauge.channels;
  const auto& leg = gauge.legs.front();
  const auto& tensor = params[leg.tensor].tensor;
  return gauge.channels * (tensor.numel() / std::max<int64_t>(tensor.size(leg.axis), 1));
}

std::string group_name(const Gauge& gauge, const Parameters& params) {
  const std::string base = gauge.action == Action::scale ? "(R+)" : "R";
  const int64_t d = dimension(gauge, params);
  return d == 1 ? (gauge.action == Action::scale ? "R+" : "R") : base + "^" + std::to_string(d);
}

const char* to_string(Action action) { return action == Action::scale ? "scale" : "shift"; }

const char* to_string(Coordinates coordinates) {
  switch (coordinates) {
    case Coordinates::folded:
      return "folded";
    case Coordinates::balanced:
      return "balanced";
    case Coordinates::polar:
      return "polar";
  }
  return "?";
}

const char* to_string(Hold hold) { return hold == Hold::ratio ? "ratio" : "unit"; }

const char* to_string(Vertical vertical) {
  switch (vertical) {
    case Vertical::frozen:
      return "frozen";
    case Vertical::sgd:
      return "sgd";
    case Vertical::adam:
      return "adam";
  }
  return "?";
}

const char* to_string(Radial radial) { return radial == Radial::linear ? "linear" : "log"; }

std::vector<Gauge> with(std::vector<Gauge> gauges, Coordinates coordinates) {
  for (auto& gauge : gauges) gauge.coordinates = coordinates;
  return gauges;
}

std::vector<Gauge> with(std::vector<Gauge> gauges, Vertical vertical) {
  for (auto& gauge : gauges) gauge.vertical = vertical;
  return gauges;
}

}  // namespace ddc
