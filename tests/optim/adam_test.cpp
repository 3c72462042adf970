// What DDCAdam promises as a LibTorch optimizer: it is AdamW where nothing is bound, it honours options,
// and it says what it has bound.

#include "ddc/optim/adam.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "ddc/gauge/norm.h"
#include "ddc/gauge/shift.h"
#include "ddc/testbeds/blocks.h"
#include "ddc/testbeds/mlp.h"
#include "ddc/testbeds/teacher_student.h"
#include "support/errors.h"
#include "support/small_networks.h"
#include "support/snapshot.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Relative difference of weights and moments after 200 steps on the same gradients.
constexpr double kFused = 1e-14;
constexpr double kFusedFloat = 1e-6;

struct Hyperparameters {
  double lr;
  double weight_decay;
  std::tuple<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
};

/// One step of torch's fused AdamW, which keeps its moments here.
struct FusedAdamW {
  std::vector<at::Tensor> weights;
  Hyperparameters settings;
  bool maximize;
  std::vector<at::Tensor> first;
  std::vector<at::Tensor> second;

  void step(int64_t number) {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> own;
    std::vector<at::Tensor> gradients;
    for (const auto& each : weights) {
      own.push_back(each.detach());
      gradients.push_back(each.grad());
      if (first.size() < weights.size()) {
        first.push_back(at::zeros_like(each));
        second.push_back(at::zeros_like(each));
      }
    }
    const std::vector<at::Tensor> counts(own.size(),
                                         at::full({}, static_cast<double>(number), at::kFloat));
    at::_fused_adamw_(own, gradients, first, second, {}, counts, settings.lr,
                      std::get<0>(settings.betas), std::get<1>(settings.betas),
                      settings.weight_decay, settings.eps, /*amsgrad=*/false, maximize);
  }
};

/// Trains a transformer with DDCAdam without gauges and with fused AdamW, its tensors dealt out to one
/// param group per entry of `settings`.
void expect_fused_adamw(at::ScalarType type, const std::vector<Hyperparameters>& settings,
                        bool maximize = false) {
  const auto bed = testbeds::layer_norm_block();
  const auto ours = bed.init(3, type);
  const auto theirs = ours.clone();
  std::vector<OptimizerParamGroup> our_groups;
  std::vector<FusedAdamW> references;
  for (size_t g = 0; g < settings.size(); ++g) {
    const auto& [lr, weight_decay, betas, eps] = settings[g];
    const auto share = [&](const Parameters& params) {
      std::vector<at::Tensor> tensors;
      for (size_t i = g; i < params.size(); i += settings.size()) {
        tensors.push_back(params.tensors()[i]);
      }
      return tensors;
    };
    our_groups.push_back(group_of(share(ours), AdamOptions{.lr = lr,
                                                           .beta1 = std::get<0>(betas),
                                                           .beta2 = std::get<1>(betas),
                                                           .eps = eps,
                                                           .weight_decay = weight_decay,
                                                           .maximize = maximize}));
    references.push_back({share(theirs), settings[g], maximize, {}, {}});
  }
  DDCAdam optimizer(our_groups, ours);
  for (int64_t step = 0; step < 200; ++step) {
    backward(bed, ours, bed.batch(step, type));
    // The same gradients: of those that are rounding, Adam makes steps of full size.
    for (const auto& [name, tensor] : theirs) tensor.mutable_grad() = ours[name].tensor.grad();
    optimizer.step();
    for (auto& reference : references) reference.step(step + 1);
  }
  // The two fuse other multiplications.
  const double most = type == at::kDouble ? kFused : kFusedFloat;
  EXPECT_LE(relative_error(ours, theirs), most);
  std::map<std::string, at::Tensor> state;
  for (const auto& [name, tensor] : optimizer.state_dict().tensors) state[name] = tensor;
  size_t compared = 0;
  double apart = 0;
  for (const auto& reference : references) {
    for (size_t i = 0; i < reference.weights.size(); ++i, ++compared) {
      const auto named = std::find_if(theirs.begin(), theirs.end(), [&](const NamedTensor& each) {
        return each.tensor.is_same(reference.weights[i]);
      });
      ASSERT_NE(named, theirs.end());
      const auto compare = [&](const char* moment, const at::Tensor& expected) {
        const auto& own = state.at("param." + named->name + "." + moment);
        EXPECT_EQ(own.scalar_type(), type);
        const double size = expected.norm().item<double>();
        EXPECT_GT(size, 0) << named->name;
        apart = std::max(apart, (own - expected).norm().item<double>() / size);
      };
      compare("exp_avg", reference.first[i]);
      compare("exp_avg_sq", reference.second[i]);
    }
  }
  testing::Test::RecordProperty(type == at::kDouble ? "moments" : "moments of float32",
                                testing::PrintToString(apart));
  EXPECT_LE(apart, most);
  EXPECT_EQ(compared, ours.size());
  EXPECT_GT(relative_error(ours, bed.init(3, type)), 0.01) << "nothing was trained";
}

