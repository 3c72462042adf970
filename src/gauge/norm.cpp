#include "ddc/gauge/norm.h"

#include <ATen/ATen.h>

#include "ddc/gauge/channel_map.h"
#include "makers.h"

namespace ddc {

Gauge norm_scale(const NormScale& spec) {
  TORCH_CHECK(!spec.readers.empty(), "norm_scale: '", spec.gain.name, "' has no reader");
  Gauge gauge;
  gauge.name = makers::name_or(spec.name, spec.gain, "scale");
  gauge.kind = "norm scale";
  gauge.channels = makers::size_of(spec.gain, 0, "gain");
  makers::add_leg(gauge, spec.gain, 0, 1);
  gauge.legs.back().offset = spec.gain_is_offset ? 1 : 0;
  makers::add_leg(gauge, spec.shift, 0, 1);
  for (const auto& reader : spec.readers) {
    makers::add_leg(gauge, reader, makers::in_axis(spec.layout), -1);
  }
  return gauge;
}

std::vector<Gauge> norm_kernel_shifts(const NormReaders& spec) {
  const int64_t axis = makers::in_axis(spec.layout);
  std::vector<Gauge> gauges;
  for (const auto& reader : spec.readers) {
    if (spec.shift && !reader.bias) continue;
    Gauge gauge;
    gauge.name = makers::name_or({}, reader.weight, "kernel");
    gauge.kind = "norm kernel shift";
    gauge.action = Action::shift;
    gauge.channels = 1;
    makers::add_leg(gauge, reader.weight, axis, 1,
                    channel_maps::whole(makers::size_of(reader.weight, axis, "reader")));
    gauge.legs.back().through = makers::reading(spec, reader);
    gauges.push_back(std::move(gauge));
  }
  return gauges;
}

Gauge norm_shift_exchange(const NormReaders& spec) {
  TORCH_CHECK(spec.shift, "norm_shift_exchange: '", spec.gain.name, "' has no shift");
  TORCH_CHECK(!spec.readers.empty(), "norm_shift_exchange: '", spec.gain.name, "' has no reader");
  Gauge gauge;
  gauge.name = makers::name_or({}, *spec.shift, "exchange");
  gauge.kind = "norm shift exchange";
  gauge.action = Action::exchange;
  gauge.channels = makers::size_of(*spec.shift, 0, "shift");
  makers::add_leg(gauge, *spec.shift, 0, 1);
  for (const auto& reader : spec.readers) {
    TORCH_CHECK(reader.bias, "norm_shift_exchange: the reader '", reader.weight.name,
                "' has no bias that could take up what '", spec.shift->name, "' gives");
    makers::add_leg(gauge, reader.weight, makers::in_axis(spec.layout), 1);
    gauge.legs.back().through.bias = reader.bias->name;
  }
  if (spec.added_next) makers::add_leg(gauge, *spec.added_next, 0, 1);
  return gauge;
}

}  // namespace ddc
