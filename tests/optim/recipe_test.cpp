// The recipe "paper": which gauges it binds and how, and the paper's own self-tests in their form (its
// appendix "G-equivariance self-tests"): copies that are fed gradients related by the group.

#include "ddc/optim/recipe.h"

#include <gtest/gtest.h>

#include <set>

#include "ddc/gauge/attention.h"
#include "ddc/gauge/norm.h"
#include "ddc/gauge/rescale.h"
#include "ddc/gauge/shift.h"
#include "ddc/optim/muon.h"
#include "ddc/optim/registry.h"
#include "ddc/testbeds/blocks.h"
#include "ddc/testbeds/modular_addition.h"
#include "support/errors.h"
#include "support/tolerances.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

std::vector<Gauge> gauges_of(const testbeds::Testbed& testbed) {
  return testbed.gauges(testbed.init(1, at::kDouble));
}

std::multiset<std::string> kinds(const std::vector<Gauge>& gauges) {
  std::multiset<std::string> result;
  for (const auto& gauge : gauges) result.insert(gauge.kind);
  return result;
}

TEST(Recipe, DefaultBindsEveryGaugeAsATreatmentIsByDefault) {
  const auto gauges = gauges_of(testbeds::layer_norm_block({.gauges = testbeds::GaugeSet::full}));
  for (const auto& rule : registered_rules()) {
    const auto prepared = recipe("default", rule.name, gauges);
    EXPECT_EQ(prepared.gauges, gauges);
    EXPECT_TRUE(prepared.options.empty());
    for (const auto& gauge : gauges) EXPECT_EQ(prepared.treatments.of(gauge), Treatment{});
  }
}

TEST(Recipe, PaperBindsTheGaugesOfItsGrokkingAppendix) {
  const auto gauges = gauges_of(testbeds::modular_addition({.gauges = testbeds::GaugeSet::full}));
  ASSERT_GT(kinds(gauges).count("QK linear"), 0);
  const std::multiset<std::string> expected = {"QK rotation", "VO rotation", "CE row shift",
                                               "norm scale", "relu rescale"};
  EXPECT_EQ(kinds(recipe("paper", "DDCAdam", gauges).gauges), expected);
  // Per-channel gauges do not compose with Muon in the paper (its table muon_boundary).
  const std::multiset<std::string> on_muon = {"QK rotation", "VO rotation", "CE row shift"};
  EXPECT_EQ(kinds(recipe("paper", "DDCMuon", gauges).gauges), on_muon);
}

TEST(Recipe, PaperBindsTheTorusOfRotaryHeads) {
  const auto gauges = gauges_of(testbeds::rms_norm_block({.gauges = testbeds::GaugeSet::full}));
  const auto bound = kinds(recipe("paper", "DDCAdam", gauges).gauges);
  EXPECT_EQ(bound.count("QK torus"), 1);
  EXPECT_EQ(bound.count("VO rotation"), 1);
  EXPECT_EQ(bound.count("QK plane scale"), 0);
}

TEST(Recipe, PaperSetsItsTreatmentAndOptions) {
  const auto gauges = gauges_of(testbeds::layer_norm_block({.gauges = testbeds::GaugeSet::full}));
  const auto adam = recipe("paper", "DDCAdam", gauges);
  const auto treatment = adam.treatments.of(adam.gauges.front());
  EXPECT_EQ(treatment.coordinates, Coordinates::polar);
  EXPECT_EQ(treatment.radial, Radial::linear);
  EXPECT_EQ(treatment.vertical, Vertical::frozen);
  EXPECT_EQ(treatment.second_moment, SecondMoment::body_frame_topk);
  EXPECT_EQ(treatment.tau, 1e-2);
  EXPECT_FALSE(treatment.project.has_value()) << "in place, the step";
  EXPECT_EQ(treatment.heads, Heads::cut);
  EXPECT_TRUE(treatment.decay_held);
  const auto muon = recipe("paper", "DDCMuon", gauges);
  EXPECT_EQ(muon.treatments.of(muon.gauges.front()).project, Projection::momentum);
  const auto options = muon.with(MuonOptions{.lr = 0.5});
  EXPECT_EQ(options.lr, 0.5);
  EXPECT_EQ(options.method, PolarMethod::sharpen);
  EXPECT_EQ(options.scale, UpdateScale::frobenius);
}

TEST(Recipe, OfAnotherNameIsRefusedWithTheNearest) {
  expect_error([] { recipe("papr", "DDCAdam", {}); },
               {"unknown recipe 'papr'; did you mean 'paper'?"});
}