TEST(DDCAdam, EqualsFusedAdamWWithoutGauges) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    SCOPED_TRACE(type);
    expect_fused_adamw(type, {{.lr = 1e-3, .weight_decay = 0.01}});
    expect_fused_adamw(type, {{.lr = 3e-3, .weight_decay = 0}});
  }
}

TEST(DDCAdam, EqualsFusedAdamWInSeveralGroups) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    SCOPED_TRACE(type);
    expect_fused_adamw(type, {{.lr = 1e-3, .weight_decay = 0},
                              {.lr = 3e-3, .weight_decay = 0.1, .betas = {0.8, 0.95}, .eps = 1e-6},
                              {.lr = 2e-4, .weight_decay = 1, .betas = {0.0, 0.5}, .eps = 1e-10}});
  }
}

TEST(DDCAdam, MaximizesAsAdamWDoes) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    SCOPED_TRACE(type);
    expect_fused_adamw(type, {{.lr = 1e-3, .weight_decay = 0.01}},
                       /*maximize=*/true);
  }
}

AdamOptions unusual_options() {
  return {.lr = 0.5, .beta1 = 0.1, .beta2 = 0.2, .eps = 0.3, .weight_decay = 0.4, .maximize = true};
}

// Those of a group are complete: nothing is taken from the optimizer's.
TEST(DDCAdamGroups, KeepTheirOptionsEntirelyOrGetTheOptimizers) {
  const auto params = small_table();
  const auto t = params.tensors();
  const DDCAdam optimizer(
      {group_of({t[0]}, AdamOptions{.weight_decay = 0.25}), OptimizerParamGroup({t[1], t[2]}),
       group_of({t[3], t[4]}, AdamOptions{.lr = 0.125})},
      params, {}, unusual_options());
  EXPECT_EQ(values_of(options_of(optimizer, 1)), values_of(unusual_options()));
  auto expected = values_of(AdamOptions());
  expected["weight_decay"] = 0.25;
  EXPECT_EQ(values_of(options_of(optimizer, 0)), expected);
  expected["weight_decay"] = AdamOptions().weight_decay;
  expected["lr"] = 0.125;
  EXPECT_EQ(values_of(options_of(optimizer, 2)), expected);
}

TEST(DDCAdamGroups, RejectOptionsOfAnotherOptimizer) {
  const auto params = small_table();
  const auto t = params.tensors();
  const OptimizerParamGroup foreign(
      {t[1]}, std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(0.1)));
  expect_error(
      [&] {
        DDCAdam({OptimizerParamGroup({t[0]}), foreign}, params);
      },
      {"param group 1", "another optimizer's type"});

  DDCAdam optimizer({OptimizerParamGroup({t[0]})}, params);
  expect_error([&] { optimizer.add_param_group(foreign); },
               {"param group 1", "another optimizer's type"});
  EXPECT_EQ(optimizer.param_groups().size(), 1);
  EXPECT_EQ(optimizer.parameter_table().size(), 1);
}

