#pragma once

#include "ddc/discover/symmetry_group.h"
#include "gauge/gauge_fields.h"

// What is stored of a symmetry group beside its gauges.

namespace ddc::fields_json {

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
  archive.optional("role", entry.role);
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

}  // namespace ddc::fields_json
