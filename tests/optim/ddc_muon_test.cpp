// What DDCMuon promises beside its gauges (whole_model_test.cpp) and its reduction to Muon
// (reductions_test.cpp): options, and polar factors head by head.

#include "ddc/optim/ddc_muon.h"

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include "ddc/gauge/attention.h"
#include "ddc/linalg/polar_factor.h"
#include "ddc/optim/schedule.h"
#include "support/errors.h"
#include "support/matrices.h"
#include "support/small_networks.h"

namespace ddc::tests {
namespace {

const DDCMuonOptions& muon_options(const DDCMuon& optimizer, size_t group) {
  return dynamic_cast<const DDCMuonOptions&>(optimizer.param_groups().at(group).options());
}

TEST(DDCMuonOptions, NamesWhatItRefuses) {
  const auto params = small_table();
  const auto refused = [&](const DDCMuonOptions& options, const std::vector<std::string>& parts) {
    expect_error([&] { DDCMuon(params, {}, options); }, parts);
  };
  refused(DDCMuonOptions(-1), {"lr", ">= 0", "-1"});
  refused(DDCMuonOptions(kNaN), {"lr", "finite", "nan"});
  refused(DDCMuonOptions().momentum(1), {"momentum", "[0, 1)", "1"});
  refused(DDCMuonOptions().momentum(0), {"nesterov", "momentum > 0", "0"});
  refused(DDCMuonOptions().weight_decay(-2), {"weight_decay", ">= 0", "-2"});
  refused(DDCMuonOptions().adam_lr(kInf), {"adam_lr", "finite", "inf"});
  refused(DDCMuonOptions().adam_betas({1, 0.9}), {"adam_beta1", "[0, 1)", "1"});
  refused(DDCMuonOptions().adam_betas({0.9, -0.5}), {"adam_beta2", "[0, 1)", "-0.5"});
  refused(DDCMuonOptions().adam_eps(-1), {"adam_eps", ">= 0", "-1"});
  refused(DDCMuonOptions().adam_weight_decay(-3), {"adam_weight_decay", ">= 0", "-3"});
  expect_error([&] { DDCMuon(params, {}, {}, {"nothing"}); }, {"nothing", "no parameter"});
  expect_error(
      [&] {
        DDCMuon(
            {OptimizerParamGroup(params.tensors(), std::make_unique<torch::optim::AdamWOptions>())},
            params);
      },
      {"param group 0", "another optimizer's type"});

  auto values = DDCMuonOptions().values();
  const auto assigned = [&](const std::string& option, double value) {
    auto changed = values;
    changed[option] = value;
    DDCMuonOptions().assign(changed);
  };
  expect_error([&] { assigned("method", 4); }, {"method", "0 to 3", "4"});
  expect_error([&] { assigned("scale", 0.5); }, {"scale", "0 to 2", "0.5"});
  expect_error([&] { assigned("lr", -1); }, {"lr", ">= 0", "-1"});
  values.erase("adam_eps");
  expect_error([&] { assigned("lr", 1); }, {"adam_eps", "missing"});
}

TEST(DDCMuonOptions, GroupsInheritWhatTheyAreNotGiven) {
  const auto params = small_table();
  const auto defaults = DDCMuonOptions(0.5)
                            .momentum(0.5)
                            .nesterov(false)
                            .method(PolarMethod::fast)
                            .adam_lr(0.25)
                            .adam_eps(1e-3);
  // An option that is given its usual value is given.
  auto own = std::make_unique<DDCMuonOptions>();
  own->momentum(0.95).scale(UpdateScale::frobenius).adam_lr(0.125);
  DDCMuon optimizer({OptimizerParamGroup({params["in.weight"].tensor}, std::move(own)),
                     OptimizerParamGroup({params["out.weight"].tensor})},
                    params, {}, defaults);
  EXPECT_EQ(muon_options(optimizer, 0).momentum(), 0.95);
  EXPECT_EQ(muon_options(optimizer, 0).scale(), UpdateScale::frobenius);
  EXPECT_EQ(muon_options(optimizer, 0).adam_lr(), 0.125);
  EXPECT_EQ(muon_options(optimizer, 1).momentum(), 0.5);
  EXPECT_EQ(muon_options(optimizer, 1).scale(), UpdateScale::original);
  EXPECT_EQ(muon_options(optimizer, 1).adam_lr(), 0.25);
  for (const size_t group : {0, 1}) {
    EXPECT_EQ(muon_options(optimizer, group).lr(), 0.5);
    EXPECT_FALSE(muon_options(optimizer, group).nesterov());
    EXPECT_EQ(muon_options(optimizer, group).method(), PolarMethod::fast);
    EXPECT_EQ(muon_options(optimizer, group).adam_eps(), 1e-3);
  }
}

TEST(DDCMuonOptions, OneScheduleDrivesBothLearningRates) {
  DDCMuonOptions options(0.5);
  options.adam_lr(0.125);
  options.set_lr(0.25);
  EXPECT_EQ(options.lr(), 0.25);
  EXPECT_EQ(options.adam_lr(), 0.0625);
  options.adam_lr(0.25);  // a ratio of its own from now on
  options.set_lr(1);
  EXPECT_EQ(options.adam_lr(), 1);
}

TEST(DDCMuonOptions, RememberTheirRatioWhileASchedulePassesZero) {
  const auto params = small_table();
  DDCMuon optimizer(params, {}, DDCMuonOptions(0.5).adam_lr(0.125), {"out.weight"});
  WarmupScheduler scheduler(optimizer, {.total = 10});
  const auto expect_rates = [&](double fraction) {
    for (const size_t group : {0, 1}) {
      EXPECT_NEAR(muon_options(optimizer, group).lr(), 0.5 * fraction, 1e-15);
      EXPECT_NEAR(muon_options(optimizer, group).adam_lr(), 0.125 * fraction, 1e-15);
    }
  };
  scheduler.resume(10);
  expect_rates(0);
  scheduler.resume(5);
  expect_rates(0.5);
  // A checkpoint of a run that has ended.
  DDCMuonOptions ended(0.5);
  ended.adam_lr(0.125);
  auto values = ended.values();
  values["lr"] = values["adam_lr"] = 0;
  ended.assign(values);
  ended.set_lr(0.25);
  EXPECT_EQ(ended.adam_lr(), 0.0625);
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
      DDCMuonOptions(0.1).weight_decay(0));
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
