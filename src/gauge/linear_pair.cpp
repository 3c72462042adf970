#include "ddc/gauge/linear_pair.h"

#include <ATen/ATen.h>

#include "makers.h"

namespace ddc {

Gauge linear_pair(const LinearPair& spec) {
  Gauge gauge;
  gauge.name = makers::name_or(spec.name, spec.first, "linear");
  gauge.kind = "linear pair";
  gauge.action = Action::linear;
  gauge.block = makers::size_of(spec.first, makers::out_axis(spec.layout), "first");
  gauge.channels = gauge.block;
  const int64_t inner = makers::size_of(spec.second, makers::in_axis(spec.layout), "second");
  TORCH_CHECK(inner == gauge.block, "linear_pair: '", spec.first.name, "' writes ", gauge.block,
              " values, '", spec.second.name, "' reads ", inner);
  makers::add_leg(gauge, spec.first, makers::out_axis(spec.layout), 1);
  makers::add_leg(gauge, spec.second, makers::in_axis(spec.layout), -1);
  return gauge;
}

}  // namespace ddc
