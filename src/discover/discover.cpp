#include "ddc/discover/discover.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <sstream>

#include "coordinates/coordinate_system.h"
#include "coordinates/plan.h"
#include "ddc/discover/gate.h"
#include "ddc/geometry/completeness.h"
#include "ddc/measure/engagement.h"
#include "discover/gate_point.h"
#include "discover/reasons.h"
#include "gauge/leg_maps.h"
#include "labels.h"
#include "search.h"
#include "widen.h"

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
    TORCH_CHECK(!tensor.is_complex(), "discover: '", name, "' is ", type,
                "; gauges act on real parameters: let the model hold torch.view_as_real of it");
    TORCH_CHECK(tensor.layout() == at::kStrided, "discover: '", name, "' is ", tensor.layout(),
                "; gauges act on axes of dense tensors");
    TORCH_CHECK(type == at::kFloat || type == at::kDouble, "discover: '", name, "' is ", type,
                "; charges of a narrower type than float32 do not tell a symmetry from rounding");
    TORCH_CHECK(tensor.is_leaf(), "discover: '", name, "' is not a leaf tensor");
    const auto overlap = [&](const NamedTensor& other) {
      return at::get_overlap_status(other.tensor, tensor);
    };
    const auto twin = std::find_if(result.begin(), result.end(), [&](const NamedTensor& other) {
      return overlap(other) != at::MemOverlapStatus::No;
    });
    if (twin != result.end()) {
      TORCH_CHECK(overlap(*twin) == at::MemOverlapStatus::Full &&
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
  bool depends = false;
  if (loss.requires_grad()) {
    for (const auto& gradient :
         torch::autograd::grad({loss}, params.tensors(), {}, /*retain_graph=*/std::nullopt,
                               /*create_graph=*/false, /*allow_unused=*/true)) {
      depends = depends || gradient.defined();
    }
  }
  TORCH_CHECK(depends, "discover: the loss does not depend on any of the ", params.size(),
              " parameters that require gradients");
  const double again = evaluate(0).loss.item<double>();
  const double eps = loss.scalar_type() == at::kDouble ? 1e-12 : 1e-5;
  TORCH_CHECK(std::abs(again - value) <= eps * std::max(std::abs(value), 1e-30),
              "discover: batch 0 has loss ", value, " and, evaluated again, ", again,
              "; the same batch number must give the same batch and the same loss. Is dropout on? "
              "(model.eval() switches it off.)");
}

using Progress = std::function<void(const char* stage, size_t done, size_t all)>;

/// With more gauges than this, those of one kind are tried together; of a large model with more than few.
constexpr size_t many = 60;
constexpr size_t many_of_large = 12;

Finding finding(const Gauge& gauge, const Parameters& params, const Verdict& verdict) {
  return {.gauge = gauge,
          .group = group_name(gauge, params),
          .dimension = dimension(gauge, params),
          .residual = verdict.residual,
          .tolerance = verdict.tolerance};
}

Refusal refusal(const Gauge& gauge, double residual, std::string reason) {
  Refusal result{gauge.name, gauge.kind, {}, residual, std::move(reason)};
  for (const auto& leg : gauge.legs) {
    if (std::find(result.tensors.begin(), result.tensors.end(), leg.tensor) ==
        result.tensors.end()) {
      result.tensors.push_back(leg.tensor);
    }
  }
  return result;
}

/// The length of the outputs' last axis; 0 if it is not known.
int64_t classes_of(const Evaluate& evaluate) {
  const at::NoGradGuard no_grad;
  const auto outputs = evaluate(0).outputs;
  return outputs.defined() && outputs.dim() > 0 ? outputs.size(-1) : 0;
}

/// Decides what belongs to the group. Works at the generic point.
class Judge {
 public:
  Judge(const Parameters& params, GatePoint& point, int64_t classes, bool large, Progress report,
        SymmetryGroup& group)
      : large_(large),
        params_(params),
        point_(point),
        report_(std::move(report)),
        group_(group),
        classes_(classes) {}

  /// Tries gauges, alone or with those of their kind.
  void try_all(std::vector<Gauge> gauges) {
    proposed_ = gauges.size();
    if (gauges.size() <= (large_ ? many_of_large : many)) {
      for (auto& gauge : gauges) try_one(gauge);
      return;
    }
    std::vector<std::vector<Gauge>> kinds;
    for (auto& gauge : gauges) {
      const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const auto& kind) {
        return kind.front().kind == gauge.kind && kind.front().action == gauge.action;
      });
      found == kinds.end() ? kinds.push_back({std::move(gauge)})
                           : found->push_back(std::move(gauge));
    }
    bool together = false;
    for (auto& kind : kinds) together = try_kind(kind) || together;
    if (together) {
      group_.notes.push_back(
          "gauges of one kind were tried together: their residual is that of all");
    }
  }

  /// Tries what may hold in one layer alone: one of each pattern first, and the others if it passes. What
  /// fails was a guess, and nobody's symmetry.
  void try_guesses(const std::vector<std::vector<Gauge>>& guesses) {
    for (const auto& pattern : guesses) {
      for (const auto& gauge : pattern) {
        const auto verdict = gate({gauge}, params_, point_, quick_);
        if (!verdict.passed) break;
        add(gauge, verdict);
      }
    }
  }

  /// Adds the first choice that passes somewhere to `gauges`, for the whole pattern: where it fails it is refused
  /// with a reason.
  void choose(const Choices& pattern, std::vector<Gauge>& gauges) {
    for (const auto& here : pattern.gauges) {
      for (size_t k = 0; k < here.size(); ++k) {
        report_("widths", k, here.size());
        if (!gate({here[k]}, params_, point_, quick_).passed) continue;
        for (const auto& choices : pattern.gauges) gauges.push_back(choices[k]);
        return;
      }
    }
    group_.notes.push_back("no widening of '" + pattern.name + "' is a symmetry");
  }

  /// What charges have overlooked and the gate lets pass belongs to the group all the same.
  void refuse_expected(const std::vector<Gauge>& expected) {
    // The search did not see what comes behind a layer whose successor was left out.
    std::erase_if(group_.refusals, [&](const Refusal& refused) {
      return std::any_of(group_.findings.begin(), group_.findings.end(), [&](const Finding& found) {
        return found.gauge.kind == refused.kind &&
               found.gauge.legs.front().tensor == refused.tensors.front();
      });
    });
    for (const auto& gauge : expected) {
      const auto known = [&](const auto& entry) { return entry.name == gauge.name; };
      if (std::any_of(group_.refusals.begin(), group_.refusals.end(), known)) continue;
      const auto verdict = gate({gauge}, params_, point_, quick_);
      if (verdict.passed) {
        add(gauge, verdict);
        continue;
      }
      auto reason = reason_of_failure(gauge, params_, point_.evaluate());
      // Tensors with as many rows as there are classes are expected to have the shift of logits only if
      // they make logits, and only before a softmax; those with as many as experts if they route.
      const auto begins = [&](const char* words) { return reason.rfind(words, 0) == 0; };
      if (gauge.kind.rfind("CE", 0) == 0 && !begins("tied") && !begins("soft cap") &&
          !begins("z-loss")) {
        continue;
      }
      if (gauge.kind == "router shift" && !begins("z-loss")) continue;
      group_.refusals.push_back(refusal(gauge, verdict.residual, std::move(reason)));
    }
  }

  /// What optimizers cannot bind together is left out.
  void bind_together() {
    const auto fits = [&](const std::vector<Gauge>& gauges, std::string& why) {
      std::vector<GroupedParameter> table;
      for (const auto& parameter : params_) table.push_back({parameter, 0});
      try {
        compile(table, gauges);
        return true;
      } catch (const c10::Error& error) {
        why = error.what_without_backtrace();
        return false;
      }
    };
    keep_while(fits);
  }

  /// All gauges at once.
  void try_together() {
    bind_together();
    if (group_.findings.empty()) return;
    auto verdict = gate(group_.gauges(), params_, point_);
    if (!verdict.passed) {
      keep_while([&](const std::vector<Gauge>& gauges, std::string& why) {
        verdict = gate(gauges, params_, point_);
        why = "it passes the gate alone, but not together with those above";
        return verdict.passed;
      });
      verdict = gate(group_.gauges(), params_, point_);
    }
    group_.joint_residual = verdict.residual;
    group_.joint_tolerance = verdict.tolerance;
  }

 private:
  /// Names tell gauges apart: a second one at the same tensor gets a number.
  void add(Gauge gauge, const Verdict& verdict) {
    const auto first = gauge.name;
    for (size_t number = 2; !names_.insert(gauge.name).second; ++number) {
      gauge.name = first + "." + std::to_string(number);
    }
    group_.findings.push_back(finding(gauge, params_, verdict));
  }

  void try_one(Gauge& gauge, bool alone = true) {
    report_("gate", tried_++, proposed_);
    const auto verdict = gate({gauge}, params_, point_, alone ? GateOptions{} : quick_);
    if (gauge.kind == "shift") label_shift_(params_, gauge, verdict.shifts_logits);
    if (verdict.passed) {
      add(gauge, verdict);
    } else {
      group_.refusals.push_back(
          refusal(gauge, verdict.residual, reason_of_failure(gauge, params_, point_.evaluate())));
    }
  }

  /// Leaves out what does not go together with the findings before it.
  void keep_while(
      const std::function<bool(const std::vector<Gauge>& gauges, std::string& why)>& fits) {
    std::string why;
    if (fits(group_.gauges(), why)) return;
    std::vector<Finding> kept;
    std::vector<Gauge> gauges;
    for (auto& found : group_.findings) {
      gauges.push_back(found.gauge);
      if (fits(gauges, why)) {
        kept.push_back(std::move(found));
        continue;
      }
      gauges.pop_back();
      group_.refusals.push_back(
          refusal(found.gauge, found.residual, "a symmetry, but left out: " + why));
    }
    group_.findings = std::move(kept);
  }

  /// True if the gauges were tried together.
  bool try_kind(std::vector<Gauge>& kind) {
    // Whether a shift moves the logits is known only if it is tried alone.
    const auto may_move_logits = [&](const Gauge& gauge) {
      const auto& leg = gauge.legs.front();
      return gauge.kind == "shift" && params_[leg.tensor].tensor.size(leg.axis) == classes_;
    };
    const auto others = std::stable_partition(kind.begin(), kind.end(), may_move_logits);
    for (auto gauge = kind.begin(); gauge != others; ++gauge) try_one(*gauge, /*alone=*/false);
    kind.erase(kind.begin(), others);
    if (kind.empty()) return false;
    return try_some(kind);
  }

  /// Together, and if that fails in halves: a wrong guess among a hundred gauges costs as many evaluations as a
  /// hundred can be halved. True if any were tried together.
  bool try_some(std::span<Gauge> some) {
    if (some.size() == 1) {
      try_one(some.front(), /*alone=*/false);
      return false;
    }
    std::set<std::string> tensors;
    size_t legs = 0;
    for (const auto& gauge : some) {
      for (const auto& leg : gauge.legs) tensors.insert(leg.tensor);
      legs += gauge.legs.size();
    }
    auto options = quick_;
    options.shrink = tensors.size() == legs;
    report_("gate", tried_, proposed_);
    const auto verdict = gate({some.begin(), some.end()}, params_, point_, options);
    if (!verdict.passed) {
      const bool first = try_some(some.first(some.size() / 2));
      return try_some(some.subspan(some.size() / 2)) || first;
    }
    for (auto& gauge : some) {
      if (gauge.kind == "shift") label_shift_(params_, gauge, false);
      add(gauge, verdict);
    }
    tried_ += some.size();
    return true;
  }

  bool large_;
  const Parameters& params_;
  GatePoint& point_;
  Progress report_;
  SymmetryGroup& group_;
  int64_t classes_;
  size_t tried_ = 0;
  size_t proposed_ = 0;
  std::set<std::string> names_;
  GateOptions quick_{.batches = 1};
};

