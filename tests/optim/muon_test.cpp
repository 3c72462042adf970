// Muon against a reference that is written out here, and what it promises as a LibTorch optimizer.

#include "ddc/optim/muon.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <sstream>

#include "support/errors.h"
#include "support/matrices.h"
#include "support/snapshot.h"

namespace ddc::tests {
namespace {

using torch::optim::OptimizerParamGroup;

constexpr std::array kScales{UpdateScale::original, UpdateScale::match_rms_adamw,
                             UpdateScale::frobenius};

/// The polar factor by the SVD, and Muon's five steps entry by entry.
at::Tensor reference_polar(const at::Tensor& m, PolarMethod method) {
  if (method == PolarMethod::exact) {
    const auto [u, s, vh] = at::linalg_svd(m, /*full_matrices=*/false);
    return at::matmul(u, vh);
  }
  auto x = m / at::linalg_vector_norm(m);
  for (int i = 0; i < 5; ++i) {
    // On the right side always: it makes no difference but for rounding.
    const auto a = at::matmul(x.t(), x);
    x = 3.4445 * x - 4.7750 * at::matmul(x, a) + 2.0315 * at::matmul(at::matmul(x, a), a);
  }
  return x;
}

double reference_scale(const at::Tensor& m, UpdateScale scale) {
  const auto rows = static_cast<double>(m.size(0));
  const auto cols = static_cast<double>(m.size(1));
  switch (scale) {
    case UpdateScale::original:
      return rows > cols ? std::sqrt(rows / cols) : 1;
    case UpdateScale::match_rms_adamw:
      return 0.2 * std::sqrt(rows > cols ? rows : cols);
    case UpdateScale::frobenius:
      return std::sqrt(m.square().sum().item<double>() / std::min(rows, cols));
  }
  return 0;
}

/// Muon on one matrix, with plain sums for the momentum.
struct ReferenceMuon {
  MuonOptions options;
  at::Tensor average = {};

  void step(at::Tensor& weight, const at::Tensor& gradient) {
    const double mu = options.momentum;
    const auto old = average.defined() ? average : at::zeros_like(gradient);
    average = mu * old + (1 - mu) * gradient;
    const auto direction = options.nesterov ? mu * average + (1 - mu) * gradient : average;
    weight = weight * (1 - options.lr * options.weight_decay) -
             options.lr * reference_scale(direction, options.scale) *
                 reference_polar(direction, options.method);
  }
};

at::Tensor parameter(at::IntArrayRef shape, uint64_t seed) {
  return normal(shape, seed).requires_grad_();
}

void set_gradient(const at::Tensor& param, uint64_t seed) {
  param.mutable_grad() = normal(param.sizes(), seed).to(param.scalar_type());
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.detach() - b.detach()).abs().max().item<double>();
}

/// torch.optim.Muon: what its defaults are here.
MuonOptions torchs() { return {.lr = 1e-3, .method = PolarMethod::newton_schulz}; }

Muon plain_muon(const std::vector<at::Tensor>& params, const MuonOptions& options = torchs()) {
  return Muon({OptimizerParamGroup(params)}, {}, {}, options);
}

OptimizerParamGroup group_of(const std::vector<at::Tensor>& params, const MuonOptions& options) {
  return {params, std::make_unique<LiftedRuleOptions<MuonRule>>(options)};
}

const MuonOptions& options_of(const Muon& optimizer, size_t group) {
  return dynamic_cast<const LiftedRuleOptions<MuonRule>&>(
             optimizer.param_groups().at(group).options())
      .get();
}

TEST(MuonRule, MomentumIsAMovingAverage) {
  const auto g1 = normal({3, 4}, 1);
  const auto g2 = normal({3, 4}, 2);
  for (const bool nesterov : {false, true}) {
    const MuonOptions settings{.momentum = 0.75, .nesterov = nesterov};
    auto state = MuonRule::init({"", at::zeros({3, 4}, at::kDouble), {}, {}}, settings);
    const auto& buffer = state.momentum_buffer;
    const auto first = MuonRule::momentum(g1, state, settings).clone();
    const auto b1 = 0.25 * g1;
    EXPECT_LT(difference(buffer, b1), 1e-15);
    EXPECT_LT(difference(first, nesterov ? 0.75 * b1 + 0.25 * g1 : b1), 1e-15);
    const auto second = MuonRule::momentum(g2, state, settings);
    const auto b2 = 0.75 * b1 + 0.25 * g2;
    EXPECT_LT(difference(buffer, b2), 1e-15);
    EXPECT_LT(difference(second, nesterov ? 0.75 * b2 + 0.25 * g2 : b2), 1e-15);
  }
}

// As in torch, with or without nesterov.
TEST(MuonRule, MomentumOfZeroIsTheGradient) {
  for (const bool nesterov : {false, true}) {
    const MuonOptions settings{.momentum = 0, .nesterov = nesterov};
    check_options(settings);
    auto state = MuonRule::init({"", at::zeros({3, 4}, at::kDouble), {}, {}}, settings);
    for (const uint64_t seed : {1, 2}) {
      const auto gradient = normal({3, 4}, seed);
      EXPECT_TRUE(MuonRule::momentum(gradient, state, settings).equal(gradient));
    }
  }
}

TEST(MuonRule, DisplacementIsTheScaledPolarFactor) {
  for (const auto scale : kScales) {
    for (const auto method : {PolarMethod::exact, PolarMethod::newton_schulz}) {
      for (const auto& shape : {std::vector<int64_t>{12, 5}, {5, 12}, {6, 6}, {1, 4}, {4, 1}}) {
        SCOPED_TRACE(testing::Message() << to_string(scale) << ", " << to_string(method) << ", "
                                        << at::IntArrayRef(shape));
        const auto m = normal(shape, 3);
        const auto step = muon_displacement(m, {.lr = 0.5, .method = method, .scale = scale});
        const auto expected = -0.5 * reference_scale(m, scale) * reference_polar(m, method);
        EXPECT_LT(difference(step, expected), 1e-12);
      }
    }
  }
}

TEST(MuonRule, FrobeniusScaleKeepsTheNormOfEachMatrix) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    const auto size = at::tensor({1.0, 1e-20, 1e25}, at::kDouble).view({3, 1, 1});
    const auto stack = (normal({3, 8, 5}, 4) * size).to(type);
    const auto step = muon_displacement(stack, {.lr = 1, .scale = UpdateScale::frobenius});
    const auto norm = [](const at::Tensor& m) {
      return at::linalg_vector_norm(m, 2, {-2, -1}, /*keepdim=*/false, at::kDouble);
    };
    EXPECT_TRUE(at::allclose(norm(step), norm(stack), 1e-5, 0));
    EXPECT_EQ(step.scalar_type(), type);
  }
}

