#include "ddc/testing/gauge_invariants.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <ostream>

#include "ddc/gauge/action.h"
#include "ddc/optim/adam.h"
#include "gauge/leg_maps.h"

namespace ddc::testing {
namespace {

struct Element {
  std::string name;
  GroupElement value;
};

struct Point {
  std::string name;
  Parameters params;
};

double tolerance_or(double given, const Parameters& params, double in_double, double in_float) {
  if (given > 0) return given;
  for (const auto& entry : params) {
    if (entry.tensor.scalar_type() != at::kDouble) return in_float;
  }
  return in_double;
}

double largest_entry(const Parameters& table) {
  double largest = 0;
  for (const auto& entry : table) {
    if (entry.tensor.numel() == 0) continue;
    largest = std::max(largest, entry.tensor.detach().abs().max().item<double>());
  }
  return largest;
}

/// Compares tables entry by entry; the error is relative to the largest entry of the tensor, but to
/// no less than `smallest_scale`.
Check compare(const Parameters& expected, const Parameters& actual, double smallest_scale = 0) {
  Check check;
  for (const auto& [name, tensor] : expected) {
    const auto a = tensor.detach().to(at::kDouble).flatten();
    const auto b = actual[name].tensor.detach().to(at::kDouble).flatten();
    if (a.numel() == 0) continue;
    const auto error = (b - a).abs();
    const double scale = std::max({a.abs().max().item<double>(), smallest_scale, 1e-300});
    const auto worst = error.argmax().item<int64_t>();
    const double difference = error[worst].item<double>() / scale;
    if (!(difference <= check.difference)) {  // also where it is NaN
      check.where = name + "[" + std::to_string(worst) + "]";
      check.expected = a[worst].item<double>();
      check.actual = b[worst].item<double>();
      check.difference = std::isnan(difference) ? INFINITY : difference;
    }
  }
  return check;
}

Check compare(double expected, double actual) {
  Check check;
  check.expected = expected;
  check.actual = actual;
  const double difference = std::abs(actual - expected) / std::max(std::abs(expected), 1e-300);
  check.difference = std::isnan(difference) ? INFINITY : difference;
  return check;
}

Parameters gradients(const Parameters& params, const Loss& loss, int64_t batch) {
  const at::AutoGradMode enable_grad(true);
  for (const auto& entry : params) entry.tensor.mutable_grad() = at::Tensor();
  loss(params, batch).backward();
  Parameters result;
  for (const auto& [name, tensor] : params) {
    result.add(name, tensor.grad().defined() ? tensor.grad().clone() : at::zeros_like(tensor));
  }
  return result;
}

class Session {
 public:
  Session(const Gauge& gauge, const Parameters& params, const Loss& loss,
          const InvariantOptions& options)
      : gauge_(gauge), params_(params), loss_(loss), options_(options) {
    validate(gauge, params);
    if (!options_.optimizer) {
      options_.optimizer = [](const Parameters& p, std::vector<Gauge> gauges) {
        return std::make_unique<DDCAdam>(p, std::move(gauges), AdamOptions{.lr = 1e-3},
                                         Treatment{.placement = Place::in_place});
      };
    }
    gauge_tolerance_ = tolerance_or(options.gauge_tolerance, params, 1e-11, 2e-4);
    step_tolerance_ = tolerance_or(options.step_tolerance, params, 1e-9, 2e-3);
    generator_ = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  }

  InvariantReport run() {
    for (const auto& point : points()) {
      for (const auto& element : elements()) {
        regime_ = element.name + " element, " + point.name;
        check_group_law(point.params, element.value);
        check_invariance(point.params, element.value);
        check_covariance(point.params, element.value);
        check_steps(point.params, element.value);
      }
    }
    return std::move(report_);
  }

 private:
  std::vector<Element> elements() {
    const auto draw = [&](double size) {
      return random_element(gauge_, params_, size, generator_);
    };
    // A rotation cannot be large; a matrix that is nearly singular loses as many digits.
    const double huge = gauge_.action == Action::scale ? 8 : 100;
    const auto far =
        gauge_.mixes() ? draw(gauge_.action == Action::linear ? 1.5 : 3) : draw(1).sign() * huge;
    return {{"identity", identity_element(gauge_, params_)},
            {"near", draw(1e-6)},
            {"random", draw(0.5)},
            {"huge", far}};
  }