/// What the search proposes.
struct Candidates {
  std::vector<Gauge> gauges;
  /// By analogy with layers that may be special; those with one pattern together.
  std::vector<std::vector<Gauge>> guesses;
  /// What similar models have.
  std::vector<Gauge> expected;
  /// Sets of gauges that exclude one another: one of each is to be chosen.
  std::vector<Choices> choices;
};

Candidates candidates_of(Probe& probe, const Parameters& params, const Stacks& stacks,
                         const DiscoverOptions& options, int64_t classes, const Progress& report) {
  report("charges", 0, 0);
  probe.balance();
  Search search(probe, params, stacks, options.hints);
  search.find_scales();
  search.find_gains();
  search.find_gain_gauges();
  // Before heads are looked for: what turns with the residual stream has none.
  search.find_residual_rotation();
  report("heads", 0, 0);
  search.find_blocks();
  search.find_heads();
  search.find_blocks();
  search.find_plane_gauges();
  search.find_rotations();
  search.add_null_biases();
  report("shifts", 0, 0);
  search.find_shifts();
  search.find_exchanges();
  search.find_lone_scales();
  search.find_pairs_of_scales();
  for (auto& gauge : search.gauges) label_(search, gauge);
  Candidates result;
  std::map<size_t, std::vector<Gauge>> guesses;
  for (auto& proposal : stacks.by_analogy(search.gauges)) {
    // Before a norm a length is forgotten but for its eps, in every model: that is nothing to refuse.
    const bool guess = proposal.guess || proposal.gauge.kind == "length";
    (guess ? guesses[proposal.source] : result.gauges).push_back(std::move(proposal.gauge));
  }
  for (auto& [source, gauges] : guesses) result.guesses.push_back(std::move(gauges));
  result.expected = search.expected(classes);
  return result;
}

