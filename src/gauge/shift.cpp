#include "ddc/gauge/shift.h"

#include <ATen/ATen.h>

#include "ddc/gauge/channel_map.h"
#include "makers.h"

namespace ddc {

Gauge cross_entropy_shift(const NamedTensor& unembedding_or_bias, Layout layout, std::string name) {
  const int64_t axis = unembedding_or_bias.tensor.dim() == 1 ? 0 : makers::out_axis(layout);
  Gauge gauge;
  gauge.name = makers::name_or(name, unembedding_or_bias, "shift");
  gauge.kind = unembedding_or_bias.tensor.dim() == 1 ? "CE bias shift" : "CE row shift";
  gauge.action = Action::shift;
  gauge.channels = 1;
  makers::add_leg(gauge, unembedding_or_bias, axis, 1,
                  channel_maps::whole(makers::size_of(unembedding_or_bias, axis, "unembedding")));
  return gauge;
}

Gauge null_shift(const NamedTensor& tensor, std::string name) {
  Gauge gauge;
  gauge.name = makers::name_or(name, tensor, "null");
  gauge.kind = "null shift";
  gauge.action = Action::shift;
  gauge.channels = makers::size_of(tensor, 0, "tensor");
  makers::add_leg(gauge, tensor, 0, 1);
  return gauge;
}

}  // namespace ddc
