#include "ddc/gauge/attention.h"

#include <ATen/ATen.h>

#include <functional>

#include "makers.h"

namespace ddc {

using channel_maps::Pairing;
using makers::add_leg;
using makers::in_axis;
using makers::out_axis;

namespace {

enum class Part { query, key, value, output };

/// The channel of coordinate i in the heads of a group; -1 where the gauge does not act.
using Channel = std::function<int64_t(int64_t group, int64_t i)>;

/// Where the heads of one projection are along an axis.
struct Heads {
  Packing packing;
  int64_t heads;
  int64_t groups;
  int64_t size;  ///< of a head

  /// Rows of the tensor in units of heads.
  int64_t rows(Part part) const {
    if (part == Part::output || (packing == Packing::separate && part == Part::query)) return heads;
    return packing == Packing::separate ? groups : heads + 2 * groups;
  }
  /// The row of the h-th query head, or of the h-th key or value head.
  int64_t row(Part part, int64_t h) const {
    if (packing == Packing::separate || part == Part::output) return h;
    const int64_t shared = heads / groups;
    if (packing == Packing::stacked) {
      return part == Part::query ? h : part == Part::key ? heads + h : heads + groups + h;
    }
    return part == Part::query ? h / shared * (shared + 2) + h % shared
                               : h * (shared + 2) + shared + (part == Part::key ? 0 : 1);
  }
  std::vector<int64_t> map(Part part, const Channel& channel) const {
    std::vector<int64_t> result(rows(part) * size, -1);
    const bool per_query = part == Part::query || part == Part::output;
    const int64_t count = per_query ? heads : groups;
    for (int64_t h = 0; h < count; ++h) {
      const int64_t group = per_query ? h / (heads / groups) : h;
      for (int64_t i = 0; i < size; ++i) result[row(part, h) * size + i] = channel(group, i);
    }
    return result;
  }
};

int64_t head_size(const NamedTensor& tensor, int64_t axis, int64_t heads, const char* role) {
  const int64_t size = makers::size_of(tensor, axis, role);
  TORCH_CHECK(heads > 0 && size % heads == 0, "ddc gauge: '", tensor.name, "' (", role, ") has ",
              size, " indices along axis ", axis, ", which ", heads, " heads do not divide");
  return size / heads;
}

int64_t check_groups(const NamedTensor& tensor, int64_t heads,
                     const std::optional<int64_t>& kv_heads) {
  const int64_t groups = kv_heads.value_or(heads);
  TORCH_CHECK(heads > 0 && groups > 0 && heads % groups == 0, "ddc gauge: '", tensor.name,
              "': ", heads, " heads cannot be shared evenly by ", groups, " groups");
  return groups;
}

Heads heads_of(const QueryKey& spec) {
  Heads heads{spec.packing, spec.heads, check_groups(spec.query, spec.heads, spec.kv_heads), 0};
  const int64_t axis = out_axis(spec.layout);
  heads.size = head_size(spec.query, axis, heads.rows(Part::query), "query");
  const int64_t key = head_size(spec.key, axis, heads.rows(Part::key), "key");
  TORCH_CHECK(heads.size == key, "ddc gauge: heads of '", spec.query.name, "' have size ",
              heads.size, ", those of '", spec.key.name, "' have size ", key);
  return heads;
}

Heads heads_of(const ValueOutput& spec) {
  Heads heads{spec.packing, spec.heads, check_groups(spec.value, spec.heads, spec.kv_heads), 0};
  heads.size = head_size(spec.value, out_axis(spec.layout), heads.rows(Part::value), "value");
  const int64_t output = head_size(spec.output, in_axis(spec.layout), spec.heads, "output");
  TORCH_CHECK(heads.size == output, "ddc gauge: heads of '", spec.value.name, "' have size ",
              heads.size, ", those of '", spec.output.name, "' have size ", output);
  return heads;
}

int64_t rotary_size(const QueryKey& spec, const Heads& heads) {
  if (spec.pairing == Pairing::none) {
    TORCH_CHECK(!spec.rotary_size, "ddc gauge: '", spec.query.name,
                "': rotary_size is given, but no pairing");
    return 0;
  }
  const int64_t size = spec.rotary_size.value_or(heads.size);
  TORCH_CHECK(size > 0 && size % 2 == 0 && size <= heads.size, "ddc gauge: '", spec.query.name,
              "': rotary planes need an even number of coordinates, from 2 to the head size ",
              heads.size, ", got ", size);
  return size;
}

/// The plane of coordinate i, and which of its two axes it is.
std::pair<int64_t, int64_t> plane(Pairing pairing, int64_t rotary, int64_t i) {
  return pairing == Pairing::half_split ? std::pair{i % (rotary / 2), i / (rotary / 2)}
                                        : std::pair{i / 2, i % 2};
}

void add_legs(Gauge& gauge, const QueryKey& spec, const Heads& heads, const Channel& channel,
              double key_exponent) {
  const int64_t axis = out_axis(spec.layout);
  const auto query_map = heads.map(Part::query, channel);
  const auto key_map = heads.map(Part::key, channel);
  add_leg(gauge, spec.query, axis, 1, query_map);
  add_leg(gauge, spec.query_bias, 0, 1, query_map);
  add_leg(gauge, spec.key, axis, key_exponent, key_map);
  add_leg(gauge, spec.key_bias, 0, key_exponent, key_map);
  for (auto& leg : gauge.legs) leg.head_size = heads.size;
}

void add_legs(Gauge& gauge, const ValueOutput& spec, const Heads& heads, const Channel& channel,
              double output_exponent) {
  const auto value_map = heads.map(Part::value, channel);
  add_leg(gauge, spec.value, out_axis(spec.layout), 1, value_map);
  add_leg(gauge, spec.value_bias, 0, 1, value_map);
  add_leg(gauge, spec.output, in_axis(spec.layout), output_exponent,
          heads.map(Part::output, channel));
  for (auto& leg : gauge.legs) leg.head_size = heads.size;
}

/// A gauge that mixes the coordinates of a head from `first` on.
Gauge head_blocks(Action action, const Heads& heads, int64_t first) {
  Gauge gauge;
  gauge.action = action;
  gauge.block = heads.size - first;
  gauge.channels = heads.groups * gauge.block;
  return gauge;
}

Channel head_channel(const Heads& heads, int64_t first) {
  return [=, width = heads.size - first](int64_t group, int64_t i) {
    return i < first ? -1 : group * width + i - first;
  };
}

Gauge qk_blocks(const QueryKey& spec, Action action, const char* kind, const char* suffix) {
  const auto heads = heads_of(spec);
  const int64_t first = rotary_size(spec, heads);
  TORCH_CHECK(first < heads.size, "ddc gauge: '", spec.query.name, "': all ", heads.size,
              " coordinates of a head are rotary; only planes turn there (qk_torus)");
  auto gauge = head_blocks(action, heads, first);
  gauge.name = makers::name_or(spec.name, spec.query, suffix);
  gauge.kind = kind;
  add_legs(gauge, spec, heads, head_channel(heads, first), action == Action::linear ? -1 : 1);
  return gauge;
}

Gauge vo_blocks(const ValueOutput& spec, Action action, const char* kind, const char* suffix) {
  const auto heads = heads_of(spec);
  auto gauge = head_blocks(action, heads, 0);
  gauge.name = makers::name_or(spec.name, spec.value, suffix);
  gauge.kind = kind;
  add_legs(gauge, spec, heads, head_channel(heads, 0), action == Action::linear ? -1 : 1);
  return gauge;
}

}  // namespace

Gauge qk_scale(const QueryKey& spec) {
  const auto heads = heads_of(spec);
  const int64_t rotary = rotary_size(spec, heads);
  const int64_t planes = rotary / 2;
  Gauge gauge;
  gauge.name = makers::name_or(spec.name, spec.query, "qk_scale");
  gauge.kind = rotary == 0 ? "QK scale" : "QK plane scale";
  gauge.channels = heads.groups * (rotary == 0 ? 1 : planes);
  const auto channel = [&](int64_t group, int64_t i) {
    if (rotary == 0) return group;
    return i < rotary ? group * planes + plane(spec.pairing, rotary, i).first : -1;
  };
  add_legs(gauge, spec, heads, channel, -1);
  return gauge;
}

Gauge qk_torus(const QueryKey& spec) {
  const auto heads = heads_of(spec);
  const int64_t rotary = rotary_size(spec, heads);
  TORCH_CHECK(rotary > 0, "qk_torus: '", spec.query.name, "' needs the pairing of its planes");
  Gauge gauge;
  gauge.name = makers::name_or(spec.name, spec.query, "qk_torus");
  gauge.kind = "QK torus";
  gauge.action = Action::rotation;
  gauge.block = 2;
  gauge.channels = heads.groups * rotary;
  const auto channel = [&](int64_t group, int64_t i) -> int64_t {
    if (i >= rotary) return -1;
    const auto [p, side] = plane(spec.pairing, rotary, i);
    return group * rotary + 2 * p + side;
  };
  add_legs(gauge, spec, heads, channel, 1);
  return gauge;
}

Gauge qk_rotation(const QueryKey& spec) {
  return qk_blocks(spec, Action::rotation, "QK rotation", "qk_rotation");
}

Gauge qk_linear(const QueryKey& spec) {
  return qk_blocks(spec, Action::linear, "QK linear", "qk_linear");
}

Gauge key_bias_null(const QueryKey& spec) {
  TORCH_CHECK(spec.key_bias, "key_bias_null: '", spec.key.name, "' has no bias");
  const auto heads = heads_of(spec);
  const int64_t first = rotary_size(spec, heads);
  TORCH_CHECK(first < heads.size, "key_bias_null: '", spec.key_bias->name,
              "' is turned by the rotary embedding, and seen");
  Gauge gauge;
  gauge.name = makers::name_or(spec.name, *spec.key_bias, "null");
  gauge.kind = "null shift";
  gauge.action = Action::shift;
  gauge.channels = heads.groups * (heads.size - first);
  add_leg(gauge, *spec.key_bias, 0, 1, heads.map(Part::key, head_channel(heads, first)));
  return gauge;
}

Gauge vo_scale(const ValueOutput& spec) {
  const auto heads = heads_of(spec);
  Gauge gauge;
  gauge.name = makers::name_or(spec.name, spec.value, "vo_scale");
  gauge.kind = "VO scale";
  gauge.channels = heads.groups;
  add_legs(
      gauge, spec, heads, [](int64_t group, int64_t) { return group; }, -1);
  return gauge;
}

Gauge vo_rotation(const ValueOutput& spec) {
  return vo_blocks(spec, Action::rotation, "VO rotation", "vo_rotation");
}

Gauge vo_linear(const ValueOutput& spec) {
  return vo_blocks(spec, Action::linear, "VO linear", "vo_linear");
}

Gauge value_bias_exchange(const ValueOutput& spec) {
  TORCH_CHECK(spec.value_bias && spec.output_bias, "value_bias_exchange: '", spec.value.name,
              "' and '", spec.output.name, "' must both have a bias");
  const auto heads = heads_of(spec);
  Gauge gauge;
  gauge.name = makers::name_or(spec.name, *spec.value_bias, "exchange");
  gauge.kind = "value bias exchange";
  gauge.action = Action::exchange;
  gauge.channels = heads.groups * heads.size;
  add_leg(gauge, *spec.value_bias, 0, 1, heads.map(Part::value, head_channel(heads, 0)));
  add_leg(gauge, spec.output, in_axis(spec.layout), 1,
          heads.map(Part::output, head_channel(heads, 0)));
  gauge.legs.back().through.bias = spec.output_bias->name;
  return gauge;
}

}  // namespace ddc
