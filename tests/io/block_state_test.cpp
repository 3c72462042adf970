// The state of gauges that mix channels and of all bases: a run that is saved and loaded goes on as
// one that was not interrupted, bit for bit, and a state that does not fit is refused by name.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <ostream>

#include "ddc/io/checkpoint.h"
#include "ddc/optim/adam.h"
#include "ddc/optim/muon.h"
#include "ddc/optim/sgd.h"
#include "ddc/optim/shampoo.h"
#include "ddc/optim/soap.h"
#include "ddc/testbeds/blocks.h"
#include "support/errors.h"
#include "support/snapshot.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kSteps = 5;

Testbed block() {
  return testbeds::rms_norm_block({.d_model = 8,
                                   .heads = 2,
                                   .kv_heads = 1,
                                   .d_ff = 10,
                                   .gauges = testbeds::GaugeSet::with_residual_rotation});
}

using Maker =
    std::function<std::unique_ptr<LiftedOptimizer>(const Parameters&, std::vector<Gauge>)>;

struct Base {
  std::string name;
  Maker make;
};
void PrintTo(const Base& base, std::ostream* out) { *out << base.name; }

/// Body frames are computed again every other step, so that there is one in each half of a run.
Base adam(SecondMoment mode) {
  return {std::string("Adam_") + to_string(mode), [=](const Parameters& params, auto gauges) {
            return std::make_unique<DDCAdam>(
                params, std::move(gauges), AdamOptions{.lr = 1e-2},
                in_place({.second_moment = mode, .frame_interval = 2}));
          }};
}

template <class Optimizer>
Base base(const std::string& name) {
  return {name, [](const Parameters& params, std::vector<Gauge> gauges) {
            return std::make_unique<Optimizer>(params, std::move(gauges),
                                               typename Optimizer::Options{}, in_place());
          }};
}

std::vector<Base> bases() {
  return {adam(SecondMoment::transported),
          adam(SecondMoment::body_frame),
          adam(SecondMoment::body_frame_topk),
          adam(SecondMoment::per_head_scalar),
          adam(SecondMoment::per_head_matrix),
          adam(SecondMoment::none),
          base<DDCMuon>("Muon"),
          base<DDCSoap>("Soap"),
          base<DDCShampoo>("Shampoo"),
          base<DDCSgd>("Sgd")};
}

struct Training {
  Testbed bed = block();
  Parameters params;
  std::unique_ptr<LiftedOptimizer> optimizer;

  Training(const Base& base, at::ScalarType type, uint64_t seed = 1)
      : params(bed.init(seed, type)) {
    optimizer = base.make(params, bed.gauges(params));
  }
  /// A fresh optimizer on the weights of another run.
  Training(const Base& base, const Training& other) : params(other.params.clone()) {
    optimizer = base.make(params, bed.gauges(params));
  }

  void train(int64_t first, int64_t steps = kSteps) const {
    const auto type = params.begin()->tensor.scalar_type();
    for (int64_t step = first; step < first + steps; ++step) {
      backward(bed, params, bed.batch(static_cast<uint64_t>(step), type));
      optimizer->step();
    }
  }
};

/// Expects that the state is refused with an error that names `parts`, and changes nothing.
void expect_refused(const Training& run, const OptimizerState& state,
                    const std::vector<std::string>& parts) {
  const auto before = snapshot(*run.optimizer);
  expect_error([&] { run.optimizer->load_state_dict(state); }, parts);
  EXPECT_THAT(differences(before, snapshot(*run.optimizer)), IsEmpty());
}

class BlockState : public ::testing::TestWithParam<std::tuple<Base, at::ScalarType>> {};

INSTANTIATE_TEST_SUITE_P(All, BlockState,
                         ::testing::Combine(::testing::ValuesIn(bases()),
                                            ::testing::Values(at::kFloat, at::kDouble)),
                         [](const auto& instance) {
                           return std::get<0>(instance.param).name + "_" +
                                  toString(std::get<1>(instance.param));
                         });

TEST_P(BlockState, ResumesBitForBit) {
  const auto& [base, type] = GetParam();
  const Training uninterrupted(base, type);
  uninterrupted.train(0);
  const auto state = uninterrupted.optimizer->state_dict();
  const auto saved = snapshot(*uninterrupted.optimizer);
  // Not the state that a fresh optimizer reads off the weights.
  const Training resumed(base, uninterrupted);
  EXPECT_THAT(differences(saved, snapshot(*resumed.optimizer)), Not(IsEmpty()));
  resumed.optimizer->load_state_dict(state);
  EXPECT_THAT(differences(saved, snapshot(*resumed.optimizer)), IsEmpty());

  uninterrupted.train(kSteps);
  resumed.train(kSteps);
  EXPECT_THAT(differences(snapshot(*uninterrupted.optimizer), snapshot(*resumed.optimizer)),
              IsEmpty());
}

