// State and options as a binding sees them: in place, loaded as tensors, and forgotten.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "ddc/optim/adam.h"
#include "ddc/optim/muon.h"
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
  const auto slots = optimizer.state_slots();
  std::set<std::string> keys;
  for (const auto& slot : slots) {
    ASSERT_LT(slot.parameter, table.size());
    ASSERT_TRUE(slot.tensor->defined()) << slot.key();
    EXPECT_TRUE(keys.insert(slot.key()).second) << slot.key();
    const auto& stored = state.tensors.at(slot.key());
    EXPECT_TRUE(at::equal(stored, *slot.tensor)) << slot.key();
    EXPECT_FALSE(stored.is_alias_of(*slot.tensor)) << slot.key();
    const bool of_parameter = slot.owner == StateSlot::Owner::parameter;
    EXPECT_EQ(slot.key_in_parameter(), of_parameter ? slot.field : slot.key());
    if (of_parameter) {
      EXPECT_EQ(slot.name, (table.begin() + static_cast<std::ptrdiff_t>(slot.parameter))->name);
    }
    if (of_parameter && slot.field == "step") {
      EXPECT_EQ(stored.template item<int64_t>(), 2) << slot.key();
    }
  }
  EXPECT_EQ(slots.size(), state.tensors.size());
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

OptionValues values_of_group(const DDCAdam& optimizer) {
  return dynamic_cast<const LiftedOptions&>(optimizer.param_groups()[0].options()).values();
}

TEST(SetOptions, ReplacesThoseOfAGroupAndRefusesWhatIsUnusable) {
  const auto bed = testbeds::layer_norm_block();
  const auto params = bed.init(1, at::kDouble);
  DDCAdam optimizer(params);
  auto values = values_of(AdamOptions{.lr = 0.25});
  optimizer.set_options(0, values);
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.25);
  values["lr"] = -1;
  EXPECT_THROW(optimizer.set_options(0, values), c10::ValueError);
  // All or nothing, and what is not named stays.
  expect_error(
      [&] {
        optimizer.set_options(0, {{"beta1", 0.5}, {"eps", -1.0}});
      },
      {"option eps", ">= 0", "-1"});
  expect_error(
      [&] {
        optimizer.set_options(0, {{"beta3", 0.5}});
      },
      {"unknown option of DDCAdam 'beta3'", "did you mean 'beta"});
  expect_error(
      [&] {
        optimizer.set_options(0, {{"wavelength", 0.5}});
      },
      {"unknown option of DDCAdam 'wavelength'", "there are lr, beta1"});
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.25);
  EXPECT_EQ(std::get<double>(values_of_group(optimizer).at("beta1")), 0.9);
  optimizer.set_options(0, {{"maximize", true}, {"weight_decay", int64_t{1}}});
  auto expected = values_of(AdamOptions{.lr = 0.25, .weight_decay = 1, .maximize = true});
  expected["check_gradients"] = true;  // what options of all rules have in common
  EXPECT_EQ(values_of_group(optimizer), expected);
}

}  // namespace
}  // namespace ddc::tests
