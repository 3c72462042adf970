#include "ddc/discover/discover.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

#include "ddc/discover/gate.h"
#include "labels.h"
#include "search.h"

namespace ddc {
namespace {

/// The parameters that take part, each once.
Parameters trainable(const Parameters& params, std::vector<std::string>& notes) {
  TORCH_CHECK(!params.empty(), "discover: there are no parameters");
  Parameters result;
  int64_t frozen = 0;
  for (const auto& [name, tensor] : params) {
    if (!tensor.requires_grad()) {
      ++frozen;
      continue;
    }
    const auto type = tensor.scalar_type();
    TORCH_CHECK(type == at::kFloat || type == at::kDouble, "discover: '", name, "' is ", type,
                "; charges of a narrower type than float32 do not tell a symmetry from rounding");
    TORCH_CHECK(tensor.is_leaf(), "discover: '", name, "' is not a leaf tensor");
    const auto twin = std::find_if(result.begin(), result.end(), [&](const NamedTensor& other) {
      return other.tensor.is_alias_of(tensor);
    });
    if (twin != result.end()) {
      TORCH_CHECK(twin->tensor.data_ptr() == tensor.data_ptr() &&
                      twin->tensor.sizes() == tensor.sizes() &&
                      twin->tensor.strides() == tensor.strides(),
                  "discover: '", twin->name, "' and '", name,
                  "' share memory without being the same tensor");
      notes.push_back("'" + name + "' is tied to '" + twin->name + "' and counted once");
      continue;
    }
    if (tensor.numel() == 0) {
      notes.push_back("'" + name + "' has no entries");
      continue;
    }
    result.add(name, tensor);
  }
  TORCH_CHECK(!result.empty(), "discover: none of the ", params.size(),
              " parameters requires gradients");
  if (frozen > 0) notes.push_back(std::to_string(frozen) + " frozen parameters are held fixed");
  return result;
}

/// Whatever is wrong with the loss is said before anything is moved.
void check_loss(const Parameters& params, const Evaluate& evaluate) {
  TORCH_CHECK(evaluate, "discover: `evaluate` is empty");
  const at::AutoGradMode enable_grad(true);
  const auto loss = evaluate(0).loss;
  TORCH_CHECK(loss.defined() && loss.numel() == 1, "discover: the loss of batch 0 is not a scalar");
  const double value = loss.item<double>();
  TORCH_CHECK(std::isfinite(value), "discover: the loss of batch 0 is ", value);
  TORCH_CHECK(loss.requires_grad(), "discover: the loss does not depend on any of the ",
              params.size(), " parameters that require gradients");
  const double again = evaluate(0).loss.item<double>();
  const double eps = loss.scalar_type() == at::kDouble ? 1e-12 : 1e-5;
  TORCH_CHECK(std::abs(again - value) <= eps * std::max(std::abs(value), 1e-30),
              "discover: batch 0 has loss ", value, " and, evaluated again, ", again,
              "; the same batch number must give the same batch and the same loss. Is dropout on? "
              "(model.eval() switches it off.)");
}

}  // namespace

SymmetryGroup discover(const Parameters& params, const Evaluate& evaluate,
                       const DiscoverOptions& options) {
  const auto report = [&](const char* stage) {
    if (options.progress) options.progress(stage);
  };
  SymmetryGroup group;
  group.parameters = fingerprint(params);
  const auto moving = trainable(params, group.notes);
  check_loss(moving, evaluate);

  report("charges");
  Probe probe(moving, evaluate, options.seed + 1);
  Search search(probe, options.hints);
  search.find_scales();
  report("blocks");
  search.find_blocks();
  search.find_heads();
  search.find_blocks();
  search.find_plane_gauges();
  search.find_rotations();
  report("shifts");
  search.find_shifts();
  search.find_gains();
  search.find_gain_gauges();
  search.find_exchanges();
  search.find_residual_rotation();

  report("gate");
  probe.move_to(0);
  for (auto& gauge : search.gauges) {
    label_(search, gauge);
    const auto verdict = gate(gauge, moving, evaluate);
    if (gauge.kind == "shift") label_shift_(search, gauge, verdict.shifts_logits);
    if (verdict.passed) {
      group.findings.push_back({.gauge = gauge,
                                .group = group_name(gauge, moving),
                                .dimension = dimension(gauge, moving),
                                .residual = verdict.residual,
                                .tolerance = verdict.tolerance});
    } else {
      Refusal refusal{gauge.name, gauge.kind, {}, verdict.residual, {}};
      for (const auto& leg : gauge.legs) refusal.tensors.push_back(leg.tensor);
      group.refusals.push_back(std::move(refusal));
    }
  }
  return group;
}

}  // namespace ddc
