// Schedules of the learning rate, LibTorch's and ours.

#include "ddc/optim/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>

#include <cmath>

#include "ddc/optim/adam.h"
#include "support/errors.h"
#include "support/small_networks.h"

namespace ddc::tests {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;

TEST(DDCAdamSchedule, StepLRChangesTheLearningRateOfEveryGroup) {
  const auto params = small_table();
  const auto t = params.tensors();
  DDCAdam optimizer({OptimizerParamGroup({t[1], t[2], t[3]}),
                     group_of({t[4]}, AdamOptions{.lr = 0.25, .eps = 0, .weight_decay = 0})},
                    params, {small_rescale(params)},
                    AdamOptions{.lr = 1, .eps = 0, .weight_decay = 0});
  torch::optim::StepLR scheduler(optimizer, /*step_size=*/2, /*gamma=*/0.5);
  scheduler.step();
  scheduler.step();
  EXPECT_THAT(learning_rates(optimizer), ElementsAre(1, 0.25));
  scheduler.step();
  EXPECT_THAT(learning_rates(optimizer), ElementsAre(0.5, 0.125));
  EXPECT_EQ(options_of(optimizer, 0).eps, 0);

  // The step uses it: Adam's first moves every entry by the learning rate.
  const auto before = t[4].detach().clone();
  set_gradients(params, 10);
  optimizer.step();
  EXPECT_TRUE(
      at::allclose((t[4] - before).abs(), at::full({2}, 0.125, at::kDouble), /*rtol=*/1e-12));
}

std::vector<double> fractions(const Schedule& schedule, const std::vector<int64_t>& steps) {
  std::vector<double> result;
  result.reserve(steps.size());
  for (const int64_t step : steps) result.push_back(schedule.fraction(step));
  return result;
}

TEST(WarmupSchedule, RisesLinearlyAndFallsAlongACosineOrALine) {
  const std::vector<int64_t> steps{0, 1, 3, 4, 6, 8, 11, 12, 13, 1000};
  const Schedule linear{Schedule::Shape::linear, 4, 12, 0.2};
  EXPECT_THAT(
      fractions(linear, steps),
      ElementsAre(DoubleEq(0.2), DoubleEq(0.4), DoubleEq(0.8), DoubleEq(1), DoubleEq(0.8),
                  DoubleEq(0.6), DoubleEq(0.3), DoubleEq(0.2), DoubleEq(0.2), DoubleEq(0.2)));
  const Schedule cosine{Schedule::Shape::cosine, 4, 12, 0.2};
  const double root = std::sqrt(0.5);  // cos(pi / 4)
  EXPECT_THAT(
      fractions(cosine, {0, 3, 4, 6, 8, 10, 12, 13, 1000}),
      ElementsAre(DoubleEq(0.2), DoubleEq(0.8), DoubleEq(1), DoubleEq(0.2 + 0.4 * (1 + root)),
                  DoubleEq(0.6), DoubleEq(0.2 + 0.4 * (1 - root)), DoubleEq(0.2), DoubleEq(0.2),
                  DoubleEq(0.2)));
  EXPECT_EQ((Schedule{.warmup = 0, .total = 5}).fraction(0), 1);
}

TEST(WarmupSchedule, AppliesToTheBaseRateOfEveryGroupOfAnyOptimizer) {
  const auto params = small_table();
  const auto t = params.tensors();
  DDCAdam ours({OptimizerParamGroup({t[0]}), group_of({t[1]}, AdamOptions{.lr = 0.5})}, params, {},
               AdamOptions{.lr = 2});
  torch::optim::AdamW theirs(
      {OptimizerParamGroup({t[2]}),
       OptimizerParamGroup({t[3]}, std::make_unique<torch::optim::AdamWOptions>(0.5))},
      torch::optim::AdamWOptions(2));
  for (torch::optim::Optimizer* optimizer :
       std::initializer_list<torch::optim::Optimizer*>{&ours, &theirs}) {
    for (const auto shape : {Schedule::Shape::cosine, Schedule::Shape::linear}) {
      const Schedule schedule{shape, 3, 9, 0.25};
      optimizer->param_groups()[0].options().set_lr(2);
      optimizer->param_groups()[1].options().set_lr(0.5);
      WarmupScheduler scheduler(*optimizer, schedule);
      for (int64_t step = 0; step < 12; ++step) {
        EXPECT_EQ(scheduler.current_step(), step);
        EXPECT_THAT(learning_rates(*optimizer),
                    ElementsAre(2 * schedule.fraction(step), 0.5 * schedule.fraction(step)));
        scheduler.step();
      }
    }
  }
}

TEST(WarmupSchedule, ResumesWhereSteppingWouldBe) {
  const auto params = small_table();
  const auto t = params.tensors();
  const Schedule schedule{Schedule::Shape::cosine, 7, 31, 0.1};
  const auto make = [&] {
    return DDCAdam({OptimizerParamGroup({t[0]}), group_of({t[1]}, AdamOptions{.lr = 0.7})}, params);
  };
  for (const int64_t at : {0, 1, 6, 7, 8, 30, 31, 40}) {
    auto stepped = make();
    WarmupScheduler scheduler(stepped, schedule);
    for (int64_t step = 0; step < at; ++step) scheduler.step();
    auto resumed = make();
    WarmupScheduler fresh(resumed, schedule);
    fresh.resume(at);
    for (int more = 0; more < 3; ++more) {
      EXPECT_EQ(fresh.current_step(), scheduler.current_step());
      EXPECT_EQ(learning_rates(resumed), learning_rates(stepped));  // to the last bit
      scheduler.step();
      fresh.step();
    }
  }
}

TEST(WarmupSchedule, RejectsBadArgumentsAndLeavesTheLearningRateAlone) {
  const auto params = small_table();
  DDCAdam optimizer(params, {}, AdamOptions{.lr = 0.5});
  const auto make = [&](const Schedule& schedule) { WarmupScheduler(optimizer, schedule); };
  expect_error([&] { make({.warmup = -1, .total = 10}); }, {"warmup", "-1"});
  expect_error([&] { make({.warmup = 10, .total = 10}); }, {"total", "10"});
  expect_error([&] { make({.warmup = 0, .total = 0}); }, {"total", "0"});
  for (const double bad : {-0.1, 1.1, kNaN}) {
    expect_error([&] { make({.warmup = 1, .total = 10, .final_fraction = bad}); },
                 {"final_fraction"});
  }
  EXPECT_THAT(learning_rates(optimizer), ElementsAre(0.5));
  WarmupScheduler scheduler(optimizer, {.warmup = 1, .total = 10});
  expect_error([&] { scheduler.resume(-1); }, {"-1"});
  EXPECT_THAT(learning_rates(optimizer), ElementsAre(0.25));
  EXPECT_EQ(scheduler.current_step(), 0);
}

}  // namespace
}  // namespace ddc::tests
