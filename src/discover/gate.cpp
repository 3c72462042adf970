#include "ddc/discover/gate.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ddc/gauge/action.h"
#include "discover/gate_point.h"
#include "discover/noise.h"
#include "discover/restore.h"

namespace ddc {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Rounding is imitated by relative noise of so many eps, and what passes is so many times what the
/// noise does.
constexpr double kNoise = 2;
constexpr double kSafety = 20;
/// A change below so many eps of the loss or the outputs themselves is rounding whatever the noise
/// says: they may not depend on the tensors at all.
constexpr double kFloor = 1;
/// A residual that would pass up to more than this tells nothing.
constexpr double kDrowned = 0.1;
/// A residual of so many times the tolerance: no further element is tried.
constexpr double kClear = 10;
/// The denominator of a residual is at least this share of the loss or the outputs.
constexpr double kBlind = 1e-3;
/// Log of the factor by which an element shrinks (and another grows) all channels of a scale: enough
/// to make a norm's eps show beside the variance it is added to.
constexpr double kShrink = 6;

Outcome evaluated(const Evaluate& evaluate, int64_t batch) {
  const at::NoGradGuard no_grad;
  const auto evaluation = evaluate(static_cast<uint64_t>(batch));
  TORCH_CHECK(evaluation.loss.defined() && evaluation.loss.numel() == 1, "gate: the loss of batch ",
              batch, " is not a scalar");
  const auto& outputs = evaluation.outputs;
  return {evaluation.loss.item<double>(), outputs.defined() ? outputs.detach() : outputs};
}

/// A size of the loss, of the outputs, and of the outputs less their mean over the last axis.
struct Size {
  double loss = 0;
  double outputs = 0;
  double centred = 0;

  Size largest(const Size& other) const {
    return {std::max(loss, other.loss), std::max(outputs, other.outputs),
            std::max(centred, other.centred)};
  }
};

double finite_or_infinite(double value) { return std::isfinite(value) ? value : kInfinity; }

/// How far `there` is from `here`. Outputs that are not finite here (masked ones) do not count.
Size change(const Outcome& here, const Outcome& there) {
  Size size;
  size.loss = finite_or_infinite(std::abs(there.loss - here.loss));
  if (!here.outputs.defined() || here.outputs.numel() == 0) return size;
  auto difference = there.outputs - here.outputs;
  difference = difference.masked_fill(here.outputs.isfinite().logical_not(), 0);
  size.outputs = finite_or_infinite(norm_of(difference));
  // A single output has no class to be compared with.
  const bool logits = difference.dim() > 0 && difference.size(-1) > 1;
  size.centred =
      logits ? finite_or_infinite(norm_of(difference - difference.mean(-1, true))) : size.outputs;
  return size;
}

Size size_of(const Outcome& here) {
  const double outputs = here.outputs.defined() ? norm_of(here.outputs.nan_to_num(0, 0, 0)) : 0;
  return {std::abs(here.loss), outputs, outputs};
}

double eps_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return std::numeric_limits<double>::epsilon();
    case at::kFloat:
      return std::numeric_limits<float>::epsilon();
    case at::kHalf:
      return std::ldexp(1.0, -10);
    default:
      return std::ldexp(1.0, -7);  // bfloat16
  }
}

int64_t entries_of(const Parameters& params) {
  int64_t entries = 0;
  for (const auto& [name, tensor] : params) entries += tensor.numel();
  return entries;
}

/// Moves every entry by what it is rounded by.
void add_rounding_(const Parameters& params, const at::Generator& generator) {
  const at::NoGradGuard no_grad;
  const Noise noise(entries_of(params), generator);
  int64_t offset = 0;
  for (const auto& entry : params) {
    const double size = kNoise * eps_of(entry.tensor);
    noise.each(entry.tensor, offset, [&](const at::Tensor& piece, const at::Tensor& drawn) {
      at::Tensor(piece).addcmul_(drawn, piece, size);
    });
    offset += entry.tensor.numel();
  }
}

