#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fnmatch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <set>
#include <sstream>
#include <utility>

#include "ddc/experiments/meter.h"
#include "ddc/geometry/curvature.h"
#include "ddc/geometry/observables.h"
#include "ddc/measure/gauge_coordinates.h"
#include "ddc/testbeds/runs.h"
#include "find_entry.h"

namespace ddc::experiments {
namespace {

using Clock = std::chrono::steady_clock;

/// How far the gauge coordinates are from where they were at the start: those that the optimizer holds,
/// or, if it holds none, those of all the testbed's gauges as an observer measures them.
class DriftMeter : public Meter {
 public:
  explicit DriftMeter(const MeterContext& context) : optimizer_(context.optimizer) {
    if (optimizer_.gauges().empty()) outside_.emplace(context.params, context.gauges);
    start_ = coordinates();
  }

  void measure(Values& values) override {
    const auto now = coordinates();
    double largest = 0;
    double sum = 0;
    int64_t channels = 0;
    int64_t unknown = 0;
    for (size_t k = 0; k < now.size(); ++k) {
      // A channel that is in a degenerate stratum, here or there, has no coordinate.
      const auto moved = (now[k] - start_[k]).flatten();
      const auto known = moved.masked_select(moved.isfinite()).abs();
      unknown += moved.numel() - known.numel();
      if (known.numel() == 0) continue;
      largest = std::max(largest, known.max().item<double>());
      sum += known.square().sum().item<double>();
      channels += known.numel();
    }
    // Not to be taken for channels that hold still.
    if (unknown > 0) values["channels_without_coordinate"] = static_cast<double>(unknown);
    if (channels == 0) return;
    values["drift"] = largest;
    values["drift_rms"] = std::sqrt(sum / static_cast<double>(channels));
  }

 private:
  std::vector<at::Tensor> coordinates() const {
    return outside_ ? outside_->measure() : optimizer_.gauge_coordinates();
  }

  const LiftedOptimizer& optimizer_;
  std::optional<GaugeCoordinates> outside_;
  std::vector<at::Tensor> start_;
};

/// How far a step turns the weights along the orbits of rotations, which have no coordinate. Of the
/// testbed's gauges, bound or not, on whose tensors nothing but rotations acts: where a scale changes the
/// units of the weights, a horizontal step turns them too.
class TurnMeter : public Meter {
 public:
  explicit TurnMeter(const MeterContext& context)
      : params_(context.params), gauges_(context.gauges) {
    std::set<std::string> scaled;
    for (const auto& gauge : gauges_) {
      if (gauge.mixes()) continue;
      for (const auto& leg : gauge.legs) scaled.insert(leg.tensor);
    }
    std::erase_if(gauges_, [&](const Gauge& gauge) {
      return !gauge.mixes() ||
             std::any_of(gauge.legs.begin(), gauge.legs.end(),
                         [&](const Leg& leg) { return scaled.contains(leg.tensor); });
    });
  }

  void before_step() override { before_ = testbeds::turned_parts(gauges_, params_); }
  void after_step(Values* values) override {
    if (before_.empty() || values == nullptr) return;
    const auto after = testbeds::turned_parts(gauges_, params_);
    (*values)["turn"] = testbeds::largest_turn(before_, after);
    size_t next = 0;
    for (const auto& gauge : gauges_) {
      for (int64_t block = 0; block < gauge.blocks(); ++block, ++next) {
        (*values)["turn[" + gauge.name + "." + std::to_string(block) + "]"] =
            testbeds::largest_turn({before_[next]}, {after[next]});
      }
    }
  }

 private:
  Parameters params_;
  std::vector<Gauge> gauges_;
  std::vector<at::Tensor> before_;
};

/// The batches of the testbed on copies of parameters in float64, through operations that can be differentiated
/// forward.
struct Measured {
  Measured(const testbeds::Testbed& bed, const Parameters& at, int64_t most)
      : testbed(bed), samples(most) {
    for (const auto& [name, tensor] : at) {
      params.add(name, tensor.detach().to(at::kDouble).clone().requires_grad_(true));
    }
  }