TEST_P(BlockState, ResumesFromAFileOverOtherWeights) {
  const auto& [base, type] = GetParam();
  std::string directory = ::testing::TempDir() + "ddc-block-state-XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  const auto path = fs::path(directory) / "run.safetensors";
  const Training uninterrupted(base, type);
  uninterrupted.train(0);
  save_checkpoint(path, uninterrupted.params, uninterrupted.optimizer.get());
  const Training resumed(base, type, /*seed=*/2);
  resumed.train(20, 2);
  load_checkpoint(path, resumed.params, resumed.optimizer.get());
  fs::remove_all(directory);

  uninterrupted.train(kSteps);
  resumed.train(kSteps);
  EXPECT_THAT(differences(snapshot(*uninterrupted.optimizer), snapshot(*resumed.optimizer)),
              IsEmpty());
}

TEST(BlockStateTest, OfAnotherModeOrOptimizerIsRefused) {
  const auto all = bases();
  std::vector<OptimizerState> states;
  std::vector<std::string> names;
  for (const auto& each : all) {
    const Training run(each, at::kFloat);
    run.train(0, 1);
    states.push_back(run.optimizer->state_dict());
    names.push_back(nlohmann::json::parse(states.back().description)["optimizer"]);
  }
  for (size_t own = 0; own < all.size(); ++own) {
    const Training run(all[own], at::kFloat, /*seed=*/2);
    run.train(7, 1);
    for (size_t other = 0; other < all.size(); ++other) {
      if (other == own) continue;
      const auto mode = [](const Base& each) { return each.name.substr(each.name.find('_') + 1); };
      expect_refused(run, states[other],
                     names[own] == names[other] ? std::vector{mode(all[own]), mode(all[other])}
                                                : std::vector{names[own], names[other]});
    }
  }
}

/// A state with one tensor changed or left out, of the gauge of value heads.
TEST(BlockStateTest, WithAFrameThatDoesNotFitIsRefused) {
  const auto transported = adam(SecondMoment::transported);
  const Training run(transported, at::kDouble);
  run.train(0, 2);
  const auto state = run.optimizer->state_dict();
  const auto gauge = std::find_if(run.optimizer->gauges().begin(), run.optimizer->gauges().end(),
                                  [](const Gauge& g) { return g.action == Action::linear; });
  ASSERT_NE(gauge, run.optimizer->gauges().end());
  for (const auto* field : {"frame", "target", "eigenvalues", "bound", "known"}) {
    const auto key = "gauge." + gauge->name + "." + field;
    ASSERT_EQ(state.tensors.count(key), 1) << key;
    auto changed = state;
    changed.tensors[key] = state.tensors.at(key).repeat_interleave(2, 0);
    expect_refused(run, changed, {key, "shape"});
    changed.tensors[key] = state.tensors.at(key).to(at::kFloat);
    expect_refused(run, changed, {key, "type"});
    changed.tensors.erase(key);
    expect_refused(run, changed, {key});
  }
  for (const auto* field : {"age", "recomputed"}) {
    const auto key = "gauge." + gauge->name + "." + field;
    auto changed = state;
    changed.tensors[key] = at::scalar_tensor(-1, at::kLong);
    expect_refused(run, changed, {key, "-1"});
    changed.tensors.erase(key);
    expect_refused(run, changed, {key});
  }
  auto changed = state;
  changed.tensors["gauge." + gauge->name + ".unheard_of"] = at::zeros({1});
  expect_refused(run, changed, {"unheard_of"});
}

/// A frame of another gauge on the same tensors, the rotation alone: the state says so.
TEST(BlockStateTest, OfAnotherGroupOnTheSameTensorsIsRefused) {
  const Training run(adam(SecondMoment::transported), at::kDouble);
  const Base smaller{"", [](const Parameters& params, std::vector<Gauge> gauges) {
                       for (auto& gauge : gauges) {
                         if (gauge.action == Action::linear) gauge.action = Action::rotation;
                         for (auto& leg : gauge.legs) {
                           if (gauge.action == Action::rotation) leg.exponent = 1;
                         }
                       }
                       return std::make_unique<DDCAdam>(params, std::move(gauges), AdamOptions{},
                                                        in_place({.frame_interval = 2}));
                     }};
  const Training other(smaller, at::kDouble);
  other.train(0, 1);
  expect_refused(run, other.optimizer->state_dict(), {"rotation", "linear"});
}

}  // namespace
}  // namespace ddc::tests
