// Treatments: one for all gauges, others by kind or by name, and what becomes of what does not apply.

#include "ddc/treatment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddc/optim/muon.h"
#include "ddc/optim/sgd.h"
#include "ddc/optim/soap.h"
#include "ddc/testbeds/blocks.h"
#include "support/errors.h"
#include "support/tolerances.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

using testbeds::GaugeSet;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// A transformer with scales, shifts, exchanges, rotations and linear gauges.
struct Network {
  Testbed bed =
      testbeds::layer_norm_block({.relu_part = false, .gauges = GaugeSet::with_residual_rotation});
  Parameters params = bed.init(1, at::kDouble);
  std::vector<Gauge> gauges = bed.gauges(params);

  const Gauge& first(const std::function<bool(const Gauge&)>& wanted) const {
    const auto found = std::find_if(gauges.begin(), gauges.end(), wanted);
    TORCH_CHECK(found != gauges.end(), "the network has no such gauge");
    return *found;
  }
  const Gauge& of(Action action) const {
    return first([=](const Gauge& gauge) { return gauge.action == action; });
  }
  DDCAdam adam(const Treatments& treatments) const {
    return DDCAdam(params, gauges, usual_options(), treatments);
  }
};

TEST(Treatments, OfAGaugeAreItsOwnThoseOfItsKindOrThoseOfAll) {
  Gauge gauge;
  gauge.name = "first";
  gauge.kind = "norm scale";
  Gauge second = gauge;
  second.name = "second";
  Gauge other;
  other.name = "other";
  other.kind = "relu rescale";
  auto treatments =
      Treatments({.tau = 0.5}).of("norm scale", {.tau = 0.25}).of("second", {.tau = 0.125});
  EXPECT_EQ(treatments.of(gauge).tau, 0.25);
  EXPECT_EQ(treatments.of(second).tau, 0.125);
  EXPECT_EQ(treatments.of(other).tau, 0.5);
  EXPECT_THAT(treatments.specific(gauge), ElementsAre("tau"));
  EXPECT_THAT(treatments.specific(second), ElementsAre("tau"));
  EXPECT_THAT(treatments.specific(other), IsEmpty());
  // A complete treatment: nothing is taken from that of all.
  treatments.of("norm scale", {.frame_interval = 3});
  EXPECT_EQ(treatments.of(gauge), (Treatment{.frame_interval = 3}));
}

TEST(Treatments, AreSetOptionByOption) {
  Gauge gauge;
  gauge.name = "first";
  gauge.kind = "norm scale";
  Gauge other;
  other.name = "other";
  auto treatments = Treatments({.tau = 0.5});
  treatments.set("frame_interval", int64_t{7}, "norm scale");
  EXPECT_EQ(treatments.of(gauge), (Treatment{.tau = 0.5, .frame_interval = 7}));
  EXPECT_EQ(treatments.of(other), (Treatment{.tau = 0.5}));
  treatments.set("coordinates", std::string("polar"));
  EXPECT_EQ(treatments.of(gauge).coordinates, Coordinates::polar);
  EXPECT_EQ(treatments.of(other).coordinates, Coordinates::polar);
  expect_error([&] { treatments.set("cordinates", std::string("polar")); },
               {"unknown option of a treatment 'cordinates'; did you mean 'coordinates'?"});
  expect_error([&] { treatments.set("coordinates", std::string("polr"), "norm scale"); },
               {"option coordinates", "one of default, folded, balanced, standard, polar",
                "did you mean 'polar'?"});
  expect_error([&] { treatments.set("tau", 1.0); }, {"option tau must be in [0, 1), got 1"});
}

TEST(Treatments, HaveTextsOfWhatDiffersFromTheDefaults) {
  EXPECT_EQ(to_string(Treatment{}), "");
  EXPECT_EQ(
      to_string(Treatment{.coordinates = Coordinates::standard, .project = Projection::never}),
      "coordinates=standard, project=never");
  EXPECT_EQ(to_string(Treatment{.bind = false, .tau = 0.5}), "bind=false, tau=0.5");
}

TEST(Treatments, ByKindAndByNameReachTheirGaugesOnly) {
  const Network network;
  const auto& scale = network.first([](const Gauge& g) { return g.kind == "relu rescale"; });
  const auto by_kind = network.adam(
      Treatments(in_place()).of("relu rescale", in_place({.coordinates = Coordinates::polar})));
  const auto by_name = network.adam(
      Treatments(in_place()).of(scale.name, in_place({.coordinates = Coordinates::polar})));
  const auto usual = network.adam(in_place());
  int64_t others = 0;
  for (const auto& gauge : network.gauges) {
    const auto expected = usual.treatment(gauge.name);
    if (gauge.kind == "relu rescale") {
      EXPECT_EQ(by_kind.treatment(gauge.name).coordinates, Coordinates::polar);
      EXPECT_NE(expected.coordinates, Coordinates::polar);
    } else {
      EXPECT_EQ(by_kind.treatment(gauge.name), expected) << gauge.name;
      ++others;
    }
    if (gauge.name == scale.name) {
      EXPECT_EQ(by_name.treatment(gauge.name).coordinates, Coordinates::polar);
    } else {
      EXPECT_EQ(by_name.treatment(gauge.name), expected) << gauge.name;
    }
  }
  EXPECT_GT(others, 5);
  expect_error([&] { usual.treatment("nobody"); }, {"no gauge is called 'nobody'"});
}

