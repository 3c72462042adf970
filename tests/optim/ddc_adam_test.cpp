// What DDCAdam promises as a LibTorch optimizer: it is AdamW where nothing is bound, it honours
// options, it refuses what it cannot use before it has changed anything, and it trains where a
// gauge degenerates.

#include "ddc/optim/ddc_adam.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>

#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <sstream>

#include "ddc/gauge/norm_scale.h"
#include "ddc/gauge/rescale.h"
#include "ddc/gauge/shift.h"
#include "ddc/optim/schedule.h"
#include "ddc/testbeds/blocks.h"
#include "ddc/testbeds/mlp.h"
#include "ddc/testbeds/teacher_student.h"
#include "support/errors.h"
#include "support/tolerances.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using torch::optim::OptimizerParamGroup;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::array kAllCoordinates{Coordinates::folded, Coordinates::balanced,
                                     Coordinates::polar};

std::string bytes_of(const at::Tensor& tensor) {
  const auto dense = tensor.detach().contiguous();
  return {static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()};
}

/// Weights and all of the optimizer's state, bit for bit.
std::map<std::string, std::string> snapshot(const DDCAdam& optimizer) {
  std::map<std::string, std::string> result;
  for (const auto& [name, tensor] : optimizer.parameter_table()) {
    result["weights of " + name] = bytes_of(tensor);
  }
  const auto state = optimizer.state_dict();
  for (const auto& [name, tensor] : state.tensors) result["state " + name] = bytes_of(tensor);
  result["description"] = state.description;
  return result;
}

/// What is not the same in both, by name.
std::vector<std::string> differences(const std::map<std::string, std::string>& before,
                                     const std::map<std::string, std::string>& after) {
  std::set<std::string> keys;
  for (const auto& [key, bytes] : before) keys.insert(key);
  for (const auto& [key, bytes] : after) keys.insert(key);
  std::vector<std::string> result;
  for (const auto& key : keys) {
    if (before.count(key) == 0 || after.count(key) == 0 || before.at(key) != after.at(key)) {
      result.push_back(key);
    }
  }
  return result;
}

const DDCAdamOptions& options_of(const DDCAdam& optimizer, size_t group) {
  return dynamic_cast<const DDCAdamOptions&>(optimizer.param_groups().at(group).options());
}

std::vector<double> learning_rates(const torch::optim::Optimizer& optimizer) {
  std::vector<double> lrs;
  for (const auto& group : optimizer.param_groups()) lrs.push_back(group.options().get_lr());
  return lrs;
}

OptimizerParamGroup group_of(std::vector<at::Tensor> tensors, const DDCAdamOptions& options) {
  return {std::move(tensors), std::make_unique<DDCAdamOptions>(options)};
}

at::Tensor weights(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, generator(seed), at::kDouble).requires_grad_();
}

Parameters table(std::vector<NamedTensor> entries) { return Parameters(std::move(entries)); }

/// Two layers with a ReLU between them, and a norm before them.
Parameters small_table() {
  return table({{"norm.weight", weights({3}, 1)},
                {"in.weight", weights({4, 3}, 2)},
                {"in.bias", weights({4}, 3)},
                {"out.weight", weights({2, 4}, 4)},
                {"out.bias", weights({2}, 5)}});
}

Gauge small_rescale(const Parameters& params) {
  return relu_rescale({.in = params["in.weight"],
                       .in_bias = params["in.bias"],
                       .out = {params["out.weight"]},
                       .name = "rescale"});
}

void set_gradients(const Parameters& params, uint64_t seed) {
  for (const auto& [name, tensor] : params) {
    tensor.mutable_grad() = at::randn(tensor.sizes(), generator(seed++), tensor.options());
  }
}

/// The testbed with other weights to start from.
Testbed starting_from(Testbed bed, const std::function<void(const Parameters&)>& change) {
  bed.init = [init = bed.init, change](uint64_t seed, at::ScalarType type) {
    const at::NoGradGuard no_grad;
    auto params = init(seed, type);
    change(params);
    return params;
  };
  return bed;
}

/// The testbed in which the tensors called `frozen` get no gradient.
Testbed with_frozen(Testbed bed, const std::set<std::string>& frozen) {
  bed.loss = [loss = bed.loss, frozen](const Parameters& params, const testbeds::Batch& batch) {
    Parameters view;
    for (const auto& [name, tensor] : params) {
      view.add(name, frozen.count(name) > 0 ? tensor.detach() : tensor);
    }
    return loss(view, batch);
  };
  return bed;
}

