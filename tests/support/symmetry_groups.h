#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ddc/discover/symmetry_group.h"
#include "ddc/testbeds/blocks.h"

namespace ddc::tests {

/// A group of the gauges that are known, as discovery would return it.
inline SymmetryGroup group_of(const std::vector<Gauge>& gauges, const Parameters& params) {
  SymmetryGroup group;
  group.parameters = fingerprint(params);
  for (const auto& gauge : gauges) {
    group.findings.push_back({.gauge = gauge,
                              .group = group_name(gauge, params),
                              .dimension = dimension(gauge, params),
                              .residual = 1.0 / 3e15,
                              .tolerance = 1e-12});
  }
  group.joint_residual = 2.0 / 3e15;
  group.joint_tolerance = 1e-11;
  return group;
}

inline std::vector<testbeds::Testbed> blocks_with_all_gauges() {
  constexpr auto kAll = testbeds::GaugeSet::with_residual_rotation;
  return {testbeds::layer_norm_block({.gauges = kAll}), testbeds::rms_norm_block({.gauges = kAll}),
          testbeds::gpt_j_block({.gauges = kAll}), testbeds::vit_block({.gauges = kAll})};
}

inline void expect_same(const Leg& a, const Leg& b) {
  EXPECT_EQ(a.tensor, b.tensor);
  EXPECT_EQ(a.axis, b.axis);
  EXPECT_EQ(a.exponent, b.exponent);
  EXPECT_EQ(a.channel_of, b.channel_of);
  EXPECT_EQ(a.offset, b.offset);
  EXPECT_EQ(a.through.gain, b.through.gain);
  EXPECT_EQ(a.through.gain_offset, b.through.gain_offset);
  EXPECT_EQ(a.through.shift, b.through.shift);
  EXPECT_EQ(a.through.bias, b.through.bias);
  EXPECT_EQ(a.head_size, b.head_size);
}

inline void expect_same(const Gauge& a, const Gauge& b) {
  SCOPED_TRACE(a.name);
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.action, b.action);
  EXPECT_EQ(a.channels, b.channels);
  EXPECT_EQ(a.block, b.block);
  EXPECT_EQ(a.fixes_ones, b.fixes_ones);
  ASSERT_EQ(a.legs.size(), b.legs.size());
  for (size_t k = 0; k < a.legs.size(); ++k) expect_same(a.legs[k], b.legs[k]);
}

/// A NaN is the same as a NaN.
inline void expect_same(double a, double b) {
  EXPECT_TRUE(a == b || (std::isnan(a) && std::isnan(b))) << a << " and " << b;
}

inline void expect_same(const SymmetryGroup& a, const SymmetryGroup& b) {
  EXPECT_EQ(a.parameters, b.parameters);
  ASSERT_EQ(a.findings.size(), b.findings.size());
  for (size_t i = 0; i < a.findings.size(); ++i) {
    const auto& one = a.findings[i];
    const auto& other = b.findings[i];
    expect_same(one.gauge, other.gauge);
    EXPECT_EQ(one.group, other.group);
    EXPECT_EQ(one.dimension, other.dimension);
    expect_same(one.residual, other.residual);
    expect_same(one.tolerance, other.tolerance);
    ASSERT_EQ(one.engagement.has_value(), other.engagement.has_value());
    if (!one.engagement) continue;
    expect_same(one.engagement->plain, other.engagement->plain);
    expect_same(one.engagement->lifted, other.engagement->lifted);
    EXPECT_EQ(one.engagement->engaged, other.engagement->engaged);
  }
  ASSERT_EQ(a.refusals.size(), b.refusals.size());
  for (size_t i = 0; i < a.refusals.size(); ++i) {
    EXPECT_EQ(a.refusals[i].name, b.refusals[i].name);
    EXPECT_EQ(a.refusals[i].kind, b.refusals[i].kind);
    EXPECT_EQ(a.refusals[i].tensors, b.refusals[i].tensors);
    expect_same(a.refusals[i].residual, b.refusals[i].residual);
    EXPECT_EQ(a.refusals[i].reason, b.refusals[i].reason);
  }
  expect_same(a.joint_residual, b.joint_residual);
  expect_same(a.joint_tolerance, b.joint_tolerance);
  EXPECT_EQ(a.notes, b.notes);
  ASSERT_EQ(a.completeness.has_value(), b.completeness.has_value());
  if (!a.completeness) return;
  const auto& one = *a.completeness;
  const auto& other = *b.completeness;
  EXPECT_EQ(one.method, other.method);
  EXPECT_EQ(one.parameters, other.parameters);
  expect_same(one.kernel, other.kernel);
  EXPECT_EQ(one.explained, other.explained);
  EXPECT_EQ(one.dead, other.dead);
  expect_same(one.unexplained, other.unexplained);
  expect_same(one.gap, other.gap);
  ASSERT_EQ(one.per_tensor.size(), other.per_tensor.size());
  for (size_t i = 0; i < one.per_tensor.size(); ++i) {
    EXPECT_EQ(one.per_tensor[i].tensor, other.per_tensor[i].tensor);
    expect_same(one.per_tensor[i].dimensions, other.per_tensor[i].dimensions);
  }
}

/// Every field away from its default, every enum at its last word.
inline SymmetryGroup unusual_group() {
  Parameters params;
  params.add("fused", at::zeros({12, 6}));
  params.add("out", at::zeros({6, 4}));
  params.add("gain", at::zeros({6}));
  params.add("shift", at::zeros({6}));
  params.add("bias \"\u00e9\\", at::zeros({12}));
  Gauge rotation;
  rotation.name = "turn \u03b8";
  rotation.kind = "odd";
  rotation.action = Action::rotation;
  rotation.channels = 6;
  rotation.block = 3;
  rotation.fixes_ones = true;
  rotation.legs = {
      {.tensor = "fused",
       .axis = 1,
       .channel_of = {},
       .through = {.gain = "gain", .gain_offset = 0.1, .shift = "shift", .bias = "bias \"\u00e9\\"},
       .head_size = 3}};
  Gauge scale;
  scale.name = "scale";
  scale.channels = 4;
  scale.legs = {{.tensor = "fused",
                 .axis = 0,
                 .exponent = -2.0 / 3,
                 .channel_of = {3, 3, 1, 1, 2, 2, -1, -1, -1, 0, 0, -1},
                 .offset = 1},
                {.tensor = "out", .axis = 1, .exponent = std::nextafter(1, 2)}};

  auto group = group_of({rotation, scale}, params);
  group.findings[0].residual = std::numeric_limits<double>::quiet_NaN();
  group.findings[0].engagement = Engagement{.plain = 1e-3, .lifted = 5e-324, .engaged = true};
  group.findings[1].residual = std::numeric_limits<double>::infinity();
  group.findings[1].tolerance = -std::numeric_limits<double>::infinity();
  group.findings[1].engagement = Engagement{.plain = 0, .lifted = 0, .engaged = false};
  group.refusals = {{.name = "mlp",
                     .kind = "relu rescale",
                     .tensors = {"fused", "out"},
                     .residual = 0.7,
                     .reason = "GELU is not homogeneous"}};
  group.completeness = Completeness{.method = "exact",
                                    .parameters = 120,
                                    .kernel = 11,
                                    .explained = 6,
                                    .dead = 3,
                                    .unexplained = 2,
                                    .per_tensor = {{"out", 1.5}, {"fused", 0.5}},
                                    .gap = 1e9};
  group.notes = {"'a' and 'b' are one tensor", "3 units are dead"};
  return group;
}

}  // namespace ddc::tests
