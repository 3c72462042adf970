#include "ddc/optim/recipe.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <set>

namespace ddc {
namespace {

/// The rotations that a linear gauge contains: for those A^-T = A.
Gauge rotations_of(Gauge gauge) {
  if (gauge.action != Action::linear || gauge.block < 2) return gauge;
  gauge.action = Action::rotation;
  for (auto& leg : gauge.legs) leg.exponent = 1;
  const auto end = gauge.kind.find("linear");
  if (end != std::string::npos) gauge.kind.replace(end, 6, "rotation");
  return gauge;
}

bool is_head_kind(const std::string& kind) {
  return kind.starts_with("QK ") || kind.starts_with("VO ");
}

/// The gauge set of the paper's grokking appendix: rotations of heads (the torus where there is RoPE), shifts
/// of logits, rescales of feed-forward blocks, and scales of the norms that those read. Other norms' scales,
/// head scales, exchanges, kernel shifts and the residual stream's gauges are not in it.
std::vector<Gauge> paper_gauges(const std::vector<Gauge>& gauges, bool muon) {
  std::set<std::string> not_fed_forward;
  for (const auto& gauge : gauges) {
    if (!is_head_kind(gauge.kind) && gauge.kind != "CE row shift") continue;
    for (const auto& leg : gauge.legs) not_fed_forward.insert(leg.tensor);
  }
  std::vector<Gauge> kept;
  for (const auto& each : gauges) {
    auto gauge = rotations_of(each);
    const bool rotation = gauge.action == Action::rotation && is_head_kind(gauge.kind);
    const bool shift = gauge.kind == "CE row shift" || gauge.kind == "CE bias shift";
    const bool norm = gauge.kind == "norm scale" &&
                      std::none_of(gauge.legs.begin(), gauge.legs.end(), [&](const Leg& leg) {
                        return not_fed_forward.contains(leg.tensor);
                      });
    const bool scale = norm || gauge.kind.ends_with("rescale") || gauge.kind == "diagonal linear";
    if (rotation || shift || (scale && !muon)) kept.push_back(std::move(gauge));
  }
  return kept;
}

Recipe paper(const std::string& rule, const std::vector<Gauge>& gauges) {
  const bool muon = rule == "DDCMuon";
  const bool keeps_second_moments = muon || rule == "DDCAdam";
  Treatment treatment{.heads = Heads::cut, .coordinates = Coordinates::polar, .decay_held = true};
  if (keeps_second_moments) treatment.second_moment = SecondMoment::body_frame_topk;
  Recipe result{paper_gauges(gauges, muon), treatment, {}};
  if (muon) {
    treatment.project = Projection::momentum;
    result.treatments = treatment;
    result.options = {{"method", std::string("sharpen")}, {"scale", std::string("frobenius")}};
  }
  return result;
}

}  // namespace

Recipe recipe(const std::string& name, const std::string& rule, std::vector<Gauge> gauges) {
  if (name == "default") return {std::move(gauges), {}, {}};
  if (name == "paper") return paper(rule, gauges);
  std::vector<std::string> names;
  for (const auto& [known, help] : recipe_names()) names.push_back(known);
  TORCH_CHECK_VALUE(false, unknown("recipe", name, names));
}

std::vector<std::pair<std::string, std::string>> recipe_names() {
  return {{"default", "every gauge, coordinates folded or balanced"},
          {"paper", "the paper's gauges and settings"}};
}

}  // namespace ddc
