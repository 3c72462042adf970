// Which place an optimizer trains weights at, how often gauges are moved back there by default, and where
// both places are one algorithm.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "coordinates/coordinate_system.h"
#include "ddc/optim/adam.h"
#include "ddc/optim/muon.h"
#include "ddc/optim/recipe.h"
#include "ddc/placement.h"
#include "ddc/testbeds/blocks.h"
#include "ddc/testbeds/zoo.h"
#include "support/errors.h"
#include "support/small_networks.h"

namespace ddc::tests {
namespace {

using testbeds::GaugeSet;
using ::testing::HasSubstr;

// ---- The default -----------------------------------------------------------------------------------

struct Bound {
  explicit Bound(const Testbed& bed, at::ScalarType type = at::kDouble)
      : params(bed.init(1, type)), gauges(bed.gauges(params)), before(params.clone()) {}

  /// The report of an optimizer, printed; the weights have moved if and only if they are placed.
  std::string report(const Treatments& treatments = {}) const {
    const DDCAdam optimizer(params, gauges, {}, treatments);
    const auto report = optimizer.report();
    EXPECT_EQ(report.place == Place::canonical, optimizer.is_placed());
    EXPECT_EQ(optimizer.treatment(gauges.front().name).placement, report.place);
    EXPECT_EQ(relative_error(params, before) == 0, report.place == Place::in_place);
    std::ostringstream text;
    text << report;
    return text.str();
  }

  Parameters params;
  std::vector<Gauge> gauges;
  Parameters before;
};

Testbed full_block() { return testbeds::layer_norm_block({.gauges = GaugeSet::full}); }

TEST(DefaultPlace, IsCanonicalInFloat32AndFloat64) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    EXPECT_THAT(Bound(full_block(), type).report(),
                HasSubstr("weights at their canonical place\n"));
  }
}

TEST(DefaultPlace, IsInPlaceIfSoSaidAndNoReasonIsGiven) {
  EXPECT_THAT(Bound(full_block()).report(Treatment{.placement = Place::in_place}),
              HasSubstr("weights in place\n"));
}

TEST(DefaultPlace, IsInPlaceWithTheReasonForWhatHasNoPlace) {
  const std::vector<std::pair<std::string, Treatment>> treatments = {
      {"coordinates=polar", {.coordinates = Coordinates::polar}},
      {"hold=ratio", {.hold = Hold::ratio}},
      {"vertical", {.vertical = Vertical::sgd}},
      {"second_moment", {.second_moment = SecondMoment::body_frame}},
      {"procrustes", {.procrustes = true}},
      {"rebalance_above", {.rebalance_above = 0.1}},
      {"decay_held", {.decay_held = true}}};
  const auto bed = testbeds::rms_norm_block();
  for (const auto& [option, treatment] : treatments) {
    const Bound bound(bed);
    EXPECT_THAT(bound.report(treatment),
                HasSubstr("weights in place: gauge '" + bound.gauges.front().name + "': " + option +
                          " is no matter of place\n"));
    auto canonical = treatment;
    canonical.placement = Place::canonical;
    expect_error([&, &name = option] { bound.report(canonical); },
                 {bound.gauges.front().name, option, "it needs placement = in_place"});
    EXPECT_EQ(relative_error(bound.params, bound.before), 0);
  }
  const Bound momentum(bed);
  const DDCMuon muon(momentum.params, momentum.gauges, {},
                     Treatment{.project = Projection::momentum});
  EXPECT_THAT(muon.report().why_in_place, HasSubstr("project=momentum"));
}

TEST(DefaultPlace, IsInPlaceForParametersOf16Bits) {
  const Bound bound(full_block(), at::kBFloat16);
  EXPECT_THAT(bound.report(), HasSubstr("of type BFloat16: canonical placement needs float32 or"));
  expect_error([&] { bound.report(Treatment{.placement = Place::canonical}); },
               {"BFloat16", "it needs placement = in_place"});
}

TEST(DefaultPlace, IsInPlaceIfSomethingThatGaugesMoveIsFrozen) {
  const Bound bound(full_block());
  const auto& frozen = bound.gauges.front().legs.back().tensor;
  bound.params[frozen].tensor.requires_grad_(false);
  EXPECT_THAT(bound.report(), HasSubstr("acts on '" + frozen + "', which is frozen\n"));
  expect_error([&] { bound.report(Treatment{.placement = Place::canonical}); }, {frozen, "frozen"});
}

TEST(DefaultPlace, OfThePaperIsInPlace) {
  for (const char* rule : {"DDCAdam", "DDCMuon"}) {
    const Bound bound(full_block());
    const auto paper = recipe("paper", rule, bound.gauges);
    const DDCMuon optimizer(bound.params, paper.gauges, {}, paper.treatments);
    EXPECT_EQ(optimizer.report().place, Place::in_place) << rule;
    EXPECT_EQ(relative_error(bound.params, bound.before), 0) << rule;
  }
}