/// An element of the product of the gauges' groups.
using Element = std::vector<GroupElement>;

/// Blocks of rotations with more channels are turned in so many planes at random, and not by matrices: what
/// holds for planes at random holds for all, and so for their products.
constexpr int64_t kWide = 256;
constexpr int64_t kPlanes = 8;

bool is_wide(const Gauge& gauge) { return gauge.action == Action::rotation && gauge.block > kWide; }

/// `count` orthonormal vectors per block, orthogonal to the ones if these are fixed.
at::Tensor orthonormal(const Gauge& gauge, int64_t count, const at::Generator& generator) {
  auto drawn = at::randn({gauge.blocks(), gauge.block, count}, generator, at::kDouble);
  if (gauge.fixes_ones) drawn = drawn - drawn.mean(1, true);
  return std::get<0>(at::linalg_qr(drawn, "reduced"));
}

/// Turns by the angle in every plane. Two reflections turn by twice the angle between their normals.
GroupElement in_planes(const Gauge& gauge, double angle, const at::Generator& generator) {
  const auto all = orthonormal(gauge, 2 * kPlanes, generator);
  const auto first = all.narrow(2, 0, kPlanes);
  const auto second =
      first * std::cos(angle / 2) + all.narrow(2, kPlanes, kPlanes) * std::sin(angle / 2);
  return at::cat({first, second}, 2);
}

/// One step of Newton's iteration for the polar factor: exponentials of matrices in float64 are
/// orthogonal to many times its rounding, which the gate would notice.
GroupElement orthogonal(const GroupElement& element) {
  return 1.5 * element - 0.5 * element.matmul(element.transpose(-1, -2)).matmul(element);
}

/// Turns a block's rotation into one of determinant -1.
GroupElement reflected(const Gauge& gauge, const GroupElement& element,
                       const at::Generator& generator) {
  if (is_wide(gauge)) return at::cat({element, orthonormal(gauge, 1, generator)}, 2);
  auto normal = at::randn({gauge.blocks(), gauge.block, 1}, generator, at::kDouble);
  if (gauge.fixes_ones) normal = normal - normal.mean(1, true);
  normal = normal / normal.norm(2, {1}, true);
  const auto mirror =
      at::eye(gauge.block, at::kDouble) - 2 * normal.matmul(normal.transpose(-1, -2));
  return compose(gauge, mirror, element);
}

/// What is tried: elements of every size, the last of them with reflections where the group has them;
/// with a scale, which a norm's eps may hide, the last one shrunk and grown on top.
std::vector<Element> elements(const std::vector<Gauge>& gauges, const Parameters& params,
                              const GateOptions& options, const at::Generator& generator) {
  std::vector<Element> result;
  for (const double size : options.sizes) {
    Element element;
    for (const auto& gauge : gauges) {
      element.push_back(is_wide(gauge) ? in_planes(gauge, size, generator)
                                       : random_element(gauge, params, size, generator));
    }
    result.push_back(std::move(element));
  }
  auto& last = result.back();
  for (size_t k = 0; k < gauges.size(); ++k) {
    if (gauges[k].action != Action::rotation) continue;
    if (gauges[k].block > 2) last[k] = reflected(gauges[k], last[k], generator);
    for (auto& element : result) {
      if (!is_wide(gauges[k])) element[k] = orthogonal(element[k]);
    }
  }
  const bool scales = std::any_of(gauges.begin(), gauges.end(), [](const Gauge& gauge) {
    return gauge.action == Action::scale || gauge.action == Action::linear;
  });
  if (!scales || !options.shrink.value_or(gauges.size() == 1)) return result;
  auto grown = result.back();
  for (size_t k = 0; k < gauges.size(); ++k) {
    if (gauges[k].action == Action::scale) {
      grown[k] = grown[k] + kShrink;
      result.back()[k] -= kShrink;
    } else if (gauges[k].action == Action::linear) {
      grown[k] = grown[k] * std::exp(kShrink);
      result.back()[k] *= std::exp(-kShrink);
    }
  }
  result.push_back(std::move(grown));
  return result;
}

