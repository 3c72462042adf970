// What DDCMuon promises beside its gauges (whole_model_test.cpp) and its reduction to Muon
// (reductions_test.cpp): options, and polar factors head by head.

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include "ddc/gauge/attention.h"
#include "ddc/linalg/polar_factor.h"
#include "ddc/optim/muon.h"
#include "ddc/optim/schedule.h"
#include "support/errors.h"
#include "support/matrices.h"
#include "support/small_networks.h"

namespace ddc::tests {
namespace {

const MuonOptions& muon_options(const DDCMuon& optimizer, size_t group) {
  return dynamic_cast<const LiftedRuleOptions<MuonRule>&>(
             optimizer.param_groups().at(group).options())
      .get();
}

TEST(MuonOptions, NamesWhatItRefuses) {
  const auto params = small_table();
  const auto refused = [&](const MuonOptions& options, const std::vector<std::string>& parts) {
    expect_error([&] { DDCMuon(params, {}, options); }, parts);
  };
  refused({.lr = -1}, {"option lr", ">= 0", "-1"});
  refused({.lr = kNaN}, {"option lr", "finite", "nan"});
  refused({.momentum = 1}, {"momentum", "[0, 1)", "1"});
  refused({.weight_decay = -2}, {"weight_decay", ">= 0", "-2"});
  const auto adam_refused = [&](const AdamOptions& options, const std::vector<std::string>& parts) {
    expect_error([&] { DDCMuon(params, {}, {}, {}, {.options = options}); }, parts);
  };
  adam_refused({.lr = kInf}, {"option lr", "finite", "inf"});
  adam_refused({.beta1 = 1, .beta2 = 0.9}, {"beta1", "[0, 1)", "1"});
  adam_refused({.beta1 = 0.9, .beta2 = -0.5}, {"beta2", "[0, 1)", "-0.5"});
  adam_refused({.eps = -1}, {"eps", ">= 0", "-1"});
  adam_refused({.weight_decay = -3}, {"weight_decay", ">= 0", "-3"});
  expect_error([&] { DDCMuon(params, {}, {}, {}, {.names = {"nothing"}}); },
               {"nothing", "no parameter"});
  expect_error(
      [&] {
        DDCMuon(
            {OptimizerParamGroup(params.tensors(), std::make_unique<torch::optim::AdamWOptions>())},
            params);
      },
      {"param group 0", "another optimizer's type"});
  expect_error([&] { DDCMuon({OptimizerParamGroup(params.tensors())}, params); },
               {"'norm.weight'", "[3]", "no matrix", "use_adam"});

  DDCMuon optimizer(params);
  const auto assigned = [&](const std::string& option, const OptionValue& value) {
    optimizer.set_options(0, {{option, value}});
  };
  expect_error([&] { assigned("method", 4.0); },
               {"method", "one of exact, fast, sharpen, newton_schulz", "got 4"});
  expect_error([&] { assigned("method", std::string("exakt")); }, {"got 'exakt'", "mean 'exact'?"});
  expect_error([&] { assigned("scale", 0.5); },
               {"scale", "one of original, match_rms_adamw, frobenius", "0.5"});
  expect_error([&] { assigned("lr", -1.0); }, {"lr", ">= 0", "-1"});
  expect_error([&] { assigned("adam_eps", 1.0); }, {"unknown option of DDCMuon 'adam_eps'"});
  auto state = optimizer.state_dict();
  const std::string eps = "\"eps\":1e-08,";
  ASSERT_NE(state.description.find(eps), std::string::npos);
  state.description.erase(state.description.find(eps), eps.size());
  expect_error([&] { optimizer.load_state_dict(state); }, {"param group 0", "eps", "missing"});
}

// Those of a group are complete: nothing is taken from the optimizer's.
TEST(MuonOptions, GroupsKeepTheirOptionsEntirelyOrGetTheOptimizers) {
  const auto params = small_table();
  const MuonOptions defaults{
      .lr = 0.5, .momentum = 0.5, .nesterov = false, .method = PolarMethod::fast, .eps = 1e-3};
  const MuonOptions own{.scale = UpdateScale::frobenius};
  DDCMuon optimizer({OptimizerParamGroup({params["in.weight"].tensor},
                                         std::make_unique<LiftedRuleOptions<MuonRule>>(own)),
                     OptimizerParamGroup({params["out.weight"].tensor})},
                    params, {}, defaults);
  EXPECT_EQ(values_of(muon_options(optimizer, 0)), values_of(own));
  EXPECT_EQ(values_of(muon_options(optimizer, 1)), values_of(defaults));
}

TEST(MuonOptions, VectorsAndWhatIsNamedAreInAGroupOfTheirOwnThatAdamSteps) {
  const auto params = small_table();
  const AdamOptions adam{
      .lr = 0.125, .beta1 = 0.5, .beta2 = 0.25, .eps = 1e-3, .weight_decay = 0.75};
  DDCMuon optimizer(params, {}, {.lr = 0.5}, {}, {.names = {"out.weight"}, .options = adam});
  ASSERT_EQ(optimizer.param_groups().size(), 2);
  EXPECT_EQ(values_of(muon_options(optimizer, 0)), values_of(MuonOptions{.lr = 0.5}));
  EXPECT_EQ(values_of(muon_options(optimizer, 1)), values_of(MuonOptions::adam(adam)));
  const auto& by_muon = optimizer.param_groups()[0].params();
  ASSERT_EQ(by_muon.size(), 1);
  EXPECT_TRUE(by_muon[0].is_same(params["in.weight"].tensor));
  EXPECT_EQ(optimizer.param_groups()[1].params().size(), 4);
  // The group steps as AdamW does.
  const auto plain = params.clone();
  torch::optim::AdamW reference({plain["norm.weight"].tensor, plain["in.bias"].tensor,
                                 plain["out.weight"].tensor, plain["out.bias"].tensor},
                                torch::optim::AdamWOptions(adam.lr)
                                    .betas({adam.beta1, adam.beta2})
                                    .eps(adam.eps)
                                    .weight_decay(adam.weight_decay));
  for (uint64_t step = 0; step < 3; ++step) {
    set_gradients(params, 10 * step);
    set_gradients(plain, 10 * step);
    optimizer.step();
    reference.step();
  }
  for (const auto* name : {"norm.weight", "in.bias", "out.weight", "out.bias"}) {
    EXPECT_TRUE(at::equal(params[name].tensor, plain[name].tensor)) << name;
  }
}

TEST(MuonOptions, AScheduleActsOnTheRateOfEachGroup) {
  const auto params = small_table();
  DDCMuon optimizer(params, {}, {.lr = 0.5}, {},
                    {.names = {"out.weight"}, .options = {.lr = 0.125}});
  WarmupScheduler scheduler(optimizer, {.total = 10});
  const auto expect_rates = [&](double fraction) {
    EXPECT_NEAR(muon_options(optimizer, 0).lr, 0.5 * fraction, 1e-15);
    EXPECT_NEAR(muon_options(optimizer, 1).lr, 0.125 * fraction, 1e-15);
  };
  scheduler.resume(10);
  expect_rates(0);
  scheduler.resume(5);
  expect_rates(0.5);
}

constexpr int64_t kHeads = 2;
constexpr int64_t kSize = 4;

/// A projection as its heads see it: [heads, head size, rest].
at::Tensor by_heads(const at::Tensor& weight, int64_t axis) {
  const auto rows = axis == 0 ? weight : weight.t();
  return rows.detach().reshape({kHeads, kSize, -1});
}

/// Minus lr times the scaled polar factor of each head's gradient.
at::Tensor polar_of_heads(const at::Tensor& gradient, int64_t axis, double lr) {
  auto heads = by_heads(gradient, axis);
  const auto polar = [](const at::Tensor& m) {
    const auto [u, s, vh] = at::linalg_svd(m, /*full_matrices=*/false);
    return u.matmul(vh);
  };
  const auto rows = static_cast<double>(axis == 0 ? kSize : heads.size(2));
  const auto columns = static_cast<double>(axis == 0 ? heads.size(2) : kSize);
  return polar(heads) * (-lr * std::sqrt(std::max(1.0, rows / columns)));
}

/// Takes what points along the orbit of a rotation of heads out of two legs' displacements.
void project_(const at::Tensor& w1, const at::Tensor& w2, at::Tensor& d1, at::Tensor& d2) {
  const auto one = at::eye(kSize, at::kDouble);
  for (int64_t h = 0; h < kHeads; ++h) {
    const auto gram = w1[h].matmul(w1[h].t()) + w2[h].matmul(w2[h].t());
    const auto moment = d1[h].matmul(w1[h].t()) + d2[h].matmul(w2[h].t());
    const auto system = at::kron(gram, one) + at::kron(one, gram);
    const auto angle =
        at::linalg_solve(system, (moment - moment.t()).reshape({-1})).view({kSize, kSize});
    d1[h] -= angle.matmul(w1[h]);
    d2[h] -= angle.matmul(w2[h]);
  }
}

TEST(DDCMuon, TakesPolarFactorsPerHeadAndCutsTheOutputAlongItsInputs) {
  const auto params = table({{"query", weights({8, 6}, 1)},
                             {"key", weights({8, 6}, 2)},
                             {"value", weights({8, 6}, 3)},
                             {"output", weights({5, 8}, 4)}});
  const auto before = params.clone();
  DDCMuon optimizer(
      params,
      {qk_rotation({.query = params["query"], .key = params["key"], .heads = kHeads}),
       vo_rotation({.value = params["value"], .output = params["output"], .heads = kHeads})},
      MuonOptions{.lr = 0.1, .weight_decay = 0}, in_place({.heads = Heads::cut}));
  set_gradients(params, 10);
  optimizer.step();
  for (const auto& [first, second] : {std::pair{"query", "key"}, std::pair{"value", "output"}}) {
    const int64_t axis = std::string(second) == "output" ? 1 : 0;
    const auto w1 = by_heads(before[first].tensor, 0);
    const auto w2 = by_heads(before[second].tensor, axis);
    auto d1 = polar_of_heads(params[first].tensor.grad(), 0, 0.1);
    auto d2 = polar_of_heads(params[second].tensor.grad(), axis, 0.1);
    const auto whole = polar_factor(params[second].tensor.grad()) * -0.1;
    project_(w1, w2, d1, d2);
    const auto moved1 = by_heads(params[first].tensor, 0) - w1;
    const auto moved2 = by_heads(params[second].tensor, axis) - w2;
    EXPECT_LE((moved1 - d1).norm().item<double>(), 1e-13) << first;
    EXPECT_LE((moved2 - d2).norm().item<double>(), 1e-13) << second;
    // A step of the whole matrix is another one.
    EXPECT_GE((moved2 - by_heads(whole, axis)).norm().item<double>(), 1e-2) << second;
  }
}

}  // namespace
}  // namespace ddc::tests
