// The step loop: what it refuses before it has changed anything, and what it leaves alone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/schedulers/step_lr.h>

#include <set>

#include "ddc/gauge/norm.h"
#include "ddc/gauge/shift.h"
#include "ddc/optim/adam.h"
#include "ddc/optim/schedule.h"
#include "ddc/testbeds/blocks.h"
#include "ddc/testbeds/mlp.h"
#include "ddc/testbeds/teacher_student.h"
#include "support/errors.h"
#include "support/small_networks.h"
#include "support/snapshot.h"
#include "support/tolerances.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

using ::testing::IsEmpty;

/// Nothing happens between these steps, and some are longer than others: parts of a whole.
TEST(StepCost, IsAtMostAllOfTheTime) {
  const auto params = table({{"w", at::ones({300, 300}).requires_grad_()}});
  DDCAdam optimizer(params);
  for (int step = 0; step < 120; ++step) {
    set_gradients(params, static_cast<uint64_t>(step));
    for (int more = 0; more < (step % 10 == 0 ? 20 : 1); ++more) optimizer.step();
    const double share = optimizer.report().cost.share;
    EXPECT_LE(share, 1) << step;
    EXPECT_TRUE(step == 0 || share > 0) << step;
  }
}

TEST(CheckGradients, IsLeftOutOnRequestAlone) {
  const auto step_with = [](bool checks, double bad) {
    const auto params = table({{"w", at::ones({3, 3}).requires_grad_()}});
    auto options = std::make_unique<LiftedRuleOptions<AdamRule>>();
    options->list().assign({{"check_gradients", checks}});
    EXPECT_EQ(options->check_gradients, checks);
    DDCAdam optimizer({OptimizerParamGroup(params.tensors(), std::move(options))}, params);
    params["w"].tensor.mutable_grad() = at::full({3, 3}, bad);
    optimizer.step();
    return params["w"].tensor.detach().clone();
  };
  EXPECT_TRUE(at::equal(step_with(true, 0.5), step_with(false, 0.5)));
  expect_error([&] { step_with(true, kNaN); }, {"'w'", "NaN"});
  EXPECT_TRUE(step_with(false, kNaN).isnan().all().item<bool>());
}

TEST(DDCAdamConstruction, RejectsParametersThatAppearTwice) {
  const auto params = small_table();
  const auto t = params.tensors();
  expect_error(
      [&] {
        DDCAdam({OptimizerParamGroup({t[0], t[1]}), OptimizerParamGroup({t[1]})}, params);
      },
      {"in.weight", "group 1", "group 0"});
  expect_error(
      [&] {
        DDCAdam({OptimizerParamGroup({t[0], t[1], t[0]})}, params);
      },
      {"norm.weight", "group 0"});
}

TEST(DDCAdamConstruction, RejectsTensorsThatShareMemory) {
  const auto storage = at::randn({6}, generator(1), at::kDouble);
  const auto leaf = [](const at::Tensor& tensor) { return tensor.detach().requires_grad_(); };
  const auto whole_twice = table({{"one", leaf(storage)}, {"other", leaf(storage)}});
  expect_error([&] { DDCAdam{whole_twice}; }, {"'other'", "'one'"});
  const auto reshaped = table({{"one", leaf(storage)}, {"other", leaf(storage.view({2, 3}))}});
  expect_error([&] { DDCAdam{reshaped}; }, {"'other'", "'one'"});
  const auto overlapping =
      table({{"one", leaf(storage.narrow(0, 0, 4))}, {"other", leaf(storage.narrow(0, 2, 4))}});
  expect_error([&] { DDCAdam{overlapping}; }, {"'other'", "'one'"});
}

TEST(DDCAdamConstruction, TakesDisjointViewsOfOneBuffer) {
  const auto storage = at::randn({6}, generator(1), at::kDouble);
  const auto params = table({{"one", storage.narrow(0, 0, 3).detach().requires_grad_()},
                             {"other", storage.narrow(0, 3, 3).detach().requires_grad_()}});
  DDCAdam optimizer(params, {}, AdamOptions{.lr = 0.5, .eps = 0, .weight_decay = 0});
  const auto before = storage.clone();
  set_gradients(params, 10);
  optimizer.step();
  EXPECT_TRUE(
      at::allclose((storage - before).abs(), at::full({6}, 0.5, at::kDouble), /*rtol=*/1e-12));
}

