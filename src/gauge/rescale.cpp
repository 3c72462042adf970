#include "ddc/gauge/rescale.h"

#include <ATen/ATen.h>

#include <cmath>

#include "ddc/gauge/channel_map.h"
#include "makers.h"

namespace ddc {

using makers::add_leg;
using makers::in_axis;
using makers::out_axis;
using makers::size_of;

Gauge relu_rescale(const ReluRescale& spec) {
  TORCH_CHECK(std::isfinite(spec.degree) && spec.degree > 0,
              "relu_rescale: degree must be finite and > 0, got ", spec.degree);
  TORCH_CHECK(!spec.out.empty(), "relu_rescale: '", spec.in.name, "' has no reader in `out`");
  const int64_t units = size_of(spec.in, out_axis(spec.layout), "in");
  const auto map = [&](const NamedTensor& tensor, int64_t axis) {
    return spec.whole ? channel_maps::whole(size_of(tensor, axis, tensor.name.c_str()))
                      : std::vector<int64_t>{};
  };
  Gauge gauge;
  gauge.name = makers::name_or(spec.name, spec.in, "rescale");
  gauge.kind = "relu rescale";
  gauge.channels = spec.whole ? 1 : units;
  add_leg(gauge, spec.in, out_axis(spec.layout), 1, map(spec.in, out_axis(spec.layout)));
  if (spec.in_bias) add_leg(gauge, *spec.in_bias, 0, 1, map(*spec.in_bias, 0));
  for (const auto& reader : spec.out) {
    add_leg(gauge, reader, in_axis(spec.layout), -spec.degree, map(reader, in_axis(spec.layout)));
  }
  return gauge;
}

std::vector<Gauge> chained_rescale(const ChainedRescale& spec) {
  TORCH_CHECK(spec.weights.size() >= 2, "chained_rescale: needs at least two weights, got ",
              spec.weights.size());
  TORCH_CHECK(spec.biases.empty() || spec.biases.size() == spec.weights.size(),
              "chained_rescale: got ", spec.biases.size(), " biases for ", spec.weights.size(),
              " weights; give one entry per weight (unset where there is none) or leave them out");
  std::vector<Gauge> gauges;
  for (size_t l = 0; l + 1 < spec.weights.size(); ++l) {
    gauges.push_back(relu_rescale({.in = spec.weights[l],
                                   .in_bias = spec.biases.empty() ? std::nullopt : spec.biases[l],
                                   .out = {spec.weights[l + 1]},
                                   .degree = spec.degree,
                                   .whole = spec.whole,
                                   .layout = spec.layout,
                                   .name = {}}));
  }
  return gauges;
}

Gauge glu_rescale(const GluRescale& spec) {
  Gauge gauge = relu_rescale({.in = spec.up,
                              .in_bias = spec.up_bias,
                              .out = spec.down,
                              .layout = spec.layout,
                              .name = spec.name});
  gauge.kind = "glu rescale";
  return gauge;
}

Gauge diagonal_linear(const DiagonalLinear& spec) {
  Gauge gauge;
  gauge.name = makers::name_or(spec.name, spec.u, "rescale");
  gauge.kind = "diagonal linear";
  gauge.channels = size_of(spec.u, 0, "u");
  add_leg(gauge, spec.u, 0, 1);
  add_leg(gauge, spec.v, 0, -1);
  return gauge;
}

}  // namespace ddc