/// Decides which of the candidates are gauges, where the probe has moved the parameters to. False if that was
/// interrupted.
bool decide(const Probe& probe, const Candidates& candidates, const DiscoverOptions& options,
            int64_t classes, const Progress& report, SymmetryGroup& group) {
  const auto& params = probe.params();
  probe.move_to(0);
  report("gate", 0, 0);
  // A small model's copies are no burden, and are there at once.
  GatePoint point(probe.evaluate(), probe.is_large() ? probe.place(0) : ValuesAt());
  Judge judge(params, point, classes, probe.is_large(), report, group);
  try {
    auto gauges = candidates.gauges;
    for (const auto& pattern : candidates.choices) judge.choose(pattern, gauges);
    judge.try_all(std::move(gauges));
    judge.try_guesses(candidates.guesses);
    report("refusals", 0, 0);
    judge.refuse_expected(candidates.expected);
    report("all together", 0, 0);
    judge.try_together();
  } catch (const Interrupted&) {
    judge.bind_together();
    if (group.findings.empty()) throw;
    group.joint_residual = group.joint_tolerance = std::numeric_limits<double>::quiet_NaN();
    group.notes.emplace_back(
        "interrupted: these gauges have passed the gate each, others were not tried, nor all "
        "together");
    return false;
  }
  if (options.completeness) {
    report("completeness", 0, 0);
    // The group has been found; that its dimension cannot be compared with the null space's is no reason
    // to lose it.
    try {
      group.completeness = completeness(group.gauges(), params, probe.evaluate(),
                                        {.seed = options.seed, .exact_up_to = options.exact_up_to});
    } catch (const c10::Error& error) {
      group.notes.push_back(std::string("completeness is not known: ") +
                            error.what_without_backtrace());
    }
  }
  return true;
}

