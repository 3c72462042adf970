#include "ddc/gauge/gauge.h"

#include <ATen/ATen.h>

#include <cmath>
#include <sstream>
#include <vector>

#include "gauge/leg_maps.h"

namespace ddc {
namespace {

/// A factor of two to a power beyond this leaves what float32 can hold.
constexpr double kLargestExponent = 64;

/// The shape of the shift vector that one leg admits, among tensors of `dim` axes: the tensor's, with
/// one index along the leg's axis. Empty if there are fewer axes.
std::vector<int64_t> shape_of_shift(const Leg& leg, const at::Tensor& tensor, int64_t dim) {
  const int64_t more = dim - tensor.dim();
  if (more < 0 || leg.axis + more < 0) return {};
  std::vector<int64_t> shape(more, 1);
  shape.insert(shape.end(), tensor.sizes().begin(), tensor.sizes().end());
  shape[leg.axis + more] = 1;
  return shape;
}

std::string leg_text(const Gauge& gauge, size_t k) {
  std::ostringstream text;
  text << "gauge '" << gauge.name << "', leg " << k << " ('" << gauge.legs[k].tensor << "'): ";
  return text.str();
}

/// How many indices of the axis each channel has.
std::vector<int64_t> channel_counts(const Gauge& gauge, size_t k, int64_t size) {
  const Leg& leg = gauge.legs[k];
  const auto given = static_cast<int64_t>(leg.channel_of.size());
  if (leg.channel_of.empty()) {
    TORCH_CHECK(size == gauge.channels, leg_text(gauge, k), "axis ", leg.axis, " has ", size,
                " indices, the gauge has ", gauge.channels,
                " channels, and no channel map is given");
    return std::vector<int64_t>(gauge.channels, 1);
  }
  TORCH_CHECK(given == size, leg_text(gauge, k), "the channel map has ", given, " entries for ",
              size, " indices along axis ", leg.axis);
  std::vector<int64_t> counts(gauge.channels, 0);
  for (int64_t i = 0; i < size; ++i) {
    const int64_t c = leg.channel_of[i];
    TORCH_CHECK(c >= -1 && c < gauge.channels, leg_text(gauge, k), "index ", i,
                " is mapped to channel ", c, ", which is not in [-1, ", gauge.channels, ")");
    if (c >= 0) ++counts[c];
  }
  return counts;
}

/// The vectors a reading names must be there and fit the axes of the weight.
void validate_reading(const Gauge& gauge, size_t k, const Parameters& params) {
  const Leg& leg = gauge.legs[k];
  const auto& reading = leg.through;
  const bool exchange = gauge.action == Action::exchange;
  if (reading.empty()) {
    TORCH_CHECK(!exchange || k == 0 || params[leg.tensor].tensor.dim() == 1, leg_text(gauge, k),
                "names no bias (through.bias) to give to");
    return;
  }
  const auto& weight = params[leg.tensor].tensor;
  TORCH_CHECK(gauge.action == Action::shift || gauge.action == Action::rotation || exchange,
              leg_text(gauge, k), "a ", to_string(gauge.action), " gauge takes no reading");
  TORCH_CHECK(
      exchange ? k > 0 && reading.gain.empty() && reading.shift.empty() : !reading.gain.empty(),
      leg_text(gauge, k),
      exchange ? "the legs of an exchange name a bias only" : "the reading has no gain");
  TORCH_CHECK(reading.shift.empty() || !reading.bias.empty(), leg_text(gauge, k),
              "reads the shift '", reading.shift,
              "', and has no bias that could make up for a change of it");
  const bool gain_only = reading.shift.empty() && reading.bias.empty();
  TORCH_CHECK(weight.dim() == 2 || gain_only, leg_text(gauge, k),
              "must be a matrix to have a reading, or be seen through a gain alone; has shape ",
              weight.sizes());
  const auto check_vector = [&](const std::string& name, int64_t size, const char* role) {
    if (name.empty()) return;
    TORCH_CHECK(params.contains(name), leg_text(gauge, k), "no parameter is called '", name, "' (",
                role, ")");
    const auto& vector = params[name].tensor;
    TORCH_CHECK(vector.dim() == 1 && vector.size(0) == size, leg_text(gauge, k), "the ", role, " '",
                name, "' must be a vector of length ", size, ", has shape ", vector.sizes());
  };
  check_vector(reading.gain, weight.size(leg.axis), "gain");
  check_vector(reading.shift, weight.size(leg.axis), "shift");
  if (!reading.bias.empty()) check_vector(reading.bias, weight.size(1 - leg.axis), "bias");
}

void validate_leg(const Gauge& gauge, size_t k, const Parameters& params,
                  std::vector<bool>& in_use) {
  const Leg& leg = gauge.legs[k];
  const auto where = [&] { return leg_text(gauge, k); };
  TORCH_CHECK(params.contains(leg.tensor), where(), "no parameter has that name");
  const auto& tensor = params[leg.tensor].tensor;
  TORCH_CHECK(at::isFloatingType(tensor.scalar_type()), where(),
              "must be a floating-point tensor, is ", tensor.scalar_type());
  const bool may_be_row = gauge.action == Action::shift && k > 0 && leg.through.empty();
  TORCH_CHECK(leg.axis >= (may_be_row ? -1 : 0) && leg.axis < tensor.dim(), where(), "axis ",
              leg.axis, " is not one of a tensor of shape ", tensor.sizes());
  TORCH_CHECK(std::isfinite(leg.exponent) && leg.exponent != 0, where(),
              "exponent must be finite and not zero, got ", leg.exponent);
  TORCH_CHECK(
      std::abs(leg.exponent) <= kLargestExponent && std::abs(leg.exponent) >= 1 / kLargestExponent,
      where(), "exponent must be of a size between 1/", kLargestExponent, " and ", kLargestExponent,
      ", got ", leg.exponent);
  TORCH_CHECK(
      !gauge.mixes() || leg.exponent == 1 || (leg.exponent == -1 && gauge.action == Action::linear),
      where(), "exponent must be 1", gauge.action == Action::linear ? " or -1" : "", " in a ",
      to_string(gauge.action), " gauge, got ", leg.exponent);
  TORCH_CHECK(std::isfinite(leg.offset), where(), "offset must be finite, got ", leg.offset);
  TORCH_CHECK(gauge.action == Action::scale || leg.offset == 0, where(), "a ",
              to_string(gauge.action), " takes no offset, got ", leg.offset);
  TORCH_CHECK(!leg.stacked || (gauge.action == Action::scale && leg.axis > 0), where(),
              "stacked is for scales along another axis than the first, got a ",
              to_string(gauge.action), " along axis ", leg.axis);
  const auto counts = channel_counts(gauge, k, size_along(leg, tensor) * copies_of(leg, tensor));
  for (int64_t c = 0; c < gauge.channels; ++c) {
    in_use[c] = in_use[c] || counts[c] > 0;
    TORCH_CHECK(!gauge.mixes() || (counts[c] > 0 && counts[c] == counts[0]), where(), "channel ", c,
                " has ", counts[c], " indices and channel 0 has ", counts[0],
                "; a gauge that mixes channels needs as many of each, and at least one");
  }
  TORCH_CHECK(gauge.action != Action::exchange || tensor.dim() == 1 || tensor.dim() == 2, where(),
              "the legs of an exchange are vectors and matrices; this has shape ", tensor.sizes());
  validate_reading(gauge, k, params);
}

void validate_block(const Gauge& gauge) {
  TORCH_CHECK(gauge.block > 0 && gauge.channels % gauge.block == 0, "gauge '", gauge.name,
              "': block must be > 0 and divide the ", gauge.channels, " channels, got ",
              gauge.block);
  TORCH_CHECK(gauge.mixes() || gauge.block == 1, "gauge '", gauge.name, "': block must be 1 for a ",
              to_string(gauge.action), " gauge, got ", gauge.block);
  TORCH_CHECK(gauge.action != Action::rotation || gauge.block > 1, "gauge '", gauge.name,
              "': block must be > 1 for a rotation, got ", gauge.block);
  TORCH_CHECK(!gauge.fixes_ones || gauge.action == Action::rotation, "gauge '", gauge.name,
              "': fixes_ones is for rotations");
}

}  // namespace

void validate(const Gauge& gauge, const Parameters& params) {
  TORCH_CHECK(!gauge.name.empty(), "a gauge of kind '", gauge.kind, "' has no name");
  TORCH_CHECK(gauge.channels > 0, "gauge '", gauge.name, "': channels must be > 0, got ",
              gauge.channels);
  TORCH_CHECK(!gauge.legs.empty(), "gauge '", gauge.name, "' has no legs");
  validate_block(gauge);
  std::vector<bool> in_use(gauge.channels, false);
  for (size_t k = 0; k < gauge.legs.size(); ++k) validate_leg(gauge, k, params, in_use);
  for (int64_t c = 0; c < gauge.channels; ++c) {
    TORCH_CHECK(in_use[c], "gauge '", gauge.name, "': no leg acts on channel ", c);
  }
  for (size_t k = 0; k < gauge.legs.size(); ++k) {
    for (size_t j = 0; j < k; ++j) {
      TORCH_CHECK(gauge.action == Action::shift || gauge.legs[j].tensor != gauge.legs[k].tensor ||
                      gauge.legs[j].axis != gauge.legs[k].axis ||
                      disjoint(gauge.legs[j], gauge.legs[k]),
                  "gauge '", gauge.name, "': legs ", j, " and ", k, " both act on axis ",
                  gauge.legs[k].axis, " of '", gauge.legs[k].tensor, "', on the same indices");
    }
    if (gauge.action == Action::shift) {
      const auto& first = gauge.legs.front();
      const auto& leg = gauge.legs[k];
      const auto& of_first = params[first.tensor].tensor;
      const auto& tensor = params[leg.tensor].tensor;
      const bool same_axis = of_first.dim() - first.axis == tensor.dim() - leg.axis;
      TORCH_CHECK(same_axis && shape_of_shift(first, of_first, of_first.dim()) ==
                                   shape_of_shift(leg, tensor, of_first.dim()),
                  "gauge '", gauge.name, "': the legs '", first.tensor, "' and '", leg.tensor,
                  "' do not admit the same shift vector");
    }
  }
}

int64_t dimension(const Gauge& gauge, const Parameters& params) {
  switch (gauge.action) {
    case Action::scale:
    case Action::exchange:
      return gauge.channels;
    case Action::rotation: {
      const int64_t n = gauge.block - (gauge.fixes_ones ? 1 : 0);
      return gauge.blocks() * n * (n - 1) / 2;
    }
    case Action::linear:
      return gauge.blocks() * gauge.block * gauge.block;
    case Action::shift:
      break;
  }
  const auto& leg = gauge.legs.front();
  const auto& tensor = params[leg.tensor].tensor;
  return gauge.channels * (tensor.numel() / std::max<int64_t>(tensor.size(leg.axis), 1));
}

std::string group_name(const Gauge& gauge, const Parameters& params) {
  const bool scale = gauge.action == Action::scale;
  std::string base = scale ? "R+" : "R";
  int64_t power = gauge.mixes() ? gauge.blocks() : dimension(gauge, params);
  if (gauge.mixes()) {
    const int64_t n = gauge.block - (gauge.fixes_ones ? 1 : 0);
    base = gauge.action == Action::linear ? "GL(" : gauge.block == 2 ? "SO(" : "O(";
    base.append(std::to_string(n)).append(")");
  }
  if (power == 1) return base;
  return (scale ? "(R+)" : base) + "^" + std::to_string(power);
}

}  // namespace ddc