  /// The weights given, and for scale gauges with two sides the edges of the action.
  std::vector<Point> points() {
    std::vector<Point> result{{"given weights", params_.clone()}};
    if (gauge_.action != Action::scale) return result;
    for (const int sign : {+1, -1}) {
      const bool has_side = std::any_of(gauge_.legs.begin(), gauge_.legs.end(),
                                        [&](const Leg& leg) { return leg.exponent * sign > 0; });
      if (!has_side) return result;
    }
    for (const int sign : {+1, -1}) {
      const std::string side = sign > 0 ? "plus side" : "minus side";
      result.push_back({side + " tiny", with_side(sign, 1e-6)});
      result.push_back({side + " zero", with_side(sign, 0)});
    }
    return result;
  }

  /// A copy in which one side of the first channel is multiplied by `factor`.
  Parameters with_side(int sign, double factor) {
    const at::NoGradGuard no_grad;
    auto copy = params_.clone();
    auto multiplier = at::ones({gauge_.channels}, at::kDouble);
    multiplier[0].fill_(factor);
    for (const auto& leg : gauge_.legs) {
      if (leg.exponent * sign < 0) continue;
      auto tensor = copy[leg.tensor].tensor;
      const auto map = map_of(gauge_, leg, tensor);
      const auto along = map.gather_vector(multiplier.to(tensor.options().requires_grad(false)), 1);
      tensor.copy_((tensor + leg.offset) * along - leg.offset);
    }
    return copy;
  }

  void add(Check check, const char* identity, double tolerance) {
    check.identity = identity;
    check.regime = regime_;
    check.tolerance = tolerance;
    report_.checks.push_back(std::move(check));
  }

  void check_group_law(const Parameters& theta, const GroupElement& g) {
    const auto h = random_element(gauge_, theta, 0.3, generator_);
    auto there_and_back = theta.clone();
    act_(gauge_, g, there_and_back);
    act_(gauge_, inverse(gauge_, g), there_and_back);
    // Adding a large shift and taking it away rounds at the size of the shift.
    const double loss_of_digits = is_additive() ? 1 + g.abs().max().item<double>() : 1;
    add(compare(theta, there_and_back), "group law: inverse", gauge_tolerance_ * loss_of_digits);
    auto one_by_one = theta.clone();
    act_(gauge_, h, one_by_one);
    act_(gauge_, g, one_by_one);
    auto at_once = theta.clone();
    act_(gauge_, compose(gauge_, g, h), at_once);
    add(compare(at_once, one_by_one), "group law: product", gauge_tolerance_ * loss_of_digits);
  }

  Parameters moved(const Parameters& theta, const GroupElement& g) const {
    auto copy = theta.clone();
    act_(gauge_, g, copy);
    return copy;
  }

  void check_invariance(const Parameters& theta, const GroupElement& g) {
    const at::NoGradGuard no_grad;
    add(compare(loss_(theta, 0).item<double>(), loss_(moved(theta, g), 0).item<double>()),
        "invariance", gauge_tolerance_);
  }

  void check_covariance(const Parameters& theta, const GroupElement& g) {
    auto expected = gradients(theta, loss_, 0);
    const auto charge = noether_charge(gauge_, theta, expected);
    const auto worst = charge.value.abs().flatten().argmax().item<int64_t>();
    Check noether;
    noether.where = "channel " + std::to_string(worst);
    noether.actual = charge.value.flatten()[worst].item<double>();
    // A tensor to which the loss is blind has nothing but rounding for a gradient; the gradients of
    // the others tell how large that is.
    const double scale =
        is_additive() ? largest_entry(expected) : charge.scale.max().item<double>();
    noether.difference = std::abs(noether.actual) / std::max(scale, 1e-300);
    add(noether, "covariance: Noether charge", gauge_tolerance_);
    act_on_gradient_(gauge_, g, theta, expected);
    add(compare(expected, gradients(moved(theta, g), loss_, 0), 1e-4 * largest_entry(expected)),
        "covariance", gauge_tolerance_ * 10);
  }

  bool is_additive() const {
    return gauge_.action == Action::shift || gauge_.action == Action::exchange;
  }

  /// The factors between weights and coordinates where nothing but the gauge is bound: a weight that
  /// is read through a norm counts as it is seen through the gain, and the bias beside it does not
  /// move once what it reads of the shift is added.
  at::Tensor seen_factors(const Parameters& theta) const {
    std::vector<at::Tensor> parts;
    for (const auto& [name, tensor] : theta) {
      auto factor = at::ones_like(tensor.detach(), at::kDouble);
      for (const auto& leg : gauge_.legs) {
        const auto& through = leg.through;
        if (!through.shift.empty() && through.bias == name) factor.zero_();
        if (through.gain.empty() || leg.tensor != name) continue;
        const auto gain = theta[through.gain].tensor.detach() + through.gain_offset;
        factor.movedim(leg.axis, -1).copy_(gain);
      }
      parts.push_back(factor.flatten());
    }
    return at::cat(parts);
  }