TEST(Treatments, OfAKindThatIsNotThereNameTheNearest) {
  const Network network;
  expect_error([&] { network.adam(Treatments().of("norm scales", {})); },
               {"unknown kind of gauge 'norm scales'", "did you mean 'norm scale'?"});
  expect_error([&] { network.adam(Treatments().of("electromagnetism", {})); },
               {"unknown kind of gauge 'electromagnetism'; there are ", "norm scale"});
}

struct Inapplicable {
  std::string option;
  Treatment treatment;
  Action action;
};

std::vector<Inapplicable> inapplicable() {
  return {{"coordinates", {.coordinates = Coordinates::polar}, Action::rotation},
          {"coordinates", {.coordinates = Coordinates::polar}, Action::shift},
          {"hold", {.hold = Hold::unit}, Action::rotation},
          {"vertical", {.vertical = Vertical::adam}, Action::rotation},
          {"vertical", {.vertical = Vertical::sgd}, Action::exchange},
          {"second_moment", {.second_moment = SecondMoment::none}, Action::scale},
          {"second_moment", {.second_moment = SecondMoment::body_frame}, Action::shift},
          {"project", {.project = Projection::momentum}, Action::scale},
          {"project", {.project = Projection::never}, Action::exchange},
          {"decay_held", {.decay_held = true}, Action::scale},
          {"decay_held", {.decay_held = true}, Action::rotation}};
}

TEST(Treatments, ThatCannotBeAreRefusedWhereTheyAreSaidOfOne) {
  const Network network;
  for (const auto& [option, treatment, action] : inapplicable()) {
    SCOPED_TRACE(option + " of a " + to_string(action));
    const auto& gauge = network.of(action);
    const auto make = [&](const Treatments& treatments) {
      DDCMuon(network.params, network.gauges, {}, treatments);
    };
    expect_error([&] { make(Treatments().of(gauge.name, treatment)); },
                 {"'" + gauge.name + "'", "option " + option});
    expect_error([&] { make(Treatments().of(gauge.kind, treatment)); },
                 {"'" + gauge.name + "'", "option " + option});
  }
}

TEST(Treatments, ThatCannotBeAreIgnoredWhereTheyAreSaidOfAll) {
  const Network network;
  for (const auto& [option, treatment, action] : inapplicable()) {
    SCOPED_TRACE(option + " of a " + to_string(action));
    const DDCMuon optimizer(network.params, network.gauges, {}, in_place(treatment));
    const auto resolved = optimizer.treatment(network.of(action).name);
    if (action != Action::scale) {
      EXPECT_FALSE(resolved.coordinates.has_value());
      EXPECT_FALSE(resolved.hold.has_value());
    }
    if (option == "vertical") {
      EXPECT_EQ(resolved.vertical, Vertical::frozen);
    }
    EXPECT_EQ(resolved.second_moment, SecondMoment::transported);
    EXPECT_EQ(resolved.project, Projection::step);
  }
}

/// What is said for all, and one thing more of a kind to which the former does not apply.
TEST(Treatments, SetForAllAndForAKindAreBothMeantWhereTheyApply) {
  const Network network;
  Treatments treatments;
  treatments.set("coordinates", std::string("polar"));
  const auto& rotation = network.of(Action::rotation);
  treatments.set("second_moment", std::string("none"), rotation.kind);
  const auto optimizer = network.adam(treatments);
  EXPECT_EQ(optimizer.treatment(rotation.name).second_moment, SecondMoment::none);
  const auto& rescale = network.first([](const Gauge& g) { return g.kind == "relu rescale"; });
  EXPECT_EQ(optimizer.treatment(rescale.name).coordinates, Coordinates::polar);
}

TEST(Treatments, ThatABaseRuleCannotHonourAreRefused) {
  const Network network;
  const auto make = [&]<class Rule>(const Rule&, const Treatment& treatment) {
    Lifted<Rule>(network.params, network.gauges, {}, treatment);
  };
  expect_error([&] { make(SgdRule(), {.second_moment = SecondMoment::per_head_scalar}); },
               {"DDCSgd", "second_moment=per_head_scalar", "keeps second moments"});
  expect_error([&] { make(SoapRule(), {.second_moment = SecondMoment::body_frame}); },
               {"DDCSoap", "second_moment=body_frame", "change basis"});
  expect_error([&] { make(AdamRule(), {.project = Projection::momentum}); },
               {"DDCAdam", "project=momentum", "has a momentum"});
  // SGD has no second moments, and its momentum can follow a frame.
  EXPECT_NO_THROW(make(SgdRule(), {.second_moment = SecondMoment::body_frame}));
}

// ---- What they do ---------------------------------------------------------------------------------