  Evaluate evaluate() const {
    return [this](uint64_t number) {
      auto batch = testbed.batch(number, at::kDouble);
      if (samples > 0 && samples < batch.inputs.size(0)) {
        batch = {batch.inputs.narrow(0, 0, samples), batch.targets.narrow(0, 0, samples)};
      }
      const auto outputs = testbed.traced ? testbed.traced(params, batch.inputs, {})
                                          : testbed.outputs(params, batch.inputs);
      return Evaluation(testbed.criterion(outputs, batch.targets), outputs);
    };
  }

  const testbeds::Testbed& testbed;
  int64_t samples;
  Parameters params;
};

/// Names of the parameters that a pattern matches; empty: of all.
std::vector<std::string> block_of(const char* meter, const std::string& pattern,
                                  const Parameters& params) {
  std::vector<std::string> block;
  if (pattern.empty()) return block;
  for (const auto& [name, tensor] : params) {
    if (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) block.push_back(name);
  }
  TORCH_CHECK_VALUE(!block.empty(), "meter ", meter, ": no parameter matches tensors = '", pattern,
                    "'");
  return block;
}

/// What its numbers are called. Of cross-entropy the Gauss-Newton matrix is the Fisher matrix; the others say what
/// they are.
std::string prefix_of(const std::string& prefix, CurvatureKind kind, const std::string& tensors) {
  const auto name = kind == CurvatureKind::gauss_newton ? "fisher" : std::string(to_string(kind));
  return prefix + name + (tensors.empty() ? "" : "[" + tensors + "]");
}

struct FisherOptions {
  CurvatureKind kind = CurvatureKind::gauss_newton;
  std::string tensors = {};
  int64_t batches = 1;
  int64_t samples = 0;
  int64_t labels = 1;
  int64_t dense_up_to = 1024;
  int64_t iterations = 100;
  bool few_samples = false;

  OptionList options() {
    return {{"kind", kind, "which curvature"},
            {"tensors", tensors, "block: pattern of names; empty: the whole model"},
            {"batches", batches, "batches that it is averaged over", at_least(1)},
            {"samples", samples, "samples of each batch, its first; 0: all", at_least(0)},
            {"labels", labels, "labels drawn per sample (monte_carlo_fisher)", at_least(1)},
            {"dense_up_to", dense_up_to, "parameters up to which all eigenvalues are found",
             at_least(0)},
            {"iterations", iterations, "steps of Lanczos' method above that", at_least(1)},
            {"few_samples", few_samples, "allow fewer than 100 samples per parameter"}};
  }
  std::string prefix() const { return prefix_of("", kind, tensors); }
};

/// Curvature modulo the testbed's gauges.
class FisherMeter : public Meter {
 public:
  FisherMeter(const FisherOptions& options, const MeterContext& context)
      : options_(options),
        context_(context),
        block_(block_of("fisher", options.tensors, context.params)) {
    // What cannot be measured is to be refused before a run begins.
    const Measured measured(context_.testbed, context_.params, options_.samples);
    const auto curvature = curvature_of(measured);
    check_samples(curvature, orbit_space(context_.gauges, measured.params, curvature), settings());
  }

  void measure(Values& values) override {
    const Measured measured(context_.testbed, context_.params, options_.samples);
    const auto curvature = curvature_of(measured);
    const auto read =
        spectrum(curvature, orbit_space(context_.gauges, measured.params, curvature), settings());
    const auto prefix = options_.prefix() + ".";
    const auto add = [&](const char* name, const Bounded& bounded) {
      values[prefix + name] = bounded.value;
      if (bounded.error > 0) values[prefix + name + "_error"] = bounded.error;
    };
    add("smallest", read.smallest);
    add("largest", read.largest);
    add("trace", read.trace);
    add("log_determinant", read.log_determinant);
    add("effective_rank", read.effective_rank);
    values[prefix + "removed"] = static_cast<double>(read.removed);
    for (const auto& [name, count] : read.removed_by) {
      if (count > 0) values[prefix + "removed_by[" + name + "]"] = static_cast<double>(count);
    }
    values[prefix + "dead"] = static_cast<double>(read.dead);
    values[prefix + "samples_per_parameter"] = read.samples_per_parameter;
    if (read.few_samples) values[prefix + "few_samples"] = 1;
    if (read.zeros) values[prefix + "zeros"] = static_cast<double>(*read.zeros);
    for (const auto& [name, share] : read.zeros_in)
      values[prefix + "zeros_in[" + name + "]"] = share;
    if (read.gap > 0) values[prefix + "gap"] = read.gap;
    notes_ = read.notes;
  }

