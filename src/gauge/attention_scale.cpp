#include "ddc/gauge/attention_scale.h"

#include <ATen/ATen.h>

#include "makers.h"

namespace ddc {

using channel_maps::Pairing;
using makers::add_leg;
using makers::in_axis;
using makers::out_axis;

namespace {

int64_t head_size(const NamedTensor& tensor, int64_t axis, int64_t heads, const char* role) {
  const int64_t size = makers::size_of(tensor, axis, role);
  TORCH_CHECK(heads > 0 && size % heads == 0, "ddc gauge: '", tensor.name, "' (", role, ") has ",
              size, " indices along axis ", axis, ", which ", heads, " heads do not divide");
  return size / heads;
}

}  // namespace

Gauge qk_scale(const QKScale& spec) {
  const int64_t axis = out_axis(spec.layout);
  const int64_t groups = spec.kv_heads.value_or(spec.heads);
  const int64_t d_query = head_size(spec.query, axis, spec.heads, "query");
  const int64_t d_key = head_size(spec.key, axis, groups, "key");
  TORCH_CHECK(d_query == d_key, "qk_scale: heads of '", spec.query.name, "' have size ", d_query,
              ", those of '", spec.key.name, "' have size ", d_key);
  const auto query_map = channel_maps::heads(spec.heads, d_query, groups, spec.pairing);
  const auto key_map = channel_maps::heads(groups, d_key, groups, spec.pairing);
  Gauge gauge;
  gauge.name = makers::name_or(spec.name, spec.query, "qk_scale");
  gauge.kind = spec.pairing == Pairing::none ? "QK scale" : "QK plane scale";
  gauge.channels = groups * (spec.pairing == Pairing::none ? 1 : d_key / 2);
  add_leg(gauge, spec.query, axis, 1, query_map);
  add_leg(gauge, spec.query_bias, 0, 1, query_map);
  add_leg(gauge, spec.key, axis, -1, key_map);
  add_leg(gauge, spec.key_bias, 0, -1, key_map);
  return gauge;
}

Gauge vo_scale(const VOScale& spec) {
  const int64_t groups = spec.kv_heads.value_or(spec.heads);
  const int64_t d_value = head_size(spec.value, out_axis(spec.layout), groups, "value");
  const int64_t d_output = head_size(spec.output, in_axis(spec.layout), spec.heads, "output");
  TORCH_CHECK(d_value == d_output, "vo_scale: heads of '", spec.value.name, "' have size ", d_value,
              ", those of '", spec.output.name, "' have size ", d_output);
  const auto value_map = channel_maps::heads(groups, d_value, groups);
  Gauge gauge;
  gauge.name = makers::name_or(spec.name, spec.value, "vo_scale");
  gauge.kind = "VO scale";
  gauge.channels = groups;
  add_leg(gauge, spec.value, out_axis(spec.layout), 1, value_map);
  add_leg(gauge, spec.value_bias, 0, 1, value_map);
  add_leg(gauge, spec.output, in_axis(spec.layout), -1,
          channel_maps::heads(spec.heads, d_output, groups));
  return gauge;
}

}  // namespace ddc