class Gate {
 public:
  Gate(const std::vector<Gauge>& gauges, const Parameters& params, GatePoint& point,
       const GateOptions& options)
      : gauges_(gauges),
        params_(params),
        evaluate_(point.evaluate()),
        generator_(at::make_generator<at::CPUGeneratorImpl>(options.seed)),
        batches_(options.batches),
        restore_(point.place() ? Restore(acted_on(gauges, params), point.place())
                               : Restore(acted_on(gauges, params))) {
    for (const auto& [name, tensor] : restore_.params()) eps_ = std::max(eps_, eps_of(tensor));
    for (int64_t b = 0; b < batches_; ++b) {
      here_.push_back(point.outcome(b));
      TORCH_CHECK(std::isfinite(here_.back().loss), "gate: the loss of batch ", b, " is ",
                  here_.back().loss, ", there is nothing to compare with");
      scale_ = scale_.largest(size_of(here_.back()));
    }
    const double loss = here_[0].loss;
    TORCH_CHECK(point.difference() <= 1e3 * eps_ * std::abs(loss), "gate: batch 0 has loss ", loss,
                " and, evaluated again, one that differs by ", point.difference(),
                "; the same number must give the same batch and the same loss (is dropout on?)");
    add_rounding_(restore_.params(), generator_);
    rounding_here_ = changes(here_);
    restore_.now();
  }

  Verdict run(const GateOptions& options) {
    verdict_.passed = true;
    for (const auto& element : elements(gauges_, params_, options, generator_)) {
      if (!clearly_failed()) try_(element);
    }
    verdict_.passed = verdict_.passed && (told_ || gauges_.empty());
    verdict_.shifts_logits = verdict_.shifts_logits && verdict_.passed;
    return verdict_;
  }

 private:
  /// The outcome of every batch at the parameters as they are now.
  std::vector<Outcome> outcomes() const {
    std::vector<Outcome> result;
    for (int64_t b = 0; b < batches_; ++b) result.push_back(evaluated(evaluate_, b));
    return result;
  }

  Size changes(const std::vector<Outcome>& from) const {
    Size size;
    for (int64_t b = 0; b < batches_; ++b) {
      size = size.largest(change(from[b], evaluated(evaluate_, b)));
    }
    return size;
  }

  /// How far each tensor is from where it was.
  std::vector<double> distances() const {
    std::vector<double> result;
    size_t k = 0;
    for (const auto& [name, tensor] : restore_.params()) {
      result.push_back(distance_of(tensor.detach(), restore_.value(k++)));
    }
    return result;
  }

  /// What a random move of the tensors by these distances changes; on one batch, as it is but a unit.
  Size control(const std::vector<double>& distances) {
    const at::NoGradGuard no_grad;
    const Noise noise(entries_of(restore_.params()), generator_);
    int64_t offset = 0;
    size_t k = 0;
    for (const auto& entry : restore_.params()) {
      double squares = 0;
      noise.each(entry.tensor, offset, [&](const at::Tensor&, const at::Tensor& drawn) {
        squares += drawn.to(at::kDouble).square().sum().item<double>();
      });
      const double size = distances[k++] / std::max(std::sqrt(squares), 1e-300);
      noise.each(entry.tensor, offset, [&](const at::Tensor& piece, const at::Tensor& drawn) {
        at::Tensor(piece).add_(drawn, size);
      });
      offset += entry.tensor.numel();
    }
    return change(here_[0], evaluated(evaluate_, 0));
  }