  std::vector<std::string> notes() const override { return notes_; }

 private:
  Curvature curvature_of(const Measured& measured) const {
    return {measured.params,
            measured.evaluate(),
            {.kind = options_.kind,
             .batches = options_.batches,
             .tensors = block_,
             .labels = options_.labels}};
  }
  SpectrumOptions settings() const {
    return {.dense_up_to = options_.dense_up_to,
            .iterations = options_.iterations,
            .few_samples = options_.few_samples};
  }

  FisherOptions options_;
  MeterContext context_;
  std::vector<std::string> block_;
  std::vector<std::string> notes_;
};

struct StepFisherOptions {
  CurvatureKind kind = CurvatureKind::gauss_newton;
  std::string tensors = {};
  int64_t batches = 1;
  int64_t samples = 0;

  OptionList options() {
    return {{"kind", kind, "which curvature"},
            {"tensors", tensors, "block: pattern of names; empty: the whole model"},
            {"batches", batches, "batches that it is averaged over", at_least(1)},
            {"samples", samples, "samples of each batch, its first; 0: all", at_least(0)}};
  }
  std::string prefix() const { return prefix_of("step_", kind, tensors); }
};

/// Curvature along a step, v^T F v / |v|^2, at the weights before and after it.
class StepFisherMeter : public Meter {
 public:
  StepFisherMeter(const StepFisherOptions& options, const MeterContext& context)
      : options_(options),
        context_(context),
        block_(block_of("step_fisher", options.tensors, context.params)) {
    const Measured measured(context_.testbed, context_.params, options_.samples);
    curvature_of(measured);
  }

  void before_step() override { before_ = context_.params.clone(); }
  void after_step(Values* values) override {
    if (values == nullptr) return;
    const auto along = [&](const Parameters& at) {
      const Measured measured(context_.testbed, at, options_.samples);
      const auto curvature = curvature_of(measured);
      const at::NoGradGuard no_grad;
      std::vector<at::Tensor> parts;
      for (const auto& [name, tensor] : curvature.table()) {
        const auto moved = context_.params[name].tensor.detach().to(at::kDouble) -
                           before_[name].tensor.detach().to(at::kDouble);
        parts.push_back(moved.flatten());
      }
      const auto step = at::cat(parts);
      return (at::dot(step, curvature.product(step)) / at::dot(step, step)).item<double>();
    };
    const auto prefix = options_.prefix() + ".";
    (*values)[prefix + "before"] = along(before_);
    (*values)[prefix + "after"] = along(context_.params);
  }

 private:
  Curvature curvature_of(const Measured& measured) const {
    return {measured.params,
            measured.evaluate(),
            {.kind = options_.kind, .batches = options_.batches, .tensors = block_}};
  }

  StepFisherOptions options_;
  MeterContext context_;
  std::vector<std::string> block_;
  Parameters before_;
};

/// The paper's bound on the bias of a discrete step, from the second moments that the optimizer keeps, in the
/// coordinates that it keeps them in.
class ValidityMeter : public Meter {
 public:
  explicit ValidityMeter(const MeterContext& context) : optimizer_(context.optimizer) {
    TORCH_CHECK_VALUE(!groups().empty(),
                      "meter validity: the optimizer has no beta2 and eps, which a "
                      "preconditioner is made of");
  }

  void after_step(Values* values) override {
    if (values == nullptr) return;
    const at::NoGradGuard no_grad;
    const auto state = optimizer_.state_dict().tensors;
    // By learning rate and beta2: what is stepped by one rule.
    std::map<std::pair<double, double>, Parameters> preconditioners;
    for (const auto& group : groups()) {
      auto& table = preconditioners[{group.lr, group.beta2}];
      for (const auto& name : group.parameters) {
        const auto key = "param." + name + ".";
        const auto step = state.find(key + "step");
        if (step == state.end()) continue;
        const double correction = 1 - std::pow(group.beta2, step->second.item<double>());
        for (const auto& [field, tensor] : state) {
          const bool per_coordinate = field == key + "exp_avg_sq";
          if (!per_coordinate && !field.starts_with(key + "head_sq.")) continue;
          auto second = tensor.detach().to(at::kCPU, at::kDouble);
          // Eigenvalues of the matrix, where a head has one.
          if (!per_coordinate && second.size(-1) > 1) second = at::linalg_eigvalsh(second);
          table.add(field, (second.clamp_min(0) / correction).sqrt().add(group.eps).reciprocal());
        }
      }
    }
    std::optional<StepValidity> worst;
    for (const auto& [settings, table] : preconditioners) {
      if (table.begin() == table.end()) continue;
      const auto found = step_validity(table, settings.first, settings.second);
      if (!worst || found.ratio > worst->ratio) worst = found;
    }
    if (!worst) return;
    (*values)["validity.kappa"] = worst->kappa;
    (*values)["validity.ratio"] = worst->ratio;
  }