TEST(MuonRule, FrobeniusScaleKeepsTheNormWhateverTheRank) {
  const auto full = normal({8, 5}, 5);
  for (const auto type : {at::kDouble, at::kFloat}) {
    for (int64_t rank = 1; rank <= 5; ++rank) {
      const auto [u, s, vh] = at::linalg_svd(full, /*full_matrices=*/false);
      const auto kept = s * (at::arange(5, at::kDouble) < rank);
      const auto m = (u * kept).matmul(vh).to(type);
      const auto step = muon_displacement(m, {.lr = 1, .scale = UpdateScale::frobenius});
      EXPECT_NEAR(step.norm().item<double>(), m.norm().item<double>(), 1e-5) << rank;
    }
  }
}

TEST(MuonRule, GradientsOfZeroDoNotMove) {
  for (const auto scale : kScales) {
    const auto step = muon_displacement(at::zeros({3, 4}), {.scale = scale});
    EXPECT_EQ(step.abs().max().item<float>(), 0) << to_string(scale);
  }
}

TEST(Muon, FollowsTheReference) {
  for (const auto method : {PolarMethod::exact, PolarMethod::newton_schulz}) {
    for (const auto scale : kScales) {
      for (const bool nesterov : {true, false}) {
        SCOPED_TRACE(testing::Message() << to_string(method) << ", " << to_string(scale)
                                        << (nesterov ? ", nesterov" : ""));
        const MuonOptions options{.lr = 0.03,
                                  .weight_decay = 0.2,
                                  .momentum = 0.9,
                                  .nesterov = nesterov,
                                  .method = method,
                                  .scale = scale};
        const auto param = parameter({9, 6}, 1);
        auto expected = param.detach().clone();
        auto optimizer = plain_muon({param}, options);
        ReferenceMuon reference{options};
        for (uint64_t step = 0; step < 10; ++step) {
          set_gradient(param, 10 + step);
          optimizer.step();
          reference.step(expected, param.grad());
        }
        EXPECT_LT(difference(param, expected), 1e-11);
      }
    }
  }
}

TEST(Muon, HasTheDefaultsOfTorchButForRateAndMethod) {
  const auto options = torchs();
  EXPECT_EQ(options.lr, 1e-3);
  EXPECT_EQ(options.weight_decay, 0.1);
  EXPECT_EQ(options.momentum, 0.95);
  EXPECT_TRUE(options.nesterov);
  EXPECT_EQ(options.method, PolarMethod::newton_schulz);
  EXPECT_EQ(options.scale, UpdateScale::original);
}