TEST(DefaultPlace, WithoutGaugesIsNotTalkedAbout) {
  const auto params = small_table();
  std::ostringstream text;
  text << DDCAdam(params).report();
  EXPECT_THAT(text.str(), ::testing::Not(HasSubstr("place")));
}

// ---- How often gauges are moved back -----------------------------------------------------------------

using Held = std::pair<Projection, int64_t>;

/// What becomes of a treatment for each kind of gauge of a network.
std::map<std::string, Held> held(const Testbed& bed, const Treatments& treatments) {
  const Bound bound(bed);
  const DDCAdam optimizer(bound.params, bound.gauges, {}, treatments);
  std::map<std::string, Held> result;
  for (const auto& gauge : optimizer.gauges()) {
    const auto treatment = optimizer.treatment(gauge.name);
    result[gauge.kind] = {*treatment.project, *treatment.every};
  }
  return result;
}

const Held kEveryStep{Projection::step, 1};

TEST(DefaultHorizontality, OfMixingGaugesIsEveryTenStepsAndOfStreamsNever) {
  for (const auto& bed : {testbeds::layer_norm_block({.gauges = GaugeSet::with_residual_rotation}),
                          testbeds::rms_norm_block({.gauges = GaugeSet::with_residual_rotation})}) {
    std::set<std::string> mixing;
    for (const auto& gauge : Bound(bed).gauges) {
      // Rotary planes are turned back in the pass of a step.
      if (gauge.mixes() && gauge.block != 2) mixing.insert(gauge.kind);
    }
    EXPECT_GE(mixing.size(), 2);
    for (const auto& [kind, found] : held(bed, {})) {
      const bool stream = kind == "residual rotation";
      EXPECT_EQ(found.first, stream ? Projection::never : Projection::step) << kind;
      EXPECT_EQ(found.second, mixing.contains(kind) ? 10 : 1) << kind;
    }
    for (const auto& [kind, found] : held(bed, Treatment{.placement = Place::in_place})) {
      EXPECT_EQ(found, kEveryStep) << kind;
    }
    // What is said is done.
    for (const auto& [kind, found] : held(bed, Treatment{.every = 1})) {
      EXPECT_EQ(found, kEveryStep) << kind;
    }
    for (const auto& [kind, found] : held(bed, Treatment{.project = Projection::step})) {
      EXPECT_EQ(found, Held(Projection::step, mixing.contains(kind) ? 10 : 1)) << kind;
    }
  }
}

TEST(DefaultHorizontality, GoesByStructureAndNotByKind) {
  const auto params = table({{"q", weights({600, 300}, 1)}, {"k", weights({600, 300}, 2)}});
  const auto rotation = [](int64_t block) {
    Gauge gauge;
    gauge.name = "turn";
    gauge.action = Action::rotation;
    gauge.block = block;
    gauge.channels = 600;
    gauge.legs = {{.tensor = "q", .axis = 0}, {.tensor = "k", .axis = 0}};
    return gauge;
  };
  const auto project = [&](int64_t block) {
    const DDCAdam optimizer(params.clone(), {rotation(block)});
    return *optimizer.treatment("turn").project;
  };
  EXPECT_EQ(project(200), Projection::step);
  EXPECT_EQ(project(300), Projection::never);
}

TEST(DefaultHorizontality, InPlaceTakesNoOtherNumberOfSteps) {
  const Bound bound(full_block());
  expect_error([&] { bound.report(Treatment{.placement = Place::in_place, .every = 3}); },
               {"every = 3 needs placement = canonical"});
  expect_error([&] { bound.report(Treatment{.hold = Hold::ratio, .every = 3}); }, {"every = 3"});
}

// ---- Weights that come later ---------------------------------------------------------------------------

/// An optimizer that starts anew places weights under gradients that were taken before: these go along.
TEST(Places, GradientsGoAlongWhenAnOptimizerStartsAnew) {
  for (const auto* name : {"ln_squared_relu", "rms_swiglu_rope", "fused_qkv"}) {
    const auto entry = testbeds::zoo_entry(name);
    const auto& bed = entry.testbed;
    const auto params = bed.init(entry.seed, at::kDouble);
    DDCAdam optimizer(params, bed.gauges(params));
    {
      const at::NoGradGuard no_grad;
      const auto other = bed.init(entry.seed + 1, at::kDouble);
      for (const auto& [key, tensor] : params) at::Tensor(tensor).copy_(other[key].tensor);
    }
    backward(bed, params, bed.batch(1, at::kDouble));
    optimizer.reset_state();
    std::vector<at::Tensor> moved;
    for (const auto& tensor : params.tensors()) moved.push_back(tensor.grad().clone());
    backward(bed, params, bed.batch(1, at::kDouble));
    double largest = 0;
    for (const auto& gradient : moved) {
      largest = std::max(largest, gradient.abs().max().item<double>());
    }
    for (size_t i = 0; i < moved.size(); ++i) {
      EXPECT_LE((params.tensors()[i].grad() - moved[i]).abs().max().item<double>(), 1e-12 * largest)
          << name << " " << i;
    }
  }
}