 private:
  struct Group {
    std::vector<std::string> parameters;
    double lr;
    double beta2;
    double eps;
  };
  std::vector<Group> groups() const {
    std::vector<Group> result;
    const auto description = Json::parse(optimizer_.state_dict().description);
    for (const auto& group : description.at("groups")) {
      const auto& options = group.at("options");
      if (!options.contains("beta2") || !options.contains("eps")) continue;
      result.push_back(
          {group.at("params"), options.at("lr"), options.at("beta2"), options.at("eps")});
    }
    return result;
  }

  const LiftedOptimizer& optimizer_;
};

struct ActivationOptions {
  int64_t batches = 1;
  double floor = 1e-3;
  double dead_below = 1e-3;

  OptionList options() {
    return {
        {"batches", batches, "batches of inputs", at_least(1)},
        {"floor", floor, "singular values of hidden units below this share of the largest are dead",
         between(0, 1)},
        {"dead_below", dead_below, "joint norms below this are dead", above(0)}};
  }
};

/// Spectra at every node of the residual stream, the dead part of hidden layers, and norms of their rows and columns.
class ActivationMeter : public Meter {
 public:
  ActivationMeter(const ActivationOptions& options, const MeterContext& context)
      : options_(options), context_(context) {
    TORCH_CHECK_VALUE(context.testbed.traced, "meter activations: testbed '", context.testbed.name,
                      "' has no nodes to look at");
  }

  void measure(Values& values) override {
    const at::NoGradGuard no_grad;
    std::vector<std::string> names;
    std::map<std::string, std::vector<at::Tensor>> nodes;
    for (int64_t i = 0; i < options_.batches; ++i) {
      const auto batch = context_.testbed.batch(static_cast<uint64_t>(i),
                                                context_.params.begin()->tensor.scalar_type());
      context_.testbed.traced(context_.params, batch.inputs,
                              [&](const std::string& name, const at::Tensor& node) {
                                if (!nodes.contains(name)) names.push_back(name);
                                nodes[name].push_back(node.reshape({-1, node.size(-1)}));
                              });
    }
    for (const auto& name : names) {
      const auto node = at::cat(nodes[name]);
      const auto prefix = "activations[" + name + "].";
      if (!name.starts_with("stream")) {
        measure_hidden(name, prefix, node, values);
      } else {
        const auto read = activation_spectrum(node);
        values[prefix + "sigma_min"] = read.sigma_min;
        values[prefix + "effective_rank"] = read.effective_rank;
      }
    }
  }

 private:
  void measure_hidden(const std::string& name, const std::string& prefix, const at::Tensor& node,
                      Values& values) const {
    const auto dead = dead_units(node);
    values[prefix + "never_on"] = static_cast<double>(dead.never_on);
    values[prefix + "always_on"] = static_cast<double>(dead.always_on);
    // Left singular directions of the units' activations: a row per unit.
    if (node.size(0) < node.size(1)) {
      // Rank is bounded by the number of rows: how many directions are dead cannot be told.
      values[prefix + "rows_missing"] = static_cast<double>(node.size(1) - node.size(0));
    } else {
      const auto directions = dead_directions(node.relu().t(), options_.floor);
      values[prefix + "dead_directions"] = static_cast<double>(directions.size(1));
      if (const auto aligned = axis_alignment(directions)) {
        values[prefix + "axis_alignment"] = *aligned;
        values[prefix + "space_alignment"] = *space_alignment(directions);
      }
    }
    const auto& params = context_.params;
    auto entering = params[name + ".weight"].tensor;
    for (const auto& [side, dimension] : {std::pair("row", 1), {"column", 0}}) {
      const auto norms = entering.norm(2, {dimension});
      values[prefix + side + "_norm_min"] = norms.min().item<double>();
      values[prefix + side + "_norm_max"] = norms.max().item<double>();
    }
    if (!name.ends_with(".up")) return;
    const auto layer = name.substr(0, name.size() - 3);
    if (params.contains(name + ".bias")) {
      entering = at::cat({entering, params[name + ".bias"].tensor.unsqueeze(1)}, 1);
    }
    const auto norms = joint_norms(entering, params[layer + ".down.weight"].tensor);
    values[prefix + "gate_dead"] = norms.lt(options_.dead_below).sum().item<double>();
    values[prefix + "cluster_ratio"] = cluster_gap(norms).ratio;
  }