double loss_of(const Testbed& bed, const Parameters& params, const testbeds::Batch& batch) {
  const at::NoGradGuard no_grad;
  return bed.loss(params, batch).item<double>();
}

bool all_finite(const Parameters& params) {
  return std::all_of(params.begin(), params.end(), [](const NamedTensor& entry) {
    return entry.tensor.isfinite().all().item<bool>();
  });
}

// ---- AdamW where nothing is bound ---------------------------------------------------------------

struct Hyperparameters {
  double lr;
  double weight_decay;
  std::tuple<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
};

/// Trains a transformer with DDCAdam without gauges and with AdamW, its tensors dealt out to one
/// param group per entry of `settings`.
void expect_adamw_to_the_last_bit(at::ScalarType type, const std::vector<Hyperparameters>& settings,
                                  bool maximize = false) {
  const auto bed = testbeds::layer_norm_block();
  const auto ours = bed.init(3, type);
  const auto theirs = ours.clone();
  std::vector<OptimizerParamGroup> our_groups;
  std::vector<OptimizerParamGroup> their_groups;
  for (size_t g = 0; g < settings.size(); ++g) {
    const auto& [lr, weight_decay, betas, eps] = settings[g];
    const auto share = [&](const Parameters& params) {
      std::vector<at::Tensor> tensors;
      for (size_t i = g; i < params.size(); i += settings.size()) {
        tensors.push_back(params.tensors()[i]);
      }
      return tensors;
    };
    our_groups.push_back(group_of(
        share(ours),
        DDCAdamOptions(lr).weight_decay(weight_decay).betas(betas).eps(eps).maximize(maximize)));
    auto options = torch::optim::AdamWOptions(lr).weight_decay(weight_decay).betas(betas).eps(eps);
    their_groups.emplace_back(share(theirs), std::make_unique<torch::optim::AdamWOptions>(options));
  }
  DDCAdam optimizer(our_groups, ours);
  torch::optim::AdamW reference(their_groups);
  for (int64_t step = 0; step < 200; ++step) {
    const auto batch = bed.batch(step, type);
    backward(bed, ours, batch);
    backward(bed, theirs, batch);
    if (maximize) {
      for (const auto& entry : theirs) entry.tensor.mutable_grad() = entry.tensor.grad().neg();
    }
    optimizer.step();
    reference.step();
  }
  const auto state = optimizer.state_dict().tensors;
  for (const auto& [name, tensor] : theirs) {
    EXPECT_TRUE(at::equal(ours[name].tensor, tensor)) << name;
    const auto& moments = dynamic_cast<const torch::optim::AdamWParamState&>(
        *reference.state().at(tensor.unsafeGetTensorImpl()));
    EXPECT_TRUE(at::equal(state.at("param." + name + ".exp_avg"), moments.exp_avg())) << name;
    EXPECT_TRUE(at::equal(state.at("param." + name + ".exp_avg_sq"), moments.exp_avg_sq())) << name;
  }
  EXPECT_GT(relative_error(ours, bed.init(3, type)), 0.01) << "nothing was trained";
}

TEST(DDCAdam, EqualsAdamWToTheLastBitWithoutGauges) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    SCOPED_TRACE(type);
    expect_adamw_to_the_last_bit(type, {{.lr = 1e-3, .weight_decay = 0.01}});
    expect_adamw_to_the_last_bit(type, {{.lr = 3e-3, .weight_decay = 0}});
  }
}

TEST(DDCAdam, EqualsAdamWToTheLastBitInSeveralGroups) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    SCOPED_TRACE(type);
    expect_adamw_to_the_last_bit(
        type, {{.lr = 1e-3, .weight_decay = 0},
               {.lr = 3e-3, .weight_decay = 0.1, .betas = {0.8, 0.95}, .eps = 1e-6},
               {.lr = 2e-4, .weight_decay = 1, .betas = {0.0, 0.5}, .eps = 1e-10}});
  }
}

TEST(DDCAdam, MaximizesAsAdamWDoesOnNegatedGradients) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    SCOPED_TRACE(type);
    expect_adamw_to_the_last_bit(type, {{.lr = 1e-3, .weight_decay = 0.01}}, /*maximize=*/true);
  }
}

// ---- Options ------------------------------------------------------------------------------------

DDCAdamOptions unusual_options() {
  return DDCAdamOptions(0.5).betas({0.1, 0.2}).eps(0.3).weight_decay(0.4).maximize(true);
}

