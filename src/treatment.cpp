#include "ddc/treatment.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace ddc {

OptionList Treatment::options() {
  return {
      {"bind", bind,
       "respect the gauge; if not, it only tells base rules how tensors are cut into heads"},
      {"heads", heads,
       "how Muon sees the projections of heads that the gauge acts on: cut into one matrix per "
       "head, or "
       "whole; default: queries and keys cut, values and outputs whole"},
      {"placement", placement,
       "place of the weights: canonical (they are moved once, and steps are the base rule's own) "
       "or in place; default: canonical, but for what has no canonical place or is not to be "
       "moved"},
      {"coordinates", coordinates, "coordinates of scale gauges"},
      {"hold", hold, "what folded coordinates keep fixed: the ratio of both sides, or the gain"},
      {"vertical", vertical, "rule that moves the gauge coordinate of scales and shifts"},
      {"radial", radial, "coordinate of the joint scale in polar coordinates"},
      {"max_log_step", max_log_step,
       "largest change of the log of the joint scale in one step of the linear radius", above(0)},
      {"second_moment", second_moment, "second moment of rotations and linear gauges"},
      {"tau", tau,
       "share of the largest eigenvalue below which body_frame_topk takes momentum only",
       fraction()},
      {"frame_drift", frame_drift,
       "share of its norm by which a Gram matrix leaves its diagonal before a body frame is "
       "computed again",
       above(0)},
      {"frame_interval", frame_interval,
       "steps after which a body frame is computed again at the latest", at_least(1)},
      {"procrustes", procrustes,
       "also undo the rotation of second order that a finite step makes beside its orbit part"},
      {"rebalance_above", rebalance_above,
       "relative difference of both sides' Gram matrices above which a linear gauge is balanced "
       "again",
       fraction()},
      {"project", project,
       "vector of which the part along the orbit is subtracted; default: step, but never for the "
       "rotation of a residual stream at the canonical place, unless every is given"},
      {"every", every,
       "steps between two moves back to the section, at the canonical place (project=never: none); "
       "default: 10 for rotations and linear gauges (rotary planes under a rule that steps in one "
       "pass: 1), "
       "1 for others",
       at_least(1)},
      {"decay_held", decay_held,
       "let weight decay act on the held mean of a shift as well, which then does not commute with "
       "it"},
  };
}

Treatments& Treatments::of(const std::string& kind_or_name, Treatment treatment) {
  auto& other = others_[kind_or_name];
  other = {treatment, {}};
  const auto defaults = values_of(Treatment{});
  for (const auto& [option, value] : values_of(treatment)) {
    if (value != defaults.at(option)) other.said.insert(option);
  }
  return *this;
}

Treatments& Treatments::set(const std::string& option, const OptionValue& value,
                            const std::string& kind_or_name) {
  if (!kind_or_name.empty()) {
    auto& other = others_.emplace(kind_or_name, Other{all_, {}}).first->second;
    other.treatment.options().assign({{option, value}}, "a treatment");
    other.said.insert(option);
    return *this;
  }
  all_.options().assign({{option, value}}, "a treatment");
  for (auto& [key, other] : others_) other.treatment.options().assign({{option, value}});
  return *this;
}

const Treatments::Other* Treatments::find(const Gauge& gauge) const {
  for (const auto& key : {gauge.name, gauge.kind}) {
    const auto found = others_.find(key);
    if (found != others_.end()) return &found->second;
  }
  return nullptr;
}

const Treatment& Treatments::of(const Gauge& gauge) const {
  const auto* other = find(gauge);
  return other == nullptr ? all_ : other->treatment;
}

std::set<std::string> Treatments::specific(const Gauge& gauge) const {
  const auto* other = find(gauge);
  return other == nullptr ? std::set<std::string>{} : other->said;
}

void Treatments::check(const std::vector<Gauge>& gauges) const {
  std::vector<std::string> known;
  for (const auto& gauge : gauges) {
    if (std::find(known.begin(), known.end(), gauge.kind) == known.end()) {
      known.push_back(gauge.kind);
    }
  }
  for (const auto& [key, other] : others_) {
    const bool used = std::any_of(
        gauges.begin(), gauges.end(),
        [&, &name = key](const Gauge& gauge) { return gauge.kind == name || gauge.name == name; });
    TORCH_CHECK_VALUE(used, "treatment: ", unknown("kind of gauge", key, known));
  }
}

std::string to_string(const Treatment& treatment) {
  std::string text;
  const auto defaults = values_of(Treatment{});
  for (const auto& [name, value] : values_of(treatment)) {
    if (value == defaults.at(name)) continue;
    text.append(text.empty() ? "" : ", ").append(name).append("=").append(to_string(value));
  }
  return text;
}

}  // namespace ddc