TEST(DDCAdamConstruction, RejectsEmptyGroupsAndNoGroups) {
  const auto params = small_table();
  expect_error([&] { DDCAdam(std::vector<OptimizerParamGroup>{}, params); }, {"no param groups"});
  expect_error(
      [&] {
        DDCAdam(
            {OptimizerParamGroup(params.tensors()), OptimizerParamGroup(std::vector<at::Tensor>{})},
            params);
      },
      {"param group 1 is empty"});
  expect_error([&] { DDCAdam{Parameters()}; }, {"param group 0 is empty"});
}

TEST(DDCAdamConstruction, RejectsTensorsThatCannotBeTrained) {
  const auto leaf = weights({3}, 1);
  const auto computed = table({{"leaf", leaf}, {"twice", leaf * 2}});
  expect_error([&] { DDCAdam{computed}; }, {"'twice'", "not a leaf"});
  const auto integers = table({{"leaf", leaf}, {"counts", at::arange(3)}});
  expect_error([&] { DDCAdam{integers}; }, {"'counts'", "floating-point", "Long"});
  expect_error(
      [&] {
        DDCAdam({OptimizerParamGroup({leaf, at::Tensor()})});
      },
      {"group0.param1", "undefined"});
}

TEST(DDCAdamConstruction, RejectsGaugesThatDoNotFit) {
  const auto params = small_table();
  const auto t = params.tensors();
  const auto rescale = small_rescale(params);
  expect_error(
      [&] {
        DDCAdam({OptimizerParamGroup({t[1], t[2]})}, params, {rescale});
      },
      {"'rescale'", "'out.weight'", "in no param group"});
  auto other = norm_scale(
      {.gain = params["norm.weight"], .readers = {params["in.weight"]}, .name = rescale.name});
  expect_error([&] { DDCAdam(params, {rescale, other}); }, {"two gauges", "'rescale'"});
  auto wrong_axis = rescale;
  wrong_axis.legs[2].axis = 0;
  expect_error([&] { DDCAdam(params, {wrong_axis}); },
               {"'rescale'", "leg 2", "'out.weight'", "2 indices", "4 channels"});
}

TEST(DDCAdamConstruction, RejectsGaugesThatDoNotFitTogether) {
  const auto params = small_table();
  const auto plain = norm_scale(
      {.gain = params["norm.weight"], .readers = {params["in.weight"]}, .name = "plain"});
  auto offset = plain;
  offset.name = "offset";
  offset.legs[0].offset = 1;
  expect_error(
      [&] {
        DDCAdam(params, {plain, offset});
      },
      {"'plain'", "'offset'", "'norm.weight'", "different offsets: 0 and 1"});

  // A shift adds the same to all rows, a scale multiplies each by another number.
  const auto shift = cross_entropy_shift(params["in.weight"], Layout::out_in, "shift");
  expect_error(
      [&] {
        DDCAdam(params, {small_rescale(params), shift});
      },
      {"'rescale'", "'shift'", "'in.weight'", "axis 0"});
  // Along the other axis the two do form a group.
  EXPECT_NO_THROW(DDCAdam(params, {plain, shift}));
}

TEST(DDCAdamConstruction, RejectsWeightsThatAreNotNumbers) {
  for (const double bad : {kNaN, kInf}) {
    const auto params = small_table();
    params["out.weight"].tensor.detach()[1][2].fill_(bad);
    expect_error([&] { DDCAdam(params, {small_rescale(params)}); }, {"'out.weight'", "NaN or Inf"});
  }
}

struct BadOption {
  AdamOptions options;
  std::string option;
};

std::vector<BadOption> bad_options() {
  std::vector<BadOption> result;
  for (const double bad : {-1e-3, kNaN, kInf, -kInf}) {
    result.push_back({AdamOptions{.lr = bad}, "lr"});
    result.push_back({AdamOptions{.eps = bad}, "eps"});
    result.push_back({AdamOptions{.weight_decay = bad}, "weight_decay"});
  }
  for (const double bad : {1.0, -0.1, 1.5, kNaN}) {
    result.push_back({AdamOptions{.beta1 = bad, .beta2 = 0.999}, "beta1"});
    result.push_back({AdamOptions{.beta1 = 0.9, .beta2 = bad}, "beta2"});
  }
  return result;
}

TEST(AdamOptions, ThatAreUnusableAreRejectedAtConstruction) {
  const auto params = small_table();
  const auto t = params.tensors();
  for (const auto& [options, option] : bad_options()) {
    expect_error([&] { DDCAdam(params, {}, options); }, {option});
    expect_error(
        [&] {
          DDCAdam({OptimizerParamGroup({t[0]}), group_of({t[1]}, options)});
        },
        {option});
  }
}