TEST(Muon, StepsEachMatrixOfAStackAndFlattensConvolutions) {
  for (const auto scale : kScales) {
    SCOPED_TRACE(to_string(scale));
    auto options = torchs();
    options.lr = 0.1;
    options.scale = scale;
    const auto stack = parameter({3, 6, 4}, 1);
    const auto kernel = parameter({5, 2, 3, 3}, 2);
    std::vector<at::Tensor> alone;
    for (int64_t i = 0; i < 3; ++i) alone.push_back(stack.detach()[i].clone().requires_grad_());
    alone.push_back(kernel.detach().flatten(1).clone().requires_grad_());
    auto optimizer = plain_muon({stack, kernel}, options);
    auto matrices = plain_muon(alone, options);
    for (uint64_t step = 0; step < 3; ++step) {
      set_gradient(stack, 20 + step);
      set_gradient(kernel, 30 + step);
      for (int64_t i = 0; i < 3; ++i) alone[i].mutable_grad() = stack.grad()[i].clone();
      alone[3].mutable_grad() = kernel.grad().flatten(1).clone();
      optimizer.step();
      matrices.step();
    }
    for (int64_t i = 0; i < 3; ++i) EXPECT_LT(difference(stack[i], alone[i]), 1e-14);
    EXPECT_LT(difference(kernel.flatten(1), alone[3]), 1e-14);
  }
}

TEST(Muon, LeavesGradientsAndParametersWithoutThemAlone) {
  const auto a = parameter({3, 2}, 1);
  const auto b = parameter({3, 2}, 2);
  const auto b_before = b.detach().clone();
  auto optimizer = plain_muon({a, b});
  set_gradient(a, 3);
  const auto gradient = a.grad().clone();
  const auto loss = optimizer.step([&] { return at::scalar_tensor(2.5); });
  EXPECT_EQ(loss.item<double>(), 2.5);
  EXPECT_TRUE(at::equal(a.grad(), gradient));
  EXPECT_TRUE(at::equal(b, b_before));
}

TEST(Muon, GroupsKeepTheirOptions) {
  const auto a = parameter({3, 2}, 1);
  const auto b = parameter({3, 2}, 2);
  const auto c = parameter({3, 2}, 3);
  const MuonOptions own{.lr = 0.5, .method = PolarMethod::exact, .scale = UpdateScale::frobenius};
  const MuonOptions others{.lr = 0.25, .nesterov = false, .method = PolarMethod::newton_schulz};
  Muon optimizer({group_of({a}, own), OptimizerParamGroup({b})}, {}, {}, others);
  optimizer.add_param_group(group_of({c}, own));
  for (const size_t g : {0, 2}) EXPECT_EQ(values_of(options_of(optimizer, g)), values_of(own));
  EXPECT_EQ(values_of(options_of(optimizer, 1)), values_of(others));
}

TEST(Muon, NamesWhatItRefuses) {
  const auto matrix = parameter({3, 2}, 1);
  expect_error([] { plain_muon({parameter({3}, 1)}); }, {"Muon", "[3]", "no matrix", "use_adam"});
  expect_error([] { plain_muon({at::ones({3, 2}, at::kLong)}); }, {"floating-point", "Long"});
  expect_error([&] { plain_muon({matrix}, {.lr = -1}); }, {"lr", "-1"});
  expect_error([&] { plain_muon({matrix}, {.momentum = 1}); }, {"momentum", "[0, 1)", "1"});
  expect_error([&] { plain_muon({matrix}, {.weight_decay = -2}); }, {"weight_decay", "-2"});
  expect_error(
      [&] {
        Muon({OptimizerParamGroup({matrix}, std::make_unique<torch::optim::AdamWOptions>())});
      },
      {"param group 0", "another optimizer's type"});

  // Nothing moves if one of the gradients is bad.
  const auto other = parameter({3, 2}, 2);
  auto optimizer = plain_muon({matrix, other});
  const auto before = snapshot(optimizer);
  set_gradient(matrix, 3);
  set_gradient(other, 4);
  other.mutable_grad()[1][1] = std::numeric_limits<double>::quiet_NaN();
  expect_error([&] { optimizer.step(); }, {"gradient of 'group0.param1'", "NaN"});
  other.mutable_grad() = at::ones({3, 2}, at::kDouble).to_sparse();
  expect_error([&] { optimizer.step(); }, {"'group0.param1'", "sparse"});
  EXPECT_THAT(differences(before, snapshot(optimizer)), ::testing::IsEmpty());
}

