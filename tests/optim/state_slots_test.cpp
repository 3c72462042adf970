// State and options as a binding sees them: in place, loaded as tensors, and forgotten.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddc/optim/ddc_adam.h"
#include "ddc/optim/ddc_muon.h"
#include "ddc/testbeds/blocks.h"
#include "support/errors.h"
#include "support/snapshot.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

using ::testing::IsEmpty;

void train(const testbeds::Testbed& bed, const Parameters& params, LiftedOptimizer& optimizer,
           int64_t first, int64_t steps) {
  for (int64_t step = first; step < first + steps; ++step) {
    backward(bed, params, bed.batch(step, at::kDouble));
    optimizer.step();
  }
}

template <class Optimizer>
class StateSlots : public ::testing::Test {};
using Optimizers = ::testing::Types<DDCAdam, DDCMuon>;
TYPED_TEST_SUITE(StateSlots, Optimizers);

TYPED_TEST(StateSlots, AreTheStateDictionaryInPlace) {
  const auto bed = testbeds::layer_norm_block();
  const auto params = bed.init(1, at::kDouble);
  TypeParam optimizer(params, bed.gauges(params));
  train(bed, params, optimizer, 0, 2);
  const auto state = optimizer.state_dict();
  const auto table = optimizer.parameter_table();
  size_t defined = 0;
  for (const auto& slot : optimizer.state_slots()) {
    ASSERT_LT(slot.parameter, table.size());
    if (slot.tensor != nullptr && !slot.tensor->defined()) continue;
    ++defined;
    const auto& stored = state.tensors.at(slot.scope + slot.field);
    if (slot.count != nullptr) {
      EXPECT_EQ(stored.template item<int64_t>(), *slot.count) << slot.scope << slot.field;
    } else {
      EXPECT_TRUE(at::equal(stored, *slot.tensor)) << slot.scope << slot.field;
      EXPECT_FALSE(stored.is_alias_of(*slot.tensor));
    }
  }
  EXPECT_EQ(defined, state.tensors.size());
}

TYPED_TEST(StateSlots, LoadIntoAnotherOptimizerThatGoesOnAsTheFirst) {
  const auto bed = testbeds::layer_norm_block();
  const auto params = bed.init(1, at::kDouble);
  TypeParam optimizer(params, bed.gauges(params));
  train(bed, params, optimizer, 0, 3);
  const auto copy = params.clone();
  TypeParam second(copy, bed.gauges(copy));
  second.load_tensors(optimizer.state_dict().tensors);
  train(bed, params, optimizer, 3, 3);
  train(bed, copy, second, 3, 3);
  for (size_t t = 0; t < params.size(); ++t) {
    EXPECT_TRUE(at::equal(params.tensors()[t], copy.tensors()[t]));
  }
}

TYPED_TEST(StateSlots, ThatDoNotFitAreRefusedByName) {
  const auto bed = testbeds::layer_norm_block();
  const auto params = bed.init(1, at::kDouble);
  TypeParam optimizer(params, bed.gauges(params));
  train(bed, params, optimizer, 0, 1);
  auto tensors = optimizer.state_dict().tensors;
  tensors["param.nobody.exp_avg"] = at::zeros({1});
  const auto before = snapshot(optimizer);
  expect_error([&] { optimizer.load_tensors(tensors); }, {"'param.nobody.exp_avg'"});
  EXPECT_THAT(differences(before, snapshot(optimizer)), IsEmpty());
}

TYPED_TEST(StateSlots, AreForgottenByAReset) {
  const auto bed = testbeds::layer_norm_block();
  const auto params = bed.init(1, at::kDouble);
  TypeParam optimizer(params, bed.gauges(params));
  train(bed, params, optimizer, 0, 3);
  const auto copy = params.clone();
  TypeParam fresh(copy, bed.gauges(copy));
  optimizer.reset_state();
  train(bed, params, optimizer, 3, 3);
  train(bed, copy, fresh, 3, 3);
  for (size_t t = 0; t < params.size(); ++t) {
    EXPECT_TRUE(at::equal(params.tensors()[t], copy.tensors()[t]));
  }
}

TEST(SetOptions, ReplacesThoseOfAGroupAndRefusesWhatIsUnusable) {
  const auto bed = testbeds::layer_norm_block();
  const auto params = bed.init(1, at::kDouble);
  DDCAdam optimizer(params);
  auto values = DDCAdamOptions(0.25).values();
  optimizer.set_options(0, values);
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.25);
  values["lr"] = -1;
  EXPECT_THROW(optimizer.set_options(0, values), c10::ValueError);
}

}  // namespace
}  // namespace ddc::tests