TEST(AdamOptions, ThatBecomeUnusableAreRejectedByTheStep) {
  for (const auto& [options, option] : bad_options()) {
    SCOPED_TRACE(option);
    const auto params = small_table();
    const auto t = params.tensors();
    DDCAdam optimizer({OptimizerParamGroup({t[1], t[2], t[3]}), OptimizerParamGroup({t[4]})},
                      params, {small_rescale(params)});
    set_gradients(params, 10);
    optimizer.step();
    // In the last group, so that a check on the way would come too late.
    dynamic_cast<LiftedRuleOptions<AdamRule>&>(optimizer.param_groups()[1].options()).get() =
        options;
    const auto before = snapshot(optimizer);
    expect_error([&] { optimizer.step(); }, {option});
    EXPECT_THAT(differences(before, snapshot(optimizer)), IsEmpty());
  }
}

TEST(AdamOptions, ThatASchedulerMakesUnusableAreRejectedByTheStep) {
  const auto params = small_table();
  DDCAdam optimizer(params, {small_rescale(params)});
  set_gradients(params, 10);
  torch::optim::StepLR scheduler(optimizer, /*step_size=*/1, /*gamma=*/-1);
  optimizer.step();
  scheduler.step();
  optimizer.step();
  scheduler.step();
  ASSERT_LT(learning_rates(optimizer).front(), 0);
  const auto before = snapshot(optimizer);
  expect_error([&] { optimizer.step(); }, {"lr", "-0.001"});
  EXPECT_THAT(differences(before, snapshot(optimizer)), IsEmpty());
}

struct BadGradient {
  std::string name;
  std::function<at::Tensor(const at::Tensor&)> make;
  std::string complaint;
};

std::vector<BadGradient> bad_gradients() {
  const auto with_entry = [](double value) {
    return [value](const at::Tensor& gradient) {
      auto bad = gradient.clone();
      bad.view(-1)[-1].fill_(value);
      return bad;
    };
  };
  return {{"NaN", with_entry(kNaN), "NaN or Inf"},
          {"Inf", with_entry(kInf), "NaN or Inf"},
          {"minus Inf", with_entry(-kInf), "NaN or Inf"},
          {"sparse", [](const at::Tensor& gradient) { return gradient.to_sparse(); }, "sparse"},
          {"too long",
           [](const at::Tensor& gradient) {
             return at::cat({gradient, gradient});
           },
           "shape"},
          {"broadcastable",
           [](const at::Tensor& gradient) { return gradient.narrow(0, 0, 1).clone(); }, "shape"}};
}

TEST(DDCAdamStep, RejectsABadGradientInTheLastTensorBeforeItChangesAnything) {
  const auto bed = testbeds::layer_norm_block();
  for (const bool bound : {false, true}) {
    const auto params = bed.init(1, at::kDouble);
    const auto untroubled = params.clone();
    const auto gauges = bound ? bed.gauges(params) : std::vector<Gauge>{};
    DDCAdam optimizer(params, gauges);
    DDCAdam untroubled_optimizer(untroubled, gauges);
    const auto last = std::prev(params.end())->tensor;
    for (const auto& [name, make, complaint] : bad_gradients()) {
      SCOPED_TRACE(name);
      const auto batch = bed.batch(1, at::kDouble);
      backward(bed, params, batch);
      backward(bed, untroubled, batch);
      const auto good = last.grad();
      last.mutable_grad() = make(good);
      const auto before = snapshot(optimizer);
      expect_error([&] { optimizer.step(); }, {std::prev(params.end())->name, complaint});
      EXPECT_THAT(differences(before, snapshot(optimizer)), IsEmpty());

      last.mutable_grad() = good;
      optimizer.step();
      untroubled_optimizer.step();
      EXPECT_THAT(differences(snapshot(untroubled_optimizer), snapshot(optimizer)), IsEmpty());
    }
  }
}

TEST(DDCAdamStep, RejectsACompressedSparseGradient) {
  const auto params = small_table();
  DDCAdam optimizer(params, {small_rescale(params)});
  set_gradients(params, 10);
  const auto& last = params["out.weight"].tensor;
  last.mutable_grad() = last.grad().to_sparse_csr();
  const auto before = snapshot(optimizer);
  expect_error([&] { optimizer.step(); }, {"out.weight", "sparse"});
  EXPECT_THAT(differences(before, snapshot(optimizer)), IsEmpty());
}