/// Losses of a few steps, each with a batch of its own.
std::vector<double> trained(const Testbed& bed, const Parameters& params,
                            torch::optim::Optimizer& optimizer, int64_t steps = 8) {
  std::vector<double> losses;
  for (int64_t step = 0; step < steps; ++step) {
    losses.push_back(backward(bed, params, bed.batch(static_cast<uint64_t>(step), at::kDouble)));
    optimizer.step();
  }
  return losses;
}

TEST(Treatments, ThatDoNotBindLeaveTheBaseRule) {
  const Network network;
  DDCAdam unbound = network.adam(Treatment{.bind = false});
  EXPECT_TRUE(unbound.gauges().empty());
  const auto plain = network.params.clone();
  DDCAdam without(plain, {}, usual_options());
  trained(network.bed, network.params, unbound);
  trained(network.bed, plain, without);
  for (const auto& [name, tensor] : plain) {
    EXPECT_TRUE(at::equal(network.params[name].tensor, tensor)) << name;
  }
}

TEST(Treatments, ThatDoNotBindStillCutHeads) {
  const Network network;
  const auto plain = network.params.clone();
  DDCMuon cut(network.params, network.gauges, {.lr = 0.01}, Treatment{.bind = false});
  DDCMuon whole(plain, {}, {.lr = 0.01});
  trained(network.bed, network.params, cut, 1);
  trained(network.bed, plain, whole, 1);
  const std::string attention = "layers.0.attention.";
  for (const auto* name : {"query.weight", "key.weight", "value.weight", "output.weight"}) {
    EXPECT_FALSE(at::equal(network.params[attention + name].tensor, plain[attention + name].tensor))
        << name;
  }
  EXPECT_TRUE(at::equal(network.params["layers.0.squared_mlp.up.weight"].tensor,
                        plain["layers.0.squared_mlp.up.weight"].tensor));
}

TEST(Treatments, OfProjectionAllCommuteWithTheGroup) {
  const Network network;
  // Along a shift to which the loss is blind a gradient is rounding, of which Adam, where it is not
  // projected out, makes steps of lr 1e-16 / eps. That this is all there is shows in a larger eps.
  const AdamOptions adam{.lr = 1e-2, .eps = 1e-4};
  const auto error = [&](const OptimizerMaker& make) {
    return paired_error(network.bed, network.gauges, make, {.steps = 20});
  };
  for (const auto project : {Projection::step, Projection::momentum, Projection::never}) {
    const auto muon = testbeds::ddc_muon({.lr = 1e-2}, adam, in_place({.project = project}));
    EXPECT_LE(error(muon), kWholeModelTolerance) << to_string(project);
  }
  const auto never = in_place({.project = Projection::never});
  EXPECT_LE(error(ddc_adam(adam, never)), kWholeModelTolerance);
  EXPECT_LE(error(ddc_adam(usual_options(), never)), 1e-10);
}

TEST(Treatments, ThatNeverProjectLetTheCoordinatesDrift) {
  const Network network;
  const auto drift = [&](Projection project) {
    const auto make = ddc_adam(usual_options(), in_place({.project = project}));
    return testbeds::drift(network.bed, network.bed.init(1, at::kDouble), network.gauges, make,
                           {.seed = 1, .steps = 30, .type = at::kDouble})
        .largest();
  };
  EXPECT_LE(drift(Projection::step), 1e-12);
  EXPECT_GE(drift(Projection::never), 1e-3);
}

/// A momentum that is projected before the polar factor is taken of it is another step than one whose
/// displacement is projected.
TEST(Treatments, OfMomentumAndOfStepAreDifferentRules) {
  const Network network;
  const auto run = [&](Projection project) {
    const auto params = network.bed.init(1, at::kDouble);
    const auto optimizer = testbeds::ddc_muon({.lr = 1e-2}, {}, in_place({.project = project}))(
        params, network.gauges);
    trained(network.bed, params, *optimizer);
    return params;
  };
  EXPECT_GT(relative_error(run(Projection::momentum), run(Projection::step)), 1e-4);
}

TEST(Treatments, ThatDecayWhatIsHeldShrinkTheMeanOfAShift) {
  const Network network;
  const AdamOptions options{.lr = 1e-2, .weight_decay = 0.5};
  const auto shift = network.of(Action::shift).name;
  const auto mean = [&](bool decay_held) {
    const auto params = network.bed.init(1, at::kDouble);
    DDCAdam optimizer(params, network.gauges, options,
                      Treatments(in_place()).of(shift, in_place({.decay_held = decay_held})));
    const auto before = optimizer.gauge_coordinate(shift).clone();
    trained(network.bed, params, optimizer, 10);
    return std::pair{before, optimizer.gauge_coordinate(shift)};
  };
  const auto [held_before, held_after] = mean(false);
  ASSERT_GT(held_before.abs().max().item<double>(), 1e-3);
  EXPECT_LE((held_after - held_before).abs().max().item<double>(), 1e-13);
  const auto [before, after] = mean(true);
  EXPECT_LE((after - before * std::pow(1 - 1e-2 * 0.5, 10)).abs().max().item<double>(), 1e-13);
}

}  // namespace
}  // namespace ddc::tests