  void try_(const Element& element) {
    act_(gauges_, element, params_);
    const auto moved = distances();
    const auto there = outcomes();
    add_rounding_(restore_.params(), generator_);
    const auto rounding = rounding_here_.largest(changes(there));
    restore_.now();
    const auto random = control(moved);
    restore_.now();

    Size change_there;
    for (int64_t b = 0; b < batches_; ++b) {
      change_there = change_there.largest(change(here_[b], there[b]));
    }
    judge("loss", change_there.loss, random.loss, rounding.loss, scale_.loss);
    if (!here_[0].outputs.defined()) return;
    const auto allowed = tolerated(rounding.outputs, scale_.outputs);
    const bool shifts = change_there.outputs > allowed && change_there.centred <= allowed;
    verdict_.shifts_logits = verdict_.shifts_logits || shifts;
    judge("outputs", shifts ? change_there.centred : change_there.outputs, random.outputs,
          rounding.outputs, scale_.outputs);
  }

  bool clearly_failed() const {
    return !verdict_.passed && verdict_.residual > kClear * verdict_.tolerance;
  }

  double tolerated(double rounding, double scale) const {
    return kSafety * std::max(rounding, kFloor * eps_ * scale);
  }

  /// Keeps what is closest to its tolerance, or furthest above.
  void judge(const char* what, double measured, double random, double rounding, double scale) {
    // A random move far enough takes loss and outputs anywhere, and what they are blind to nowhere.
    const double unit =
        std::clamp(random, std::max(kBlind * scale, 1e-300), std::max(scale, 1e-300));
    const double residual = measured / unit;
    const double tolerance = tolerated(rounding, scale) / unit;
    const bool passed = std::isfinite(measured) && residual <= tolerance;
    if (passed && tolerance > kDrowned) return;
    told_ = true;
    if (verdict_.worst.empty() || !std::isfinite(residual) ||
        residual * verdict_.tolerance > verdict_.residual * tolerance) {
      verdict_.residual = residual;
      verdict_.tolerance = std::min(tolerance, kDrowned);
      verdict_.worst = what;
    }
    verdict_.passed = verdict_.passed && passed;
  }

  const std::vector<Gauge>& gauges_;
  const Parameters& params_;
  const Evaluate& evaluate_;
  at::Generator generator_;
  int64_t batches_;
  Restore restore_;
  double eps_ = 0;
  std::vector<Outcome> here_;
  Size scale_;
  Size rounding_here_;
  Verdict verdict_;
  /// Whether rounding left anything to judge by.
  bool told_ = false;
};

}  // namespace

const Outcome& GatePoint::outcome(int64_t batch) {
  for (auto next = std::ssize(outcomes_); next <= batch; ++next) {
    outcomes_.push_back(evaluated(evaluate_, next));
  }
  return outcomes_[static_cast<size_t>(batch)];
}

double GatePoint::difference() {
  if (difference_ < 0) difference_ = std::abs(evaluated(evaluate_, 0).loss - outcome(0).loss);
  return difference_;
}

Verdict gate(const std::vector<Gauge>& gauges, const Parameters& params, GatePoint& point,
             const GateOptions& options) {
  TORCH_CHECK(options.batches > 0, "gate: batches must be positive, got ", options.batches);
  TORCH_CHECK(!options.sizes.empty(), "gate: sizes must not be empty");
  for (const double size : options.sizes) {
    TORCH_CHECK(size > 0 && std::isfinite(size), "gate: sizes must be positive, got ", size);
  }
  for (const auto& gauge : gauges) validate(gauge, params);
  return Gate(gauges, params, point, options).run(options);
}

Verdict gate(const std::vector<Gauge>& gauges, const Parameters& params, const Evaluate& evaluate,
             const GateOptions& options) {
  TORCH_CHECK(evaluate, "gate: `evaluate` is empty");
  GatePoint point(evaluate);
  return gate(gauges, params, point, options);
}

Verdict gate(const Gauge& gauge, const Parameters& params, const Evaluate& evaluate,
             const GateOptions& options) {
  return gate(std::vector<Gauge>{gauge}, params, evaluate, options);
}

}  // namespace ddc