// ---- One algorithm -------------------------------------------------------------------------------------

/// Scales and shifts that act on weights as they are stored, on no gain that another one acts through.
std::vector<Gauge> scales_and_shifts(std::vector<Gauge> gauges) {
  std::erase_if(gauges, [](const Gauge& gauge) {
    return (gauge.action != Action::scale && gauge.action != Action::shift) ||
           std::any_of(gauge.legs.begin(), gauge.legs.end(),
                       [](const Leg& leg) { return !leg.through.empty(); });
  });
  return gauges;
}

struct Network {
  std::string name;
  Testbed testbed;
  uint64_t seed = 1;
};

void PrintTo(const Network& network, std::ostream* out) { *out << network.name; }

std::vector<Network> networks() {
  using namespace testbeds;
  std::vector<Network> result = {{"LayerNormBlock", layer_norm_block({.relu_part = false})},
                                 {"RmsNormBlock", rms_norm_block()},
                                 {"GptJBlock", gpt_j_block()},
                                 {"VitBlock", vit_block()}};
  for (const auto& entry : zoo()) {
    const auto gauges = entry.testbed.gauges(entry.testbed.init(entry.seed, at::kDouble));
    if (scales_and_shifts(gauges).empty()) continue;
    result.push_back({entry.name, entry.testbed, entry.seed});
  }
  return result;
}

/// Largest relative difference of losses over 100 steps. In float32 the base rule rounds every step, in place
/// too but in float64 coordinates: what AdamW without gauges parts by from itself in float64 comes on top. (On
/// five networks that is 1e-6 to 3e-6 by itself, and the canonical place is as far from float64 as AdamW is.)
constexpr double kOneAlgorithm = 1e-13;
constexpr double kOneAlgorithmFloat = 1e-6;

class OneAlgorithm : public ::testing::TestWithParam<Network> {
 protected:
  static void expect_over(uint64_t steps);
};

TEST_P(OneAlgorithm, AtBothPlacesForScalesAndShifts) { expect_over(20); }
TEST_P(OneAlgorithm, AtBothPlacesForScalesAndShiftsLong) { expect_over(100); }

/// How far the losses of AdamW in float32 part from those in float64, from the same weights.
double rounding_of_adamw(const Network& network, const AdamOptions& options, uint64_t steps) {
  const auto params = network.testbed.init(network.seed, at::kFloat);
  Parameters wide;
  for (const auto& [name, tensor] : params) {
    wide.add(name, tensor.detach().to(at::kDouble).requires_grad_());
  }
  DDCAdam narrow_steps(params, {}, options);
  DDCAdam wide_steps(wide, {}, options);
  double apart = 0;
  for (uint64_t step = 0; step < steps; ++step) {
    const auto loss = [&](const Parameters& weights, at::ScalarType type) {
      return backward(network.testbed, weights, network.testbed.batch(1000 + step, type));
    };
    const double one = loss(wide, at::kDouble);
    apart = std::max(apart, std::abs(loss(params, at::kFloat) - one) / std::abs(one));
    narrow_steps.step();
    wide_steps.step();
  }
  return apart;
}

void OneAlgorithm::expect_over(uint64_t steps) {
  const auto& [name, bed, seed] = GetParam();
  for (const auto type : {at::kDouble, at::kFloat}) {
    const auto found = bed.init(seed, type);
    const auto canonical = found.clone();
    const auto gauges = scales_and_shifts(bed.gauges(found));
    // In place decay acts on a gain 1 + w, at the canonical place on w, as the base's does.
    const bool offset = std::any_of(gauges.begin(), gauges.end(), [](const Gauge& gauge) {
      return gauge.legs.front().offset != 0;
    });
    const AdamOptions options{.lr = 1e-3, .weight_decay = offset ? 0 : 0.1};
    DDCAdam first(found, gauges, options, in_place({.hold = Hold::unit}));
    DDCAdam second(canonical, gauges, options, placed());
    double apart = 0;
    for (uint64_t step = 0; step < steps; ++step) {
      const auto batch = bed.batch(1000 + step, type);
      const double one = backward(bed, found, batch);
      apart = std::max(apart, std::abs(backward(bed, canonical, batch) - one) / std::abs(one));
      first.step();
      second.step();
    }
    RecordProperty(type == at::kDouble ? "float64" : "float32", testing::PrintToString(apart));
    const double most = type == at::kDouble
                            ? kOneAlgorithm
                            : kOneAlgorithmFloat + rounding_of_adamw(GetParam(), options, steps);
    EXPECT_LE(apart, most) << type;
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, OneAlgorithm, ::testing::ValuesIn(networks()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace ddc::tests