/// Finds gauges and decides which of them are. The parameters are moved meanwhile. False if that was
/// interrupted.
bool find(const Parameters& params, const Evaluate& evaluate, const DiscoverOptions& options,
          const Progress& report, SymmetryGroup& group) {
  const Stacks stacks(params);
  const int64_t classes = classes_of(evaluate);
  // All parameters are at a generic point, for the gate as well.
  Probe everything(params, evaluate, options.seed + 1);
  Candidates candidates;
  if (stacks.empty()) {
    candidates = candidates_of(everything, params, stacks, options, classes, report);
  } else {
    everything.move_to(0);
    const auto searched = stacks.searched_of(params);
    group.notes.push_back(std::to_string(stacks.searched()) + " of " +
                          std::to_string(stacks.layers()) +
                          " repeated layers were searched, and the others tried by analogy");
    auto probe = everything.of_part(searched);
    candidates = candidates_of(probe, params, stacks, options, classes, report);
  }
  return decide(everything, candidates, options, classes, report, group);
}

/// At the weights as they are a gain may have entries that are zero. What acts through them is a
/// symmetry wherever they are not; here there is no finite element of it but the neutral one.
void leave_out_dead_gains(const Parameters& params, SymmetryGroup& group) {
  std::erase_if(group.findings, [&](const Finding& found) {
    for (const auto& leg : found.gauge.legs) {
      if (leg.through.gain.empty()) continue;
      const auto& gain = params[leg.through.gain];
      const auto dead = dead_entries(gain.tensor, leg.through.gain_offset).sum().item<int64_t>();
      if (dead == 0) continue;
      std::ostringstream reason;
      reason << "a symmetry, but left out: " << dead << " entries of the gain '" << gain.name
             << "' are zero, or as good as";
      group.refusals.push_back(refusal(found.gauge, found.residual, reason.str()));
      return true;
    }
    return false;
  });
}

