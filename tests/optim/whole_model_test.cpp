// Every base optimizer on whole transformers: two copies related by a random element of all gauges at
// once, each trained on gradients of its own, stay related.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinates/coordinate_system.h"
#include "ddc/optim/sgd.h"
#include "ddc/optim/shampoo.h"
#include "ddc/optim/soap.h"
#include "ddc/testbeds/blocks.h"
#include "support/snapshot.h"
#include "support/tolerances.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

using testbeds::GaugeSet;

constexpr double kLr = 1e-2;
constexpr int64_t kSteps = 40;
constexpr double kTau = 0.3;

struct Model {
  std::string name;
  std::function<Testbed(GaugeSet)> make;
  std::vector<GaugeSet> sets = {GaugeSet::full, GaugeSet::with_residual_rotation};
};

void PrintTo(const Model& model, std::ostream* out) { *out << model.name; }

std::vector<Model> models() {
  using namespace testbeds;
  return {{"LayerNorm",
           [](GaugeSet set) { return layer_norm_block({.relu_part = false, .gauges = set}); }},
          {"RmsNorm", [](GaugeSet set) { return rms_norm_block({.gauges = set}); }},
          // Its norm has no bias behind it on the side of attention, which breaks the rotation.
          {"GptJ", [](GaugeSet set) { return gpt_j_block({.gauges = set}); }, {GaugeSet::full}},
          {"Vit", [](GaugeSet set) { return vit_block({.gauges = set}); }}};
}

struct Base {
  std::string name;
  std::function<OptimizerMaker(const Treatment&)> make;
  SecondMoment second_moment = SecondMoment::transported;
  bool with_residual_rotation = true;
  /// Runs with that gauge take longest, and are made in float32 too for some bases only.
  bool float_with_residual_rotation = false;
  /// At the canonical place.
  bool placed = false;
};

std::vector<Base> bases() {
  std::vector<Base> result;
  const auto adam = [](const Treatment& treatment) {
    return testbeds::ddc_adam({.lr = kLr, .weight_decay = 0.01}, treatment);
  };
  for (const auto mode :
       {SecondMoment::transported, SecondMoment::body_frame, SecondMoment::body_frame_topk,
        SecondMoment::per_head_scalar, SecondMoment::per_head_matrix, SecondMoment::none}) {
    const bool residual = mode == SecondMoment::transported || mode == SecondMoment::body_frame;
    result.push_back({std::string("Adam_") + to_string(mode), adam, mode, residual});
  }
  const auto muon = [&](PolarMethod method, UpdateScale scale, SecondMoment mode, bool residual) {
    const MuonOptions options{.lr = kLr, .weight_decay = 0.1, .method = method, .scale = scale};
    result.push_back({std::string("Muon_") + to_string(method) + "_" + to_string(scale),
                      [=](const Treatment& treatment) {
                        return testbeds::ddc_muon(options, {.lr = kLr}, treatment);
                      },
                      mode, residual});
  };
  muon(PolarMethod::exact, UpdateScale::original, SecondMoment::body_frame, true);
  muon(PolarMethod::fast, UpdateScale::match_rms_adamw, SecondMoment::transported, true);
  muon(PolarMethod::sharpen, UpdateScale::frobenius, SecondMoment::transported, false);
  muon(PolarMethod::newton_schulz, UpdateScale::original, SecondMoment::transported, false);
  result.push_back({"Sgd",
                    [](const Treatment& treatment) {
                      return testbeds::lifted<SgdRule>(
                          {.lr = kLr, .momentum = 0.9, .weight_decay = 0.01}, treatment);
                    },
                    SecondMoment::body_frame});
  result.push_back({"Soap", [](const Treatment& treatment) {
                      return testbeds::lifted<SoapRule>({.lr = kLr, .weight_decay = 0.01},
                                                        treatment);
                    }});
  result.push_back({"Shampoo", [](const Treatment& treatment) {
                      return testbeds::lifted<ShampooRule>({.lr = kLr, .weight_decay = 0.01},
                                                           treatment);
                    }});
  for (auto& base : result) {
    base.float_with_residual_rotation =
        base.name == "Adam_body_frame" || base.name == "Muon_exact_original" || base.name == "Soap";
  }
  for (const auto* name :
       {"Adam_transported", "Muon_fast_match_rms_adamw", "Sgd", "Soap", "Shampoo"}) {
    auto base = *std::find_if(result.begin(), result.end(),
                              [&](const Base& each) { return each.name == name; });
    base.name += "_canonical";
    base.second_moment = SecondMoment::transported;
    base.float_with_residual_rotation = base.with_residual_rotation;
    base.placed = true;
    result.push_back(std::move(base));
  }
  return result;
}

/// Body frames that follow the weights closely and adapt their larger directions only.
Treatment lively(SecondMoment mode) {
  return in_place({.second_moment = mode, .tau = kTau, .frame_drift = 0.02});
}

/// In place frames follow the weights, or not; at the canonical place there are none.
Treatment treatment_of(const Base& base) {
  return base.placed ? placed() : lively(base.second_moment);
}

std::vector<Gauge> gauges_of(const Testbed& bed) { return bed.gauges(bed.init(1, at::kDouble)); }

std::string set_name(GaugeSet set) {
  return set == GaugeSet::full ? "_full_" : "_with_residual_rotation_";
}

struct Case {
  Model model;
  GaugeSet set;
  Base base;

  std::string name() const { return model.name + set_name(set) + base.name; }
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name(); }

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const auto& model : models()) {
    for (const auto set : model.sets) {
      for (const auto& base : bases()) {
        if (set == GaugeSet::with_residual_rotation && !base.with_residual_rotation) continue;
        result.push_back({model, set, base});
      }
    }
  }
  return result;
}

