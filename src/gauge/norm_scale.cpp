#include "ddc/gauge/norm_scale.h"

#include <ATen/ATen.h>

#include "makers.h"

namespace ddc {

using makers::add_leg;

Gauge norm_scale(const NormScale& spec) {
  TORCH_CHECK(!spec.readers.empty(), "norm_scale: '", spec.gain.name, "' has no reader");
  Gauge gauge;
  gauge.name = makers::name_or(spec.name, spec.gain, "scale");
  gauge.kind = "norm scale";
  gauge.channels = makers::size_of(spec.gain, 0, "gain");
  add_leg(gauge, spec.gain, 0, 1);
  gauge.legs.back().offset = spec.gain_is_offset ? 1 : 0;
  add_leg(gauge, spec.shift, 0, 1);
  for (const auto& reader : spec.readers) add_leg(gauge, reader, makers::in_axis(spec.layout), -1);
  return gauge;
}

}  // namespace ddc
