#include "ddc/gauge/residual.h"

#include <ATen/ATen.h>

#include "ddc/gauge/channel_map.h"
#include "makers.h"

namespace ddc {

Gauge residual_mean_shift(const Writer& writer) {
  Gauge gauge;
  gauge.name = makers::name_or({}, writer.tensor, "mean");
  gauge.kind = "residual mean shift";
  gauge.action = Action::shift;
  gauge.channels = 1;
  makers::add_leg(gauge, writer.tensor, writer.axis, 1,
                  channel_maps::whole(makers::size_of(writer.tensor, writer.axis, "writer")));
  return gauge;
}

Gauge residual_rotation(const ResidualRotation& spec) {
  TORCH_CHECK(!spec.writers.empty() && !spec.norms.empty(),
              "residual_rotation: needs writers and norms, got ", spec.writers.size(), " and ",
              spec.norms.size());
  Gauge gauge;
  gauge.name = spec.name;
  gauge.kind = "residual rotation";
  gauge.action = Action::rotation;
  gauge.channels =
      makers::size_of(spec.writers.front().tensor, spec.writers.front().axis, "writer");
  gauge.block = gauge.channels;
  gauge.fixes_ones = spec.layer_norm;
  for (const auto& writer : spec.writers) makers::add_leg(gauge, writer.tensor, writer.axis, 1);
  for (const auto& norm : spec.norms) {
    for (const auto& reader : norm.readers) {
      TORCH_CHECK(!norm.shift || reader.bias, "residual_rotation: '", reader.weight.name,
                  "' reads the shift '", norm.shift->name, "' and has no bias");
      makers::add_leg(gauge, reader.weight, makers::in_axis(norm.layout), 1);
      gauge.legs.back().through = makers::reading(norm, reader);
    }
  }
  return gauge;
}

}  // namespace ddc