TEST(DDCAdamStep, SkipsParametersWithoutGradient) {
  const auto params = small_table();
  DDCAdam optimizer(params, {}, AdamOptions{.lr = 0.1, .weight_decay = 0.1});
  set_gradients(params, 10);
  params["in.bias"].tensor.mutable_grad() = at::Tensor();
  const auto before = snapshot(optimizer);
  optimizer.step();
  const auto changed = differences(before, snapshot(optimizer));
  for (const auto& [name, tensor] : params) {
    const bool skipped = name == "in.bias";
    EXPECT_EQ(std::count(changed.begin(), changed.end(), "model " + name), skipped ? 0 : 1);
    EXPECT_EQ(std::count(changed.begin(), changed.end(), "optimizer param." + name + ".step"),
              skipped ? 0 : 1);
  }

  // The same for one that had a gradient before: its state stays as well.
  set_gradients(params, 20);
  optimizer.step();
  set_gradients(params, 30);
  params["in.bias"].tensor.mutable_grad() = at::Tensor();
  const auto later = snapshot(optimizer);
  optimizer.step();
  for (const auto& name : differences(later, snapshot(optimizer))) {
    EXPECT_EQ(name.find("in.bias"), std::string::npos) << name << " was changed";
  }
}

struct FrozenPart {
  std::string name;
  Testbed bed;
  std::set<std::string> frozen;
};

std::vector<FrozenPart> frozen_parts() {
  const auto pair = testbeds::relu_teacher_student({.per_channel = true});
  const auto chain = testbeds::relu_chain({.depth = 3});
  const auto norm = testbeds::norm_teacher_student();
  const auto block = testbeds::layer_norm_block();
  return {
      {"second layer", pair, {"layers.1.weight"}},
      {"middle of a chain", chain, {"layers.1.weight"}},
      {"bias", chain, {"layers.0.bias"}},
      {"gain", norm, {"norm.weight"}},
      {"positions, query and value bias",
       block,
       {"positions.weight", "layers.0.attention.query.weight", "layers.0.attention.value.bias"}}};
}

TEST(DDCAdamStep, LeavesAFrozenLegAloneAndTrainsTheOthersEquivariantly) {
  for (const auto& [name, bed, frozen] : frozen_parts()) {
    for (const auto coordinates : kAllCoordinates) {
      SCOPED_TRACE(name + ", " + to_string(coordinates));
      const auto still = with_frozen(bed, frozen);
      const auto params = still.init(1, at::kDouble);
      const auto before = params.clone();
      const auto gauges = bed.gauges(params);
      const auto treatment = in_place({.coordinates = coordinates});
      DDCAdam optimizer(params, gauges, AdamOptions{.lr = 3e-3}, treatment);
      const auto batch = still.batch(1, at::kDouble);
      const double first_loss = backward(still, params, batch);
      for (int step = 0; step < 30; ++step) {
        optimizer.step();
        backward(still, params, batch);
      }
      EXPECT_LT(loss_of(bed, params, batch), first_loss);
      for (const auto& [tensor_name, tensor] : params) {
        // The key bias is not trained either: the loss is blind to it, and its gauge holds it.
        const bool blind = tensor_name == "layers.0.attention.key.bias";
        EXPECT_EQ(bytes_of(tensor) == bytes_of(before[tensor_name].tensor),
                  frozen.count(tensor_name) > 0 || blind)
            << tensor_name;
      }
      EXPECT_LE(paired_error(still, gauges, ddc_adam(usual_options(), treatment)),
                equivariance_tolerance(at::kDouble));
    }
    // At the canonical place it may be moved along with the others, which changes no function.
    const auto gauges = bed.gauges(bed.init(1, at::kDouble));
    EXPECT_LE(paired_error(with_frozen(bed, frozen), gauges, ddc_adam(usual_options(), placed())),
              equivariance_tolerance(at::kDouble))
        << name;
  }
}

TEST(DDCAdamStep, StaysEquivariantWhenAFrozenLegIsTrainedAgain) {
  const auto bed = testbeds::relu_chain({.depth = 3});
  const auto frozen = with_frozen(bed, {"layers.1.weight"});
  std::vector<Treatment> treatments{placed()};
  for (const auto coordinates : kAllCoordinates) {
    treatments.push_back(in_place({.coordinates = coordinates}));
  }
  for (const auto& treatment : treatments) {
    SCOPED_TRACE(to_string(treatment));
    const auto first = bed.init(1, at::kDouble);
    const auto gauges = bed.gauges(first);
    const auto element = random_element(gauges, first, 0.5, generator(7));
    const auto second = first.clone();
    act_(gauges, element, second);
    DDCAdam first_optimizer(first, gauges, usual_options(), treatment);
    DDCAdam second_optimizer(second, gauges, usual_options(), treatment);
    const auto r = second_optimizer.gauge_coordinate(gauges.front().name);
    for (int step = 0; step < 60; ++step) {
      const auto& now = step / 20 % 2 == 0 ? frozen : bed;
      const auto batch = bed.batch(step, at::kDouble);
      backward(now, first, batch);
      backward(now, second, batch);
      first_optimizer.step();
      second_optimizer.step();
      if (step == 39) {  // trained: held where it was before
        const auto drift = second_optimizer.gauge_coordinate(gauges.front().name) - r;
        EXPECT_LE(drift.abs().max().item<double>(), 1e-12);
      }
    }
    first_optimizer.to_original_();
    second_optimizer.to_original_();
    act_(gauges, element, first);
    EXPECT_LE(relative_error(second, first), equivariance_tolerance(at::kDouble));
  }
}

