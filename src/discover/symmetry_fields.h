#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <type_traits>

#include "ddc/discover/symmetry_group.h"

// What is stored of a symmetry group, each field once: the same list serves to write and to read.
// An archive is anything with
//
//     field(name, value, least)      must be in the file
//     optional(name, value, least)   is in the file only if it says something; else the default
//     setting(name, value, least)    always written, may be missing
//
// where integers (and the entries of lists of them) must not be below `least`.

namespace ddc::discover_json {

template <class T, class Struct>
concept Is = std::same_as<std::remove_const_t<T>, Struct>;

/// All values of an enum; their words are those of `to_string`.
template <class Enum>
inline constexpr int kAll = 0;
template <>
inline constexpr std::array kAll<Action> = {Action::scale, Action::shift, Action::rotation,
                                            Action::linear, Action::exchange};
template <>
inline constexpr std::array kAll<Coordinates> = {Coordinates::folded, Coordinates::balanced,
                                                 Coordinates::standard, Coordinates::polar};
template <>
inline constexpr std::array kAll<Hold> = {Hold::ratio, Hold::unit};
template <>
inline constexpr std::array kAll<Vertical> = {Vertical::frozen, Vertical::sgd, Vertical::adam};
template <>
inline constexpr std::array kAll<Radial> = {Radial::linear, Radial::log};
template <>
inline constexpr std::array kAll<SecondMoment> = {
    SecondMoment::transported,     SecondMoment::body_frame,      SecondMoment::body_frame_topk,
    SecondMoment::per_head_scalar, SecondMoment::per_head_matrix, SecondMoment::none};

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
  archive.field("axis", leg.axis, 0);
  archive.field("exponent", leg.exponent);
  archive.optional("channel_of", leg.channel_of, -1);
  archive.optional("offset", leg.offset);
  archive.optional("through", leg.through);
  archive.optional("head_size", leg.head_size, 0);
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
  archive.optional("coordinates", gauge.coordinates);
  archive.optional("hold", gauge.hold);
  archive.setting("vertical", gauge.vertical);
  archive.setting("radial", gauge.radial);
  archive.setting("max_log_step", gauge.max_log_step);
  archive.setting("second_moment", gauge.second_moment);
  archive.setting("tau", gauge.tau);
  archive.setting("frame_drift", gauge.frame_drift);
  archive.setting("frame_interval", gauge.frame_interval, 1);
  archive.setting("procrustes", gauge.procrustes);
  archive.setting("rebalance_above", gauge.rebalance_above);
}

template <class Archive, Is<Engagement> T>
void fields(Archive& archive, T& engagement) {
  archive.field("plain", engagement.plain);
  archive.field("lifted", engagement.lifted);
  archive.field("engaged", engagement.engaged);
}

template <class Archive, Is<Finding> T>
void fields(Archive& archive, T& finding) {
  archive.field("gauge", finding.gauge);
  archive.field("group", finding.group);
  archive.field("dimension", finding.dimension, 0);
  archive.field("residual", finding.residual);
  archive.field("tolerance", finding.tolerance);
  archive.optional("engagement", finding.engagement);
}

template <class Archive, Is<Refusal> T>
void fields(Archive& archive, T& refusal) {
  archive.field("name", refusal.name);
  archive.field("kind", refusal.kind);
  archive.field("tensors", refusal.tensors);
  archive.field("residual", refusal.residual);
  archive.field("reason", refusal.reason);
}

template <class Archive, Is<Completeness::Share> T>
void fields(Archive& archive, T& share) {
  archive.field("tensor", share.tensor);
  archive.field("dimensions", share.dimensions);
}

template <class Archive, Is<Completeness> T>
void fields(Archive& archive, T& completeness) {
  archive.field("method", completeness.method);
  archive.field("parameters", completeness.parameters, 0);
  archive.field("kernel", completeness.kernel);
  archive.field("explained", completeness.explained, 0);
  archive.field("dead", completeness.dead, 0);
  archive.field("unexplained", completeness.unexplained);
  archive.field("per_tensor", completeness.per_tensor);
  archive.field("gap", completeness.gap);
}

template <class Archive, Is<Fingerprint::Entry> T>
void fields(Archive& archive, T& entry) {
  archive.field("name", entry.name);
  archive.field("shape", entry.shape, 0);
}

template <class Archive, Is<SymmetryGroup> T>
void fields(Archive& archive, T& group) {
  archive.field("parameters", group.parameters.entries);
  archive.field("findings", group.findings);
  archive.field("refusals", group.refusals);
  archive.field("joint_residual", group.joint_residual);
  archive.field("joint_tolerance", group.joint_tolerance);
  archive.optional("completeness", group.completeness);
  archive.field("notes", group.notes);
}

}  // namespace ddc::discover_json