  /// A rotation has no coordinate to hold: one more step must have no part along the orbit. In the
  /// metric of the coordinates, that is, which are known where nothing but the rotation is bound.
  void check_orbit_part(const Parameters& theta, LiftedOptimizer& optimizer) {
    if (!options_.others.empty()) return;
    const auto before = theta.clone();
    gradients(theta, loss_, options_.steps);
    optimizer.step();
    const auto factors = seen_factors(before);
    const auto tangents = orbit_tangents(gauge_, before) * factors;
    std::vector<at::Tensor> parts;
    for (const auto& [name, tensor] : theta) {
      parts.push_back((tensor.detach() - before[name].tensor.detach()).to(at::kDouble).flatten());
    }
    const auto step = at::cat(parts) * factors;
    const auto along = tangents.mv(step);
    const auto worst = along.abs().argmax().item<int64_t>();
    Check held;
    held.where = "generator " + std::to_string(worst);
    held.actual = along[worst].item<double>();
    held.difference =
        std::abs(held.actual) /
        std::max(tangents[worst].norm().item<double>() * step.norm().item<double>(), 1e-300);
    add(held, "horizontality", step_tolerance_);
  }

  void check_steps(const Parameters& start, const GroupElement& g) {
    auto gauges = options_.others;
    gauges.insert(gauges.begin(), gauge_);
    auto theta = start.clone();
    auto image = moved(start, g);
    const auto optimizer = options_.optimizer(theta, gauges);
    const auto image_optimizer = options_.optimizer(image, gauges);
    const auto r0 = image_optimizer->gauge_coordinate(gauge_.name);
    for (int64_t batch = 0; batch < options_.steps; ++batch) {
      gradients(theta, loss_, batch);
      gradients(image, loss_, batch);
      optimizer->step();
      image_optimizer->step();
    }
    // At the canonical place both are the same; they are compared where they come from.
    for (auto* each : {optimizer.get(), image_optimizer.get()}) each->to_original_();
    add(compare(moved(theta, g), image), "equivariance", step_tolerance_);
    for (auto* each : {optimizer.get(), image_optimizer.get()}) each->to_canonical_();

    if (gauge_.action == Action::rotation) {
      check_orbit_part(image, *image_optimizer);
      return;
    }
    const auto r = image_optimizer->gauge_coordinate(gauge_.name).flatten();
    const auto start_r = r0.flatten();
    // A channel that was degenerate at the start has no coordinate to hold.
    const auto drift = at::where(start_r.isnan(), 0.0, (r - start_r).abs());
    const auto worst = drift.argmax().item<int64_t>();
    Check held;
    held.where = "channel " + std::to_string(worst);
    held.expected = start_r[worst].item<double>();
    held.actual = r[worst].item<double>();
    held.difference = drift[worst].item<double>();
    if (std::isnan(held.difference)) held.difference = INFINITY;
    const double size = std::max(1.0, std::abs(held.expected));
    add(held, "horizontality", gauge_tolerance_ * size);
  }

  const Gauge& gauge_;
  const Parameters& params_;
  const Loss& loss_;
  InvariantOptions options_;
  double gauge_tolerance_;
  double step_tolerance_;
  at::Generator generator_;
  std::string regime_;
  InvariantReport report_;
};

}  // namespace

bool InvariantReport::ok() const { return !checks.empty() && failures().empty(); }

std::vector<Check> InvariantReport::failures() const {
  std::vector<Check> result;
  std::copy_if(checks.begin(), checks.end(), std::back_inserter(result),
               [](const Check& check) { return !check.passed(); });
  return result;
}

std::ostream& operator<<(std::ostream& out, const Check& check) {
  const auto flags = out.flags();
  const auto precision = out.precision();
  out << (check.passed() ? "passed: " : "FAILED: ") << check.identity << " (" << check.regime
      << ")";
  if (!check.where.empty()) out << " at " << check.where;
  out << std::setprecision(17) << "\n    expected   " << check.expected << "\n    actual     "
      << check.actual << std::setprecision(3) << "\n    difference " << check.difference
      << " (tolerance " << check.tolerance << ")";
  out.flags(flags);
  out.precision(precision);
  return out;
}

std::ostream& operator<<(std::ostream& out, const InvariantReport& report) {
  const auto failures = report.failures();
  out << report.checks.size() - failures.size() << " of " << report.checks.size()
      << " checks passed\n";
  for (const auto& check : failures) out << check << '\n';
  return out;
}

InvariantReport check_gauge_invariants(const Gauge& gauge, const Parameters& params,
                                       const Loss& loss, const InvariantOptions& options) {
  return Session(gauge, params, loss, options).run();
}

}  // namespace ddc::testing