class WholeModel : public ::testing::TestWithParam<Case> {
 protected:
  static void expect_over(int64_t steps) {
    const auto& [model, set, base] = GetParam();
    const auto bed = model.make(set);
    const auto gauges = gauges_of(bed);
    const auto make = base.make(treatment_of(base));
    const double in_double = paired_error(bed, gauges, make, {.steps = steps});
    RecordProperty("float64", testing::PrintToString(in_double));
    EXPECT_LE(in_double, kWholeModelTolerance);
    if (set == GaugeSet::with_residual_rotation && !base.float_with_residual_rotation) return;
    const double in_float = paired_error(bed, gauges, make, {.steps = steps, .type = at::kFloat});
    RecordProperty("float32", testing::PrintToString(in_float));
    EXPECT_LE(in_float, kWholeModelFloatTolerance);
  }
};

TEST_P(WholeModel, StepCommutesWithAllGaugesTogether) { expect_over(kSteps / 4); }
TEST_P(WholeModel, StepCommutesWithAllGaugesTogetherLong) { expect_over(kSteps); }

INSTANTIATE_TEST_SUITE_P(Transformers, WholeModel, ::testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param.name(); });

class PlainOptimizers : public ::testing::TestWithParam<Model> {};

TEST_P(PlainOptimizers, DoNotCommute) {
  const auto& model = GetParam();
  for (const auto set : model.sets) {
    const auto bed = model.make(set);
    const auto gauges = gauges_of(bed);
    const auto error = [&](const OptimizerMaker& make) {
      return paired_error(bed, gauges, make, {.steps = kSteps});
    };
    EXPECT_GE(error(testbeds::adamw(kLr, 0.01)), kPlainOptimizerError) << set_name(set);
    EXPECT_GE(error(testbeds::muon({.lr = kLr, .method = PolarMethod::newton_schulz},
                                   {.lr = kLr, .weight_decay = 0.01})),
              kPlainOptimizerError)
        << set_name(set);
  }
}

INSTANTIATE_TEST_SUITE_P(Transformers, PlainOptimizers, ::testing::ValuesIn(models()),
                         [](const auto& instance) { return instance.param.name; });

// Moments of all kinds, frames, and how long ago they were computed.
TEST(EveryBase, GoesOnFromItsStateToTheLastBit) {
  const auto bed = testbeds::rms_norm_block({.gauges = GaugeSet::full});
  for (const auto& base : bases()) {
    for (const auto type : {at::kDouble, at::kFloat}) {
      const auto params = bed.init(1, type);
      const auto gauges = bed.gauges(params);
      auto treatment = treatment_of(base);
      treatment.frame_interval = 3;
      const auto make = base.make(treatment);
      const auto run = [&](const Parameters& table, torch::optim::Optimizer& optimizer,
                           uint64_t from) {
        for (uint64_t step = from; step < from + 4; ++step) {
          backward(bed, table, bed.batch(step, type));
          optimizer.step();
        }
      };
      const auto optimizer = make(params, gauges);
      auto& lifted = dynamic_cast<LiftedOptimizer&>(*optimizer);
      run(params, lifted, 0);
      const auto copy = params.clone();
      const auto other = make(copy, gauges);
      auto& resumed = dynamic_cast<LiftedOptimizer&>(*other);
      resumed.load_state_dict(lifted.state_dict());
      run(params, lifted, 4);
      run(copy, resumed, 4);
      EXPECT_THAT(differences(snapshot(lifted), snapshot(resumed)), ::testing::IsEmpty())
          << base.name << " " << type;
    }
  }
}

class LivelyFrames : public ::testing::TestWithParam<Model> {};

// The comparison above says little about frames that never move, and about directions that are never
// cut off.
TEST_P(LivelyFrames, MoveAndCutDirectionsOff) {
  const auto& model = GetParam();
  const auto bed = model.make(model.sets.back());
  for (const auto& base : bases()) {
    if (base.second_moment != SecondMoment::body_frame &&
        base.second_moment != SecondMoment::body_frame_topk) {
      continue;
    }
    const auto params = bed.init(1, at::kDouble);
    const auto optimizer = base.make(lively(base.second_moment))(params, bed.gauges(params));
    for (int64_t step = 0; step < kSteps / 2; ++step) {
      backward(bed, params, bed.batch(static_cast<uint64_t>(step), at::kDouble));
      optimizer->step();
    }
    const auto& lifted = dynamic_cast<const LiftedOptimizer&>(*optimizer);
    const auto report = lifted.report();
    int64_t moved = 0;
    int64_t cut = 0;
    for (size_t k = 0; k < report.gauges.size(); ++k) {
      if (!lifted.gauges()[k].mixes()) continue;
      const auto& line = report.gauges[k];
      EXPECT_EQ(line.coordinates, to_string(base.second_moment));
      // SGD takes steps that are too small to turn every frame.
      if (base.name != "Sgd") {
        EXPECT_GT(line.frames_recomputed, 0) << base.name << " " << line.name;
      }
      moved += line.frames_recomputed;
      const auto& values = lifted.coordinate_system().gauge_states()[k].eigenvalues;
      cut += (values < values.amax(-1, true) * kTau).sum().item<int64_t>();
    }
    EXPECT_GT(moved, 0) << base.name;
    EXPECT_GT(cut, 0) << base.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Transformers, LivelyFrames, ::testing::ValuesIn(models()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace ddc::tests