TEST(DDCAdamGroups, InheritWhatTheyWereNotGiven) {
  const auto params = small_table();
  const auto t = params.tensors();
  const DDCAdam optimizer(
      {group_of({t[0]}, DDCAdamOptions().weight_decay(0.25)), OptimizerParamGroup({t[1], t[2]}),
       group_of({t[3], t[4]}, DDCAdamOptions(0.125))},
      params, {}, unusual_options());
  auto expected = unusual_options().values();
  EXPECT_EQ(options_of(optimizer, 1).values(), expected);
  expected["weight_decay"] = 0.25;
  EXPECT_EQ(options_of(optimizer, 0).values(), expected);
  expected["weight_decay"] = 0.4;
  expected["lr"] = 0.125;
  EXPECT_EQ(options_of(optimizer, 2).values(), expected);
}

TEST(DDCAdamGroups, KeepAGivenOptionThatEqualsTheConstructorsDefault) {
  const auto params = small_table();
  const DDCAdamOptions standard;
  const DDCAdam optimizer({group_of(params.tensors(), DDCAdamOptions()
                                                          .lr(standard.lr())
                                                          .betas(standard.betas())
                                                          .eps(standard.eps())
                                                          .weight_decay(standard.weight_decay())
                                                          .maximize(standard.maximize()))},
                          params, {}, unusual_options());
  EXPECT_EQ(options_of(optimizer, 0).values(), standard.values());
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
                    DDCAdamOptions(0.5).weight_decay(0).eps(0));
  optimizer.add_param_group(group_of({t[4]}, DDCAdamOptions(0.125)));
  optimizer.add_param_group(OptimizerParamGroup({t[0]}));
  EXPECT_THAT(learning_rates(optimizer), ElementsAre(0.5, 0.125, 0.5));
  EXPECT_EQ(options_of(optimizer, 1).weight_decay(), 0);

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
  expect_error([&] { optimizer.add_param_group(group_of({t[4]}, DDCAdamOptions(-1))); },
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

// ---- What is refused at construction ------------------------------------------------------------

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
  DDCAdam optimizer(params, {}, DDCAdamOptions(0.5).weight_decay(0).eps(0));
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
  DDCAdamOptions options;
  std::string option;
};

std::vector<BadOption> bad_options() {
  std::vector<BadOption> result;
  for (const double bad : {-1e-3, kNaN, kInf, -kInf}) {
    result.push_back({DDCAdamOptions().lr(bad), "lr"});
    result.push_back({DDCAdamOptions().eps(bad), "eps"});
    result.push_back({DDCAdamOptions().weight_decay(bad), "weight_decay"});
  }
  for (const double bad : {1.0, -0.1, 1.5, kNaN}) {
    result.push_back({DDCAdamOptions().betas({bad, 0.999}), "betas[0]"});
    result.push_back({DDCAdamOptions().betas({0.9, bad}), "betas[1]"});
  }
  return result;
}