TEST(DDCAdamGroups, AddedLaterHonourTheirOptions) {
  const auto params = small_table();
  const auto t = params.tensors();
  DDCAdam optimizer({OptimizerParamGroup({t[1], t[2], t[3]})}, params, {small_rescale(params)},
                    AdamOptions{.lr = 0.5, .eps = 0, .weight_decay = 0});
  optimizer.add_param_group(
      group_of({t[4]}, AdamOptions{.lr = 0.125, .eps = 0, .weight_decay = 0}));
  optimizer.add_param_group(OptimizerParamGroup({t[0]}));
  EXPECT_THAT(learning_rates(optimizer), ElementsAre(0.5, 0.125, 0.5));
  EXPECT_EQ(options_of(optimizer, 1).weight_decay, 0);

  // Adam's first step moves every entry by the learning rate.
  const auto before = params.clone();
  set_gradients(params, 10);
  optimizer.step();
  const auto moved = [&](const char* name) {
    return (params[name].tensor - before[name].tensor).abs().detach();
  };
  EXPECT_TRUE(at::allclose(moved("out.bias"), at::full({2}, 0.125, at::kDouble), 1e-12));
  EXPECT_TRUE(at::allclose(moved("norm.weight"), at::full({3}, 0.5, at::kDouble), 1e-12));
}

TEST(DDCAdamGroups, ThatAreRefusedLeaveTheOptimizerAsItWas) {
  const auto params = small_table();
  const auto t = params.tensors();
  DDCAdam optimizer({OptimizerParamGroup({t[1], t[2], t[3]})}, params, {small_rescale(params)});
  const auto before = snapshot(optimizer);
  // The first tensor of the group would do.
  expect_error(
      [&] {
        optimizer.add_param_group(OptimizerParamGroup({t[4], t[2]}));
      },
      {"in.bias", "group 1", "group 0"});
  expect_error([&] { optimizer.add_param_group(OptimizerParamGroup(std::vector<at::Tensor>{})); },
               {"param group 1 is empty"});
  expect_error([&] { optimizer.add_param_group(group_of({t[4]}, AdamOptions{.lr = -1})); },
               {"lr", "-1"});
  EXPECT_THAT(differences(before, snapshot(optimizer)), IsEmpty());
  set_gradients(params, 10);
  optimizer.step();
  EXPECT_THAT(differences(before, snapshot(optimizer)), Not(IsEmpty()));
}

TEST(DDCAdamGroups, AddedBehindItsBackAreRefusedByTheStep) {
  const auto params = small_table();
  const auto t = params.tensors();
  const auto add_group = [&](torch::optim::Optimizer& base) {
    base.add_param_group(OptimizerParamGroup({t[4]}));
  };
  const auto add_parameters = [&](torch::optim::Optimizer& base) { base.add_parameters({t[4]}); };
  for (const std::function<void(torch::optim::Optimizer&)>& add :
       {std::function<void(torch::optim::Optimizer&)>(add_group),
        std::function<void(torch::optim::Optimizer&)>(add_parameters)}) {
    DDCAdam optimizer({OptimizerParamGroup({t[1], t[2], t[3]})}, params, {small_rescale(params)});
    set_gradients(params, 10);
    add(optimizer);
    const auto before = snapshot(optimizer);
    const auto added = bytes_of(t[4]);
    expect_error([&] { optimizer.step(); },
                 {"hold 4 parameters", "made for 3", "DDCAdam::add_param_group"});
    EXPECT_THAT(differences(before, snapshot(optimizer)), IsEmpty());
    EXPECT_EQ(bytes_of(t[4]), added);
  }
}

/// The testbed on float32 copies of narrower parameters.
Testbed in_float(Testbed bed) {
  bed.loss = [loss = bed.loss](const Parameters& params, const testbeds::Batch& batch) {
    Parameters wide;
    for (const auto& [name, tensor] : params) wide.add(name, tensor.to(at::kFloat));
    return loss(wide, batch);
  };
  return bed;
}

TEST(DDCAdamNarrow, TypesKeepFloatStateAndTrain) {
  const auto bed = in_float(testbeds::relu_teacher_student({.per_channel = true}));
  const auto batch = bed.batch(1, at::kFloat);
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    for (const int mode : {-1, 0, 1, 2}) {
      SCOPED_TRACE(std::string(c10::toString(type)) + ", mode " + std::to_string(mode));
      const auto params = bed.init(1, type);
      std::vector<Gauge> gauges;
      Treatment treatment;
      if (mode >= 0) {
        gauges = bed.gauges(params);
        treatment.coordinates = kAllCoordinates.at(mode);
      }
      DDCAdam optimizer(params, gauges, AdamOptions{.lr = 1e-2}, treatment);
      const double first_loss = backward(bed, params, batch);
      for (int step = 0; step < 100; ++step) {
        optimizer.step();
        backward(bed, params, batch);
      }
      EXPECT_LT(loss_of(bed, params, batch), 0.5 * first_loss);
      EXPECT_TRUE(all_finite(params));
      for (const auto& [name, tensor] : params) {
        EXPECT_EQ(tensor.scalar_type(), type);
        EXPECT_EQ(tensor.grad().scalar_type(), type);
      }
      for (const auto& [name, tensor] : optimizer.state_dict().tensors) {
        if (name.rfind("param.", 0) != 0 || name.find(".exp_avg") == std::string::npos) continue;
        EXPECT_EQ(tensor.scalar_type(), at::kFloat) << name;
        EXPECT_TRUE(tensor.isfinite().all().item<bool>()) << name;
      }
    }
  }
}

