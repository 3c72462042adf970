#pragma once

#include "ddc/gauge/gauge.h"
#include "io/fields_json.h"

// What is stored of a gauge: the only list of its fields. Symmetry files, the identity of a gauge in
// checkpoints and Python's digest are made from it.

namespace ddc::fields_json {

template <class Archive, Is<Reading> T>
void fields(Archive& archive, T& reading) {
  archive.optional("gain", reading.gain);
  archive.optional("gain_offset", reading.gain_offset);
  archive.optional("shift", reading.shift);
  archive.optional("bias", reading.bias);
}

template <class Archive, Is<Leg> T>
void fields(Archive& archive, T& leg) {
  archive.field("tensor", leg.tensor);
  archive.field("axis", leg.axis, -1);
  archive.field("exponent", leg.exponent);
  archive.optional("channel_of", leg.channel_of, -1);
  archive.optional("offset", leg.offset);
  archive.optional("through", leg.through);
  archive.optional("head_size", leg.head_size, 0);
  archive.optional("stacked", leg.stacked);
}

template <class Archive, Is<Gauge> T>
void fields(Archive& archive, T& gauge) {
  archive.field("name", gauge.name);
  archive.field("kind", gauge.kind);
  archive.field("action", gauge.action);
  archive.field("channels", gauge.channels, 1);
  archive.field("block", gauge.block, 1);
  archive.optional("fixes_ones", gauge.fixes_ones);
  archive.field("legs", gauge.legs);
}

}  // namespace ddc::fields_json