TEST(DDCAdamOptions, ThatAreUnusableAreRejectedAtConstruction) {
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

TEST(DDCAdamOptions, ThatBecomeUnusableAreRejectedByTheStep) {
  for (const auto& [options, option] : bad_options()) {
    SCOPED_TRACE(option);
    const auto params = small_table();
    const auto t = params.tensors();
    DDCAdam optimizer({OptimizerParamGroup({t[1], t[2], t[3]}), OptimizerParamGroup({t[4]})},
                      params, {small_rescale(params)});
    set_gradients(params, 10);
    optimizer.step();
    // In the last group, so that a check on the way would come too late.
    dynamic_cast<DDCAdamOptions&>(optimizer.param_groups()[1].options()) = options;
    const auto before = snapshot(optimizer);
    expect_error([&] { optimizer.step(); }, {option});
    EXPECT_THAT(differences(before, snapshot(optimizer)), IsEmpty());
  }
}

TEST(DDCAdamOptions, ThatASchedulerMakesUnusableAreRejectedByTheStep) {
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

// ---- Gradients ----------------------------------------------------------------------------------

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
  DDCAdam optimizer(params, {}, DDCAdamOptions(0.1).weight_decay(0.1));
  set_gradients(params, 10);
  params["in.bias"].tensor.mutable_grad() = at::Tensor();
  const auto before = snapshot(optimizer);
  optimizer.step();
  const auto changed = differences(before, snapshot(optimizer));
  for (const auto& [name, tensor] : params) {
    const bool skipped = name == "in.bias";
    EXPECT_EQ(std::count(changed.begin(), changed.end(), "weights of " + name), skipped ? 0 : 1);
    EXPECT_EQ(std::count(changed.begin(), changed.end(), "state param." + name + ".step"),
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
      const auto gauges = with(bed.gauges(params), coordinates);
      DDCAdam optimizer(params, gauges, DDCAdamOptions(3e-3));
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
      EXPECT_LE(paired_error(still, gauges, ddc_adam()), equivariance_tolerance(at::kDouble));
    }
  }
}

TEST(DDCAdamStep, StaysEquivariantWhenAFrozenLegIsTrainedAgain) {
  const auto bed = testbeds::relu_chain({.depth = 3});
  const auto frozen = with_frozen(bed, {"layers.1.weight"});
  for (const auto coordinates : kAllCoordinates) {
    SCOPED_TRACE(to_string(coordinates));
    const auto first = bed.init(1, at::kDouble);
    const auto gauges = with(bed.gauges(first), coordinates);
    const auto element = random_element(gauges, first, 0.5, generator(7));
    const auto second = first.clone();
    act_(gauges, element, second);
    DDCAdam first_optimizer(first, gauges, usual_options());
    DDCAdam second_optimizer(second, gauges, usual_options());
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
  DDCAdam optimizer(params, gauges, DDCAdamOptions(1e-3).weight_decay(0));
  DDCAdam plain_optimizer(plain, blind, DDCAdamOptions(1e-3).weight_decay(0));
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
        if (mode >= 0) gauges = with(bed.gauges(params), kAllCoordinates.at(mode));
        DDCAdam optimizer(params, gauges, DDCAdamOptions(1e-3).maximize(maximize));
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

// ---- Narrow types -------------------------------------------------------------------------------

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
      if (mode >= 0) gauges = with(bed.gauges(params), kAllCoordinates.at(mode));
      DDCAdam optimizer(params, gauges, DDCAdamOptions(1e-2));
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

// ---- Schedulers ---------------------------------------------------------------------------------

TEST(DDCAdamSchedule, StepLRChangesTheLearningRateOfEveryGroup) {
  const auto params = small_table();
  const auto t = params.tensors();
  DDCAdam optimizer(
      {OptimizerParamGroup({t[1], t[2], t[3]}), group_of({t[4]}, DDCAdamOptions(0.25))}, params,
      {small_rescale(params)}, DDCAdamOptions(1).weight_decay(0).eps(0));
  torch::optim::StepLR scheduler(optimizer, /*step_size=*/2, /*gamma=*/0.5);
  scheduler.step();
  scheduler.step();
  EXPECT_THAT(learning_rates(optimizer), ElementsAre(1, 0.25));
  scheduler.step();
  EXPECT_THAT(learning_rates(optimizer), ElementsAre(0.5, 0.125));
  EXPECT_EQ(options_of(optimizer, 0).eps(), 0);

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
  DDCAdam ours({OptimizerParamGroup({t[0]}), group_of({t[1]}, DDCAdamOptions(0.5))}, params, {},
               DDCAdamOptions(2));
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
    return DDCAdam({OptimizerParamGroup({t[0]}), group_of({t[1]}, DDCAdamOptions(0.7))}, params);
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
  DDCAdam optimizer(params, {}, DDCAdamOptions(0.5));
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

// ---- Report -------------------------------------------------------------------------------------

TEST(DDCAdamReport, SaysWhatIsBoundAndWhatTheLastStepDid) {
  const auto bed = testbeds::relu_chain({.depth = 3, .d_hidden = 5});
  const auto params = bed.init(1, at::kDouble);
  const auto gauges = bed.gauges(params);
  DDCAdam optimizer(params, gauges, DDCAdamOptions(1e-2));
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

// ---- Degenerate strata --------------------------------------------------------------------------

struct Stratum {
  std::string name;
  Testbed bed;
  /// How many channels are degenerate at the start, and how many of them stay so.
  int64_t degenerate;
  int64_t dead;
  /// A tensor that is zero in part, and has to leave zero.
  std::string zero;
};
void PrintTo(const Stratum& stratum, std::ostream* out) { *out << stratum.name; }

std::vector<Stratum> strata() {
  const auto pair = testbeds::relu_teacher_student({.per_channel = true});
  const auto whole = testbeds::relu_teacher_student({.per_channel = false});
  const auto biased = testbeds::relu_chain({.depth = 2});
  const auto squared = testbeds::relu_chain({.depth = 2, .degree = 2});
  const auto norm = testbeds::norm_teacher_student();
  const auto zero = [](const Parameters& params, const std::string& name) {
    params[name].tensor.zero_();
  };
  return {
      {"ZeroOutput",
       starting_from(pair, [=](const Parameters& params) { zero(params, "layers.1.weight"); }), 16,
       0, "layers.1.weight"},
      {"ZeroOutputOfAWholeTensorGauge",
       starting_from(whole, [=](const Parameters& params) { zero(params, "layers.1.weight"); }), 1,
       0, "layers.1.weight"},
      {"ZeroOutputWithBiases",
       starting_from(biased, [=](const Parameters& params) { zero(params, "layers.1.weight"); }),
       16, 0, "layers.1.weight"},
      {"ZeroOutputOfSquaredRelu",
       starting_from(squared, [=](const Parameters& params) { zero(params, "layers.1.weight"); }),
       16, 0, "layers.1.weight"},
      {"OneZeroColumn",
       starting_from(
           pair,
           [](const Parameters& params) { params["layers.1.weight"].tensor.select(1, 3).zero_(); }),
       1, 0, "layers.1.weight"},
      {"DeadChannel",
       starting_from(pair,
                     [](const Parameters& params) {
                       params["layers.0.weight"].tensor[3].zero_();
                       params["layers.1.weight"].tensor.select(1, 3).zero_();
                     }),
       1, 1, ""},
      {"ZeroGain",
       starting_from(norm,
                     [](const Parameters& params) { params["norm.weight"].tensor[3].zero_(); }),
       1, 0, "norm.weight"},
      {"ZeroReaderColumn",
       starting_from(
           norm,
           [](const Parameters& params) { params["readout.weight"].tensor.select(1, 3).zero_(); }),
       1, 0, "readout.weight"},
  };
}

class DegenerateStratum : public ::testing::TestWithParam<std::tuple<Stratum, Coordinates>> {};

TEST_P(DegenerateStratum, IsLeftByTrainingAndHeldFromThenOn) {
  const auto& [stratum, coordinates] = GetParam();
  const auto& bed = stratum.bed;
  const auto params = bed.init(1, at::kDouble);
  const auto gauges = with(bed.gauges(params), coordinates);
  ASSERT_EQ(gauges.size(), 1);
  DDCAdam optimizer(params, gauges, DDCAdamOptions(3e-3));
  EXPECT_EQ(optimizer.report().degenerate_channels(), stratum.degenerate);

  const auto batch = bed.batch(1, at::kDouble);
  const double first_loss = loss_of(bed, params, batch);
  auto held = optimizer.gauge_coordinate(gauges[0].name);
  EXPECT_EQ(held.isnan().sum().item<int64_t>(), stratum.degenerate);
  double drift = 0;
  for (int step = 0; step < 100; ++step) {
    backward(bed, params, batch);
    optimizer.step();
    ASSERT_TRUE(all_finite(params)) << "after step " << step;
    const auto r = optimizer.gauge_coordinate(gauges[0].name);
    drift = std::max(drift, at::where(held.isnan(), 0.0, (r - held).abs()).max().item<double>());
    held = at::where(held.isnan(), r, held);
  }
  EXPECT_EQ(optimizer.report().degenerate_channels(), stratum.dead);
  EXPECT_EQ(held.isnan().sum().item<int64_t>(), stratum.dead);
  EXPECT_LE(drift, 1e-12);
  EXPECT_LT(loss_of(bed, params, batch), first_loss);
  if (!stratum.zero.empty()) {
    EXPECT_TRUE(params[stratum.zero].tensor.ne(0).all().item<bool>());
  }
  for (const auto& [name, tensor] : optimizer.state_dict().tensors) {
    EXPECT_TRUE(tensor.isfinite().all().item<bool>()) << name;
  }
}

TEST_P(DegenerateStratum, IsEquivariant) {
  const auto& [stratum, coordinates] = GetParam();
  const auto gauges = with(stratum.bed.gauges(stratum.bed.init(1, at::kDouble)), coordinates);
  for (const uint64_t seed : {1, 2, 3}) {
    EXPECT_LE(paired_error(stratum.bed, gauges, ddc_adam(), {.seed = seed}),
              equivariance_tolerance(at::kDouble));
  }
}

INSTANTIATE_TEST_SUITE_P(Strata, DegenerateStratum,
                         ::testing::Combine(::testing::ValuesIn(strata()),
                                            ::testing::ValuesIn(kAllCoordinates)),
                         [](const auto& instance) {
                           std::string mode = to_string(std::get<1>(instance.param));
                           mode[0] = static_cast<char>(std::toupper(mode[0]));
                           return std::get<0>(instance.param).name + mode;
                         });

TEST(DegenerateChannel, ComesBackToWhereItWasHeldBefore) {
  const auto bed = testbeds::relu_teacher_student({.per_channel = true});
  const auto batch = bed.batch(1, at::kDouble);
  for (const auto coordinates : kAllCoordinates) {
    SCOPED_TRACE(to_string(coordinates));
    const auto params = bed.init(1, at::kDouble);
    const auto gauges = with(bed.gauges(params), coordinates);
    DDCAdam optimizer(params, gauges, DDCAdamOptions(3e-3));
    const auto held = optimizer.gauge_coordinate(gauges[0].name);
    const auto train = [&](int steps) {
      for (int step = 0; step < steps; ++step) {
        backward(bed, params, batch);
        optimizer.step();
        ASSERT_TRUE(all_finite(params));
      }
    };
    train(10);
    params["layers.1.weight"].tensor.detach().select(1, 3).zero_();
    EXPECT_TRUE(optimizer.gauge_coordinate(gauges[0].name)[3].isnan().item<bool>());
    const double first_loss = loss_of(bed, params, batch);
    train(100);
    EXPECT_LT(loss_of(bed, params, batch), first_loss);
    EXPECT_EQ(optimizer.report().degenerate_channels(), 0);
    const auto drift = optimizer.gauge_coordinate(gauges[0].name) - held;
    EXPECT_LE(drift.abs().max().item<double>(), 1e-12);
  }
}

// Zero-initialised output projections, as in GPT-like models, among all the other gauges.
Testbed block_with_zero_outputs(const testbeds::LayerNormBlockOptions& options = {}) {
  return starting_from(testbeds::layer_norm_block(options), [](const Parameters& params) {
    for (const auto* name : {"layers.0.attention.output.weight", "layers.0.mlp.down.weight",
                             "layers.0.squared_mlp.down.weight"}) {
      params[name].tensor.zero_();
    }
  });
}

TEST(DegenerateBlock, WithZeroOutputProjectionsTrainsAndBinds) {
  const auto bed = block_with_zero_outputs();
  const auto params = bed.init(1, at::kDouble);
  DDCAdam optimizer(params, bed.gauges(params), DDCAdamOptions(3e-3));
  EXPECT_EQ(optimizer.report().degenerate_channels(), 4 + 24 + 24);  // heads and hidden units
  const auto batch = bed.batch(1, at::kDouble);
  const double first_loss = loss_of(bed, params, batch);
  for (int step = 0; step < 30; ++step) {
    backward(bed, params, batch);
    optimizer.step();
    ASSERT_TRUE(all_finite(params)) << "after step " << step;
  }
  EXPECT_LT(loss_of(bed, params, batch), first_loss);
  EXPECT_LT(optimizer.report().degenerate_channels(), 4 + 24 + 24);
}

TEST(DegenerateBlock, WithZeroOutputProjectionsIsEquivariant) {
  const auto bed = block_with_zero_outputs({.residual_shifts = false});
  for (const auto coordinates : kAllCoordinates) {
    const auto gauges = with(bed.gauges(bed.init(1, at::kDouble)), coordinates);
    EXPECT_LE(paired_error(bed, gauges, ddc_adam(), {.steps = 20}),
              equivariance_tolerance(at::kDouble))
        << to_string(coordinates);
  }
}

// Under the shifts of the residual stream's mean a zero becomes a constant, which is zero again
// only up to rounding when the mean is subtracted. It must not be taken for a side to balance
// against. (The gradients behind a zero are zero in the one copy and rounding in the other, and
// Adam divides what it gets by eps.)
TEST(DegenerateBlock, WithZeroOutputProjectionsIsEquivariantUnderShiftsOfTheMean) {
  const auto bed = block_with_zero_outputs();
  const auto params = bed.init(1, at::kDouble);
  const auto gauges = bed.gauges(params);
  EXPECT_LE(paired_error(bed, gauges, ddc_adam(usual_options().eps(1e-4))),
            equivariance_tolerance(at::kDouble));

  act_(gauges, random_element(gauges, params, 0.5, generator(1)), params);
  EXPECT_EQ(DDCAdam(params, gauges).report().degenerate_channels(), 4 + 24 + 24);
}

}  // namespace
}  // namespace ddc::tests