  ActivationOptions options_;
  MeterContext context_;
};

/// Arc length on the quotient.
class ArcMeter : public Meter {
 public:
  explicit ArcMeter(const MeterContext& context) : context_(context) {}

  bool follows_all_steps() const override { return true; }
  void measure(Values& values) override { values["arc"] = length_; }
  void before_step() override { before_ = context_.params.clone(); }
  void after_step(Values* /*values*/) override {
    const at::NoGradGuard no_grad;
    Parameters moved;
    for (const auto& [name, tensor] : context_.params) {
      moved.add(name, tensor.detach() - before_[name].tensor.detach());
    }
    length_ += horizontal_length(context_.gauges, before_, moved);
  }
  std::optional<double> state() const override { return length_; }
  void resume(double state) override { length_ = state; }

 private:
  MeterContext context_;
  Parameters before_;
  double length_ = 0;
};

template <class Options, class M>
MeterEntry entry(const char* name, const char* description) {
  return {name, description, declared_settings<Options>(),
          [](const Json& settings, const MeterContext& context) -> std::unique_ptr<Meter> {
            return std::make_unique<M>(options_from<Options>(settings), context);
          },
          [name](const Json& settings) -> std::string {
            if constexpr (requires(const Options& options) { options.prefix(); }) {
              return options_from<Options>(settings).prefix();
            } else {
              return name;
            }
          }};
}

template <class M>
MeterEntry entry(const char* name, const char* description) {
  return {name,
          description,
          {},
          [](const Json& /*settings*/, const MeterContext& context) -> std::unique_ptr<Meter> {
            return std::make_unique<M>(context);
          },
          [name](const Json& /*settings*/) -> std::string { return name; }};
}

/// What the names of a meter's numbers begin with: no two of a run have the same.
std::string label_of(const Json& settings) {
  return meter_entry(settings.at("name")).label(settings);
}

Json complete_meter(const Json& given) {
  TORCH_CHECK_VALUE(given.is_object() && given.contains("name") && given["name"].is_string(),
                    "a meter must be {\"name\": ..., settings}, got ", given.dump());
  const std::string name = given["name"];
  const auto& entry = meter_entry(name);
  auto settings = given;
  settings.erase("name");
  const Json every = settings.value("every", Json(1));
  settings.erase("every");
  TORCH_CHECK_VALUE(every.is_number_integer() && every >= 1, "meter ", name,
                    ": option every must be a whole number >= 1, got ", every.dump());
  auto result = complete("meter " + name, entry.settings, settings);
  result["name"] = name;
  result["every"] = every;
  return result;
}

}  // namespace

const std::vector<MeterEntry>& meter_entries() {
  static const std::vector<MeterEntry> entries = {
      entry<DriftMeter>("drift", "how far gauge coordinates are from where they started"),
      entry<TurnMeter>("turn", "by what angle a step turns heads along their orbits"),
      entry<FisherOptions, FisherMeter>("fisher",
                                        "curvature modulo the gauges: both ends, trace, rank"),
      entry<StepFisherOptions, StepFisherMeter>(
          "step_fisher", "curvature along a step, at the weights before and after it"),
      entry<ValidityMeter>("validity", "condition number of the preconditioner, lr kappa / tau"),
      entry<ActivationOptions, ActivationMeter>(
          "activations", "spectra at the nodes of the residual stream, dead units"),
      entry<ArcMeter>("arc", "arc length on the quotient, followed step by step"),
  };
  return entries;
}

const MeterEntry& meter_entry(const std::string& name) {
  return find_entry("meter", meter_entries(), name);
}

Json default_meters() {
  return Json::array({{{"name", "drift"}, {"every", 1}}, {{"name", "turn"}, {"every", 1}}});
}

Json complete_meters(const Json& given) {
  TORCH_CHECK_VALUE(given.is_array(), "option meters must be a list, got ", given.dump());
  Json result = Json::array();
  for (const auto& each : given) {
    auto meter = complete_meter(each);
    for (const auto& other : result) {
      TORCH_CHECK_VALUE(other != meter, "meter ", meter.dump(), " is there twice");
      TORCH_CHECK_VALUE(label_of(other) != label_of(meter), "meters ", other.dump(), " and ",
                        meter.dump(), " would both write '", label_of(meter),
                        "', one over the other; ask for one of them, or for other tensors");
    }
    result.push_back(std::move(meter));
  }
  return result;
}

Json parse_meter(const std::string& text) {
  const auto colon = text.find(':');
  const auto name = text.substr(0, colon);
  const auto& entry = meter_entry(name);
  Json meter = {{"name", name}};
  if (colon == std::string::npos) return complete_meter(meter);
  std::istringstream parts(text.substr(colon + 1));
  for (std::string part; std::getline(parts, part, ',');) {
    const auto sign = part.find('=');
    TORCH_CHECK_VALUE(sign != std::string::npos && sign > 0, "meter ", name,
                      ": settings must be key=value, got '", part, "'");
    const auto key = part.substr(0, sign);
    const auto value = part.substr(sign + 1);
    if (key == "every") {
      int64_t every = 1;
      meter[key] = to_json(Option("every", every, "", at_least(1)).parsed(value));
      continue;
    }
    std::vector<std::string> names = {"every"};
    const Setting* found = nullptr;
    for (const auto& setting : entry.settings) {
      names.push_back(setting.name());
      if (setting.name() == key) found = &setting;
    }
    TORCH_CHECK_VALUE(found != nullptr, unknown("setting of meter " + name, key, names));
    meter[key] = parse_setting(*found, value);
  }
  return complete_meter(meter);
}

Meters::Meters(const Json& meters, const MeterContext& context) {
  for (const auto& settings : meters) {
    meters_.push_back({label_of(settings), settings.at("every"),
                       meter_entry(settings.at("name")).make(settings, context)});
  }
}

void Meters::measure(int64_t evaluation, Values& values) {
  for (auto& each : meters_) {
    each.due = evaluation % each.every == 0;
    if (!each.due) continue;
    const auto start = Clock::now();
    each.meter->measure(values);
    each.seconds += std::chrono::duration<double>(Clock::now() - start).count();
  }
}

void Meters::before_step(bool measured) {
  for (auto& each : meters_) {
    if (!each.meter->follows_all_steps() && !(measured && each.due)) continue;
    const auto start = Clock::now();
    each.meter->before_step();
    each.seconds += std::chrono::duration<double>(Clock::now() - start).count();
  }
}

void Meters::after_step(bool measured, Values* values) {
  for (auto& each : meters_) {
    if (!each.meter->follows_all_steps() && !(measured && each.due)) continue;
    const auto start = Clock::now();
    each.meter->after_step(measured && each.due ? values : nullptr);
    each.seconds += std::chrono::duration<double>(Clock::now() - start).count();
  }
}

std::map<std::string, std::string> Meters::state() const {
  std::map<std::string, std::string> notes;
  for (const auto& each : meters_) {
    const auto state = each.meter->state();
    if (!state) continue;
    std::ostringstream text;
    text << std::hexfloat << *state;
    notes["meter." + each.label] = text.str();
  }
  return notes;
}

void Meters::resume(const std::map<std::string, std::string>& notes) {
  for (auto& each : meters_) {
    if (!each.meter->state()) continue;
    const auto found = notes.find("meter." + each.label);
    TORCH_CHECK(found != notes.end(), "it does not say what meter ", each.label, " has measured");
    each.meter->resume(std::strtod(found->second.c_str(), nullptr));
  }
}

std::vector<std::string> Meters::notes() const {
  std::vector<std::string> result;
  for (const auto& each : meters_) {
    for (const auto& note : each.meter->notes()) result.push_back(each.label + ": " + note);
  }
  return result;
}

std::map<std::string, double> Meters::seconds() const {
  std::map<std::string, double> result;
  for (const auto& each : meters_) result[each.label] += each.seconds;
  return result;
}

}  // namespace ddc::experiments