/// Whether gauges can be bound where the parameters are.
bool can_bind(const Parameters& params, const std::vector<Gauge>& gauges, std::string& why) {
  std::vector<GroupedParameter> table;
  for (const auto& parameter : params) table.push_back({parameter, 0});
  try {
    CoordinateSystem(table, gauges);
    return true;
  } catch (const c10::ValueError& error) {
    why = error.what_without_backtrace();
    return false;
  }
}

/// A linear group that is larger than what its weights span (a head wider than the stream that it reads) does not
/// act freely, and some chains of linear groups have no place in common. They are symmetries, but no optimizer
/// can hold them, nor can two models be compared along them.
void leave_out_unbindable(const Parameters& params, SymmetryGroup& group) {
  const auto is_linear = [](const Finding& found) { return found.gauge.action == Action::linear; };
  std::string why;
  if (std::none_of(group.findings.begin(), group.findings.end(), is_linear) ||
      can_bind(params, group.gauges(), why)) {
    return;
  }
  std::vector<Gauge> kept;
  for (const auto& found : group.findings) {
    if (!is_linear(found)) kept.push_back(found.gauge);
  }
  int64_t count = 0;
  int64_t dimension = 0;
  std::erase_if(group.findings, [&](const Finding& found) {
    if (!is_linear(found)) return false;
    if (can_bind(params, {found.gauge}, why)) {
      kept.push_back(found.gauge);
      if (can_bind(params, kept, why)) return false;
      kept.pop_back();
    }
    ++count;
    dimension += found.dimension;
    group.refusals.push_back(
        refusal(found.gauge, found.residual, "a symmetry, but left out: " + why));
    return true;
  });
  if (count == 0) return;
  std::ostringstream note;
  note << count << " linear gauges of dimension " << dimension
       << " are symmetries that cannot be held at these weights, and are left out (completeness "
          "counts them)";
  group.notes.push_back(note.str());
}