/// The copies after `steps` steps on gradients that are related by the group and otherwise arbitrary.
template <class Make>
double fed_error(const Parameters& first, const std::vector<Gauge>& gauges, const Make& make,
                 int steps, at::ScalarType type) {
  auto random = generator(17);
  const auto element = random_element(gauges, first, 0.5, random);
  const auto second = first.clone();
  act_(gauges, element, second);
  const auto first_optimizer = make(first);
  const auto second_optimizer = make(second);
  for (int step = 0; step < steps; ++step) {
    Parameters gradients;
    for (const auto& [name, tensor] : first) {
      gradients.add(name, at::randn(tensor.sizes(), random, type));
    }
    const auto image = gradients.clone();
    act_on_gradient_(gauges, element, first, image);
    for (const auto& [name, tensor] : first) {
      tensor.mutable_grad() = gradients[name].tensor.detach();
      second[name].tensor.mutable_grad() = image[name].tensor.detach();
    }
    first_optimizer->step();
    second_optimizer->step();
  }
  const auto expected = first.clone();
  act_(gauges, element, expected);
  return relative_error(second, expected);
}

Parameters drawn(const std::vector<std::pair<std::string, std::vector<int64_t>>>& shapes,
                 at::ScalarType type) {
  auto random = generator(5);
  Parameters table;
  for (const auto& [name, shape] : shapes) {
    auto value = at::randn(shape, random, type);
    if (shape.size() == 1) value = 1 + 0.3 * value;
    table.add(name, value.requires_grad_());
  }
  return table;
}

TEST(PaperSelfTest, AbelianGaugesKeepFedCopiesRelatedInFloat32Over50Steps) {
  const auto params =
      drawn({{"gain", {16}}, {"in", {24, 16}}, {"out", {6, 24}}, {"unembed", {9, 6}}}, at::kFloat);
  const std::vector<std::vector<Gauge>> constructions = {
      {cross_entropy_shift(params["unembed"])},
      {relu_rescale({.in = params["in"], .out = {params["out"]}, .whole = true})},
      {relu_rescale({.in = params["in"], .out = {params["out"]}, .degree = 2})},
      {norm_scale({.gain = params["gain"], .readers = {params["in"]}})},
  };
  for (const auto& gauges : constructions) {
    const auto prepared = recipe("paper", "DDCAdam", gauges);
    ASSERT_EQ(prepared.gauges.size(), 1);
    auto options = usual_options();
    // Decay of the held mean, which the recipe has, does not commute with shifts of it.
    if (gauges.front().action == Action::shift) options.weight_decay = 0;
    const auto make = [&](const Parameters& p) {
      return std::make_unique<DDCAdam>(p, prepared.gauges, options, prepared.treatments);
    };
    EXPECT_LE(fed_error(params.clone(), prepared.gauges, make, 50, at::kFloat),
              kFedGradientTolerance)
        << gauges.front().kind;
  }
}

/// Four heads of eight.
std::vector<Gauge> rotations(const Parameters& p) {
  return {qk_rotation({.query = p["query"], .key = p["key"], .heads = 4}),
          vo_rotation({.value = p["value"], .output = p["output"], .heads = 4})};
}

Parameters heads() {
  return drawn({{"query", {32, 20}}, {"key", {32, 20}}, {"value", {32, 20}}, {"output", {20, 32}}},
               at::kDouble);
}

TEST(PaperSelfTest, RotationsKeepFedCopiesRelatedInFloat64WithEverySecondMoment) {
  for (const auto mode : {SecondMoment::per_head_scalar, SecondMoment::per_head_matrix,
                          SecondMoment::body_frame, SecondMoment::body_frame_topk}) {
    const auto params = heads();
    auto prepared = recipe("paper", "DDCAdam", rotations(params));
    prepared.treatments.set("second_moment", std::string(to_string(mode)));
    const auto make = [&](const Parameters& p) {
      return std::make_unique<DDCAdam>(p, prepared.gauges, usual_options(), prepared.treatments);
    };
    // The paper: 1e-12 over 20 steps, and 1e-3 with the body frame.
    EXPECT_LE(fed_error(params, prepared.gauges, make, 20, at::kDouble), 1e-12) << to_string(mode);
  }
}

TEST(PaperSelfTest, RotationsKeepFedCopiesRelatedUnderMuonWithAProjectedMomentum) {
  const auto params = heads();
  const auto prepared = recipe("paper", "DDCMuon", rotations(params));
  const auto make = [&](const Parameters& p) {
    return std::make_unique<DDCMuon>(p, prepared.gauges, prepared.with(MuonOptions{}),
                                     prepared.treatments);
  };
  EXPECT_LE(fed_error(params, prepared.gauges, make, 20, at::kDouble), 1e-12);
}

/// The part of the change of weights along the orbit of the rotations, relative to the change.
double orbit_share(const Parameters& before, const Parameters& after, const Gauge& gauge) {
  auto moment = at::zeros({8, 8}, at::kDouble);
  double change = 0;
  double size = 0;
  for (const auto& leg : gauge.legs) {
    const auto head = [&](const Parameters& p) {
      return p[leg.tensor].tensor.detach().movedim(leg.axis, 0).narrow(0, 0, 8);
    };
    const auto step = head(after) - head(before);
    moment += step.matmul(head(before).t());
    change += step.norm().item<double>();
    size += head(before).norm().item<double>();
  }
  return (moment - moment.t()).norm().item<double>() / (change * size);
}