TEST(DDCAdamReport, SaysWhatIsBoundAndWhatTheLastStepDid) {
  const auto bed = testbeds::relu_chain({.depth = 3, .d_hidden = 5});
  const auto params = bed.init(1, at::kDouble);
  const auto gauges = bed.gauges(params);
  DDCAdam optimizer(params, gauges, AdamOptions{.lr = 1e-2}, in_place());
  const auto before = optimizer.report();
  ASSERT_EQ(before.gauges.size(), 2);
  EXPECT_EQ(before.tensors, 6);
  EXPECT_EQ(before.gauged_tensors, 5);  // all but the last bias
  EXPECT_EQ(before.dimension(), 10);
  EXPECT_EQ(before.degenerate_channels(), 0);
  EXPECT_EQ(before.largest_imbalance(), 0);
  EXPECT_EQ(before.gauges[0].name, gauges[0].name);
  EXPECT_EQ(before.gauges[0].kind, "relu rescale");
  EXPECT_EQ(before.gauges[0].group, "(R+)^5");
  EXPECT_EQ(before.gauges[0].coordinates, "balanced");
  EXPECT_EQ(before.gauges[0].channels, 5);
  EXPECT_EQ(before.gauges[0].dimension, 5);
  EXPECT_THAT(before.gauges[0].tensors,
              ElementsAre("layers.0.weight", "layers.0.bias", "layers.1.weight"));

  backward(bed, params, bed.batch(1, at::kDouble));
  optimizer.step();
  for (const auto& gauge : optimizer.report().gauges) EXPECT_GT(gauge.imbalance, 0) << gauge.name;
}

TEST(DDCAdamReport, CountsTheDimensionOfShifts) {
  const auto params = small_table();
  const DDCAdam optimizer(
      params, {cross_entropy_shift(params["out.weight"]), cross_entropy_shift(params["out.bias"])});
  const auto report = optimizer.report();
  EXPECT_EQ(report.gauges[0].dimension, 4);
  EXPECT_EQ(report.gauges[0].group, "R^4");
  EXPECT_EQ(report.gauges[1].dimension, 1);
  EXPECT_EQ(report.gauges[1].group, "R");
  EXPECT_EQ(report.dimension(), 5);
  EXPECT_EQ(report.degenerate_channels(), 0);
}

TEST(DDCAdamReport, CountsDegenerateChannelsAndCanBePrinted) {
  const auto params = small_table();
  params["out.weight"].tensor.detach().zero_();
  const DDCAdam optimizer(params,
                          {small_rescale(params), norm_scale({.gain = params["norm.weight"],
                                                              .readers = {params["in.weight"]},
                                                              .name = "first norm"})});
  const auto report = optimizer.report();
  EXPECT_EQ(report.gauges[0].degenerate_channels, 4);
  EXPECT_EQ(report.gauges[1].degenerate_channels, 0);
  EXPECT_EQ(report.degenerate_channels(), 4);
  EXPECT_TRUE(optimizer.gauge_coordinate("rescale").isnan().all().item<bool>());

  std::ostringstream text;
  text << std::hex << report;
  EXPECT_THAT(text.str(), HasSubstr("rescale"));
  EXPECT_THAT(text.str(), HasSubstr("first norm"));
  EXPECT_THAT(text.str(), HasSubstr("norm scale"));
  EXPECT_THAT(text.str(), HasSubstr("(R+)^4"));
  EXPECT_THAT(text.str(), HasSubstr("2 gauges of dimension 7 on 4 of 5 tensors"));
}

}  // namespace
}  // namespace ddc::tests