/// The gauge without some of its channels.
Gauge without_channels(Gauge gauge, const std::vector<bool>& dropped) {
  std::vector<int64_t> renumbered;
  int64_t kept = 0;
  for (const bool drop : dropped) renumbered.push_back(drop ? -1 : kept++);
  for (auto& leg : gauge.legs) {
    if (leg.channel_of.empty()) {
      leg.channel_of = renumbered;
    } else {
      for (auto& channel : leg.channel_of) channel = channel < 0 ? -1 : renumbered[channel];
    }
  }
  gauge.channels = kept;
  return gauge;
}

/// A channel whose gain is as good as zero beside its shift is hardly seen by what reads it, and rounding
/// errors of the shift would drown that. It does not scale; one that is zero will once it is not.
void leave_out_dead_channels(const Parameters& params, SymmetryGroup& group) {
  for (auto& found : group.findings) {
    const Leg first = found.gauge.legs.front();
    if (found.gauge.kind != "norm scale" || params[first.tensor].tensor.dim() != 1) continue;
    const auto gain = params[first.tensor].tensor.detach() + first.offset;
    const auto dead = dead_entries(gain, 0) & gain.ne(0);
    std::vector<bool> dropped(found.gauge.channels, false);
    for (int64_t i = 0; i < dead.size(0); ++i) {
      const int64_t channel = first.channel_of.empty() ? i : first.channel_of[i];
      if (channel >= 0 && dead[i].item<bool>()) dropped[channel] = true;
    }
    const auto count = std::count(dropped.begin(), dropped.end(), true);
    if (count == 0) continue;
    found.gauge = without_channels(found.gauge, dropped);
    found.group = group_name(found.gauge, params);
    found.dimension = dimension(found.gauge, params);
    std::ostringstream note;
    note << count << " entries of the gain '" << first.tensor
         << "' are as good as zero, and are left out of its scale";
    group.notes.push_back(note.str());
  }
}

}  // namespace

namespace {

/// What discovery and widening have in common; `find` adds to the group, and says whether it finished.
SymmetryGroup group_of(const Parameters& params, const Evaluate& evaluate,
                       const DiscoverOptions& options,
                       const std::function<bool(const Parameters& moving, const Progress& report,
                                                SymmetryGroup& group)>& find) {
  const Progress report = [&](const char* stage, size_t done, size_t all) {
    if (options.progress) options.progress(stage, done, all);
  };
  SymmetryGroup group;
  group.parameters = fingerprint(params);
  const auto moving = trainable(params, group.notes);
  check_loss(moving, evaluate);
  const bool finished = find(moving, report, group);
  leave_out_dead_gains(moving, group);
  leave_out_dead_channels(moving, group);
  leave_out_unbindable(moving, group);
  if (finished && options.engagement_steps > 0 && !group.findings.empty()) {
    report("engagement", 0, 0);
    const auto moved =
        engagement(group.gauges(), moving, evaluate, {.steps = options.engagement_steps});
    for (size_t k = 0; k < moved.size(); ++k) group.findings[k].engagement = moved[k];
  }
  return group;
}

}  // namespace

SymmetryGroup discover(const Parameters& params, const Evaluate& evaluate,
                       const DiscoverOptions& options) {
  return group_of(params, evaluate, options,
                  [&](const Parameters& moving, const Progress& report, SymmetryGroup& group) {
                    return find(moving, evaluate, options, report, group);
                  });
}

SymmetryGroup widen(const SymmetryGroup& narrow, const Parameters& params, const Evaluate& evaluate,
                    const DiscoverOptions& options) {
  return group_of(params, evaluate, options,
                  [&](const Parameters& moving, const Progress& report, SymmetryGroup& group) {
                    Candidates candidates;
                    candidates.choices = widened(narrow, moving, group.notes);
                    const Probe probe(moving, evaluate, options.seed + 1);
                    return decide(probe, candidates, options, classes_of(evaluate), report, group);
                  });
}

}  // namespace ddc