TEST(Projection, DecidesWhetherAStepHasAPartAlongTheOrbit) {
  const auto share = [](Projection project) {
    const auto params = heads();
    const auto gauges = rotations(params);
    const auto before = params.clone();
    DDCMuon optimizer(params, gauges, {.weight_decay = 0}, in_place({.project = project}));
    auto random = generator(3);
    for (const auto& [name, tensor] : params) {
      tensor.mutable_grad() = at::randn(tensor.sizes(), random, at::kDouble);
    }
    optimizer.step();
    return orbit_share(before, params, gauges.front());
  };
  EXPECT_LE(share(Projection::step), 1e-12);
  // The polar factor of a horizontal momentum is not horizontal: the paper's order leaves a part.
  EXPECT_GT(share(Projection::momentum), 1e-3);
  EXPECT_GT(share(Projection::never), share(Projection::momentum));
}

TEST(Projection, OfTheMomentumNeedsARuleThatHasOne) {
  const auto params = heads();
  expect_error(
      [&] { DDCAdam(params, rotations(params), {}, Treatment{.project = Projection::momentum}); },
      {"project=momentum needs a base rule that has a momentum to project"});
}

TEST(Projection, NeverLetsCoordinatesDriftAndCopiesStayRelated) {
  const auto testbed = testbeds::layer_norm_block({.gauges = testbeds::GaugeSet::rotations});
  const auto gauges = gauges_of(testbed);
  for (const auto& never :
       {in_place({.project = Projection::never}), placed({.project = Projection::never})}) {
    // Adam makes steps of 1e-16 lr / eps of the rounding along a shift, where it is not projected out.
    const auto make = testbeds::ddc_adam({.lr = 1e-3, .eps = 1e-4}, never);
    EXPECT_LE(testbeds::paired_error(testbed, gauges, make, {.steps = 20}), 1e-11);
    const auto drift = testbeds::drift(testbed, testbed.init(42, at::kDouble), gauges, make,
                                       {.steps = 20, .type = at::kDouble});
    EXPECT_GE(drift.largest(), 1e-4);
  }
}

TEST(Bind, OffStillCutsHeadsForMuon) {
  const auto step = [](const Treatments& treatments, bool with_gauges) {
    const auto params = heads();
    DDCMuon optimizer(params, with_gauges ? rotations(params) : std::vector<Gauge>{},
                      {.weight_decay = 0}, treatments);
    EXPECT_TRUE(optimizer.gauges().empty());
    auto random = generator(3);
    for (const auto& [name, tensor] : params) {
      tensor.mutable_grad() = at::randn(tensor.sizes(), random, at::kDouble);
    }
    optimizer.step();
    return params;
  };
  const auto start = heads();
  const auto per_head = step(Treatment{.bind = false}, true);
  const auto whole = step({}, false);
  EXPECT_GT(relative_error(per_head, whole), 1e-3);
  // Each head's step is orthogonal by itself.
  const auto change =
      (per_head["query"].tensor - start["query"].tensor).detach().narrow(0, 0, 8) / 0.02;
  EXPECT_LE((change.matmul(change.t()) - at::eye(8, at::kDouble)).abs().max().item<double>(),
            1e-12);
}

TEST(DecayHeld, LetsTheMeanOfAShiftDecayAsWeightsDo) {
  const auto params = drawn({{"unembed", {9, 6}}}, at::kDouble);
  const std::vector<Gauge> gauges = {cross_entropy_shift(params["unembed"])};
  const auto mean = [](const Parameters& p) { return p["unembed"].tensor.detach().mean(0); };
  const auto start = mean(params).clone();
  for (const bool decays : {false, true}) {
    const auto copy = params.clone();
    DDCAdam optimizer(copy, gauges, {.lr = 0.1, .weight_decay = 0.5},
                      in_place({.decay_held = decays}));
    copy["unembed"].tensor.mutable_grad() = at::ones({9, 6}, at::kDouble);
    optimizer.step();
    EXPECT_LE((mean(copy) - start * (decays ? 0.95 : 1.0)).abs().max().item<double>(), 1e-14);
  }
}

TEST(FrobeniusScale, DividesByTheRankOfTheMomentum) {
  auto random = generator(1);
  const auto low =
      at::randn({12, 3}, random, at::kDouble).matmul(at::randn({3, 10}, random, at::kDouble));
  const auto step = muon_displacement(low, {.lr = 1, .scale = UpdateScale::frobenius});
  EXPECT_NEAR(step.norm().item<double>(), low.norm().item<double>(), 1e-9);
}

}  // namespace
}  // namespace ddc::tests