TEST(Muon, GoesOnFromAnArchiveToTheLastBit) {
  const auto make = [](const std::vector<at::Tensor>& params, const MuonOptions& options) {
    return Muon({group_of({params[0]}, options), OptimizerParamGroup({params[1], params[2]})}, {},
                {}, torchs());
  };
  // The third never gets a gradient.
  const std::vector<at::Tensor> params{parameter({4, 3}, 1), parameter({2, 3, 3}, 2),
                                       parameter({2, 2}, 3)};
  const MuonOptions unusual{.lr = 0.5,
                            .weight_decay = 0.3,
                            .momentum = 0.7,
                            .nesterov = false,
                            .method = PolarMethod::sharpen,
                            .scale = UpdateScale::match_rms_adamw};
  auto optimizer = make(params, unusual);
  const auto run = [](Muon& muon, const std::vector<at::Tensor>& tensors, uint64_t seed) {
    for (uint64_t step = 0; step < 3; ++step) {
      set_gradient(tensors[0], seed + 2 * step);
      set_gradient(tensors[1], seed + 2 * step + 1);
      muon.step();
    }
  };
  run(optimizer, params, 10);

  std::stringstream stream;
  torch::serialize::OutputArchive out;
  optimizer.save(out);
  out.save_to(stream);
  std::vector<at::Tensor> copies;
  copies.reserve(params.size());
  for (const auto& param : params) copies.push_back(param.detach().clone().requires_grad_());
  auto resumed = make(copies, {});
  torch::serialize::InputArchive in;
  in.load_from(stream);
  resumed.load(in);

  run(optimizer, params, 20);
  run(resumed, copies, 20);
  for (size_t i = 0; i < params.size(); ++i) EXPECT_TRUE(at::equal(params[i], copies[i])) << i;
  EXPECT_EQ(values_of(options_of(resumed, 0)), values_of(unusual));
  EXPECT_EQ(values_of(options_of(resumed, 1)), values_of(torchs()));
}

// Matrices are stepped at once, each by one thread.
TEST(Muon, StepsTheSameOnAnyNumberOfThreads) {
  const int threads = at::get_num_threads();
  const auto trained = [](int count) {
    at::set_num_threads(count);
    std::vector<at::Tensor> params;
    for (int i = 0; i < 5; ++i) {
      params.push_back(normal({40 + 30 * i, 90}, 50 + i).to(at::kFloat).requires_grad_());
    }
    Muon optimizer(std::vector<OptimizerParamGroup>{params}, {}, {}, {.lr = 0.1});
    for (int step = 0; step < 3; ++step) {
      for (size_t i = 0; i < params.size(); ++i) {
        params[i].mutable_grad() = normal(params[i].sizes(), 60 + step * 10 + i).to(at::kFloat);
      }
      optimizer.step();
    }
    return params;
  };
  const auto one = trained(1);
  for (const int count : {2, 3}) {
    const auto several = trained(count);
    for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], several[i])) << count;
  }
  at::set_num_threads(threads);
}

TEST(MuonReport, SaysWhatAStepCosts) {
  const std::vector<at::Tensor> params{normal({6, 4}, 1).to(at::kFloat).requires_grad_(),
                                       normal({2, 5, 3}, 2).to(at::kFloat).requires_grad_()};
  Muon optimizer(std::vector<OptimizerParamGroup>{params}, {}, {},
                 {.method = PolarMethod::newton_schulz});
  const auto planned = optimizer.report().cost;
  // Weights and gradients are read, gradients once more to be checked, weights written, momentum read and
  // written; four bytes each.
  EXPECT_EQ(planned.bytes, (24 + 30) * 4 * 6);
  EXPECT_EQ(planned.flops, 5 * (4 * 4 * 4 * 6 + 2 * 64) + 2 * 5 * (4 * 3 * 3 * 5 + 2 * 27));
  EXPECT_EQ(planned.steps, 0);
  EXPECT_EQ(planned.share, 0);
  for (int step = 0; step < 60; ++step) {
    for (const auto& param : params) param.mutable_grad() = at::ones_like(param);
    optimizer.step();
  }
  const auto cost = optimizer.report().cost;
  EXPECT_EQ(cost.steps, 50);
  EXPECT_GT(cost.seconds, 0);
  EXPECT_GT(cost.share, 0);
  EXPECT_LE(cost.share, 1);
  std::ostringstream text;
  text << optimizer.report();
  EXPECT_THAT(text.str(), testing::HasSubstr("the last 50 took"));
}

}  // namespace
}  // namespace ddc::tests