// Tokens and positions can hand each other a constant. While the positions are held by the user
// that is no symmetry, and nothing may be done about it.
TEST(DDCAdamStep, TreatsAShiftWithAFrozenLegAsNone) {
  const auto bed = with_frozen(testbeds::layer_norm_block(), {"positions.weight"});
  const auto params = bed.init(1, at::kDouble);
  const auto plain = params.clone();
  // The key bias, to which the loss is blind, is bound in both: Adam would take it wherever the
  // rounding of its gradient points.
  std::vector<Gauge> blind;
  std::vector<Gauge> gauges;
  for (const auto& gauge : bed.gauges(params)) {
    if (gauge.kind == "null shift") blind.push_back(gauge);
    if (gauge.kind == "null shift" || gauge.kind == "embedding exchange") gauges.push_back(gauge);
  }
  ASSERT_EQ(gauges.size(), blind.size() + 1);
  DDCAdam optimizer(params, gauges, AdamOptions{.lr = 1e-3, .weight_decay = 0}, in_place());
  DDCAdam plain_optimizer(plain, blind, AdamOptions{.lr = 1e-3, .weight_decay = 0}, in_place());
  for (int step = 0; step < 20; ++step) {
    const auto batch = bed.batch(step, at::kDouble);
    backward(bed, params, batch);
    backward(bed, plain, batch);
    optimizer.step();
    plain_optimizer.step();
  }
  EXPECT_LE(relative_error(params, plain), 1e-12);
}

TEST(DDCAdamStep, NeverChangesTheCallersGradients) {
  const auto bed = testbeds::layer_norm_block();
  for (const auto type : {at::kDouble, at::kFloat}) {
    for (const bool maximize : {false, true}) {
      for (const int mode : {-1, 0, 1, 2}) {
        const auto params = bed.init(1, type);
        std::vector<Gauge> gauges;
        Treatment treatment;
        if (mode >= 0) {
          gauges = bed.gauges(params);
          treatment.coordinates = kAllCoordinates.at(mode);
        }
        DDCAdam optimizer(params, gauges, AdamOptions{.lr = 1e-3, .maximize = maximize}, treatment);
        for (int step = 0; step < 2; ++step) {
          backward(bed, params, bed.batch(step, type));
          std::vector<std::string> before;
          for (const auto& entry : params) before.push_back(bytes_of(entry.tensor.grad()));
          optimizer.step();
          for (size_t i = 0; i < params.size(); ++i) {
            EXPECT_EQ(bytes_of(params.tensors()[i].grad()) == before[i], true)
                << (params.begin() + static_cast<std::ptrdiff_t>(i))->name << ", mode " << mode
                << (maximize ? ", maximize" : "");
          }
        }
      }
    }
  }
}

TEST(DDCAdamStep, CallsTheClosureOnceWithGradientsEnabledAndReturnsItsLoss) {
  const auto bed = testbeds::relu_teacher_student({.per_channel = true});
  const auto params = bed.init(1, at::kDouble);
  const auto by_hand = params.clone();
  const auto batch = bed.batch(1, at::kDouble);
  DDCAdam optimizer(params, bed.gauges(params));
  DDCAdam by_hand_optimizer(by_hand, bed.gauges(by_hand));
  int calls = 0;
  at::Tensor loss;
  {
    const at::NoGradGuard no_grad;
    loss = optimizer.step([&] {
      ++calls;
      EXPECT_TRUE(at::GradMode::is_enabled());
      optimizer.zero_grad();
      auto value = bed.loss(params, batch);
      value.backward();
      return value;
    });
    EXPECT_FALSE(at::GradMode::is_enabled());
  }
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(loss.item<double>(), backward(bed, by_hand, batch));
  EXPECT_FALSE(by_hand_optimizer.step().defined());
  EXPECT_THAT(differences(snapshot(by_hand_optimizer), snapshot(optimizer)), IsEmpty());
}

}  // namespace
}  // namespace ddc::tests
