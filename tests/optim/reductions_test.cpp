// Without gauges a lifted optimizer is the plain one; and what a rule of one's own inherits.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "ddc/optim/lion.h"
#include "ddc/optim/muon.h"
#include "ddc/optim/sgd.h"
#include "ddc/optim/shampoo.h"
#include "ddc/optim/soap.h"
#include "ddc/testbeds/blocks.h"
#include "support/errors.h"
#include "support/matrices.h"
#include "support/reference_shampoo.h"
#include "support/reference_soap.h"
#include "support/small_networks.h"
#include "support/snapshot.h"
#include "support/tolerances.h"

namespace ddc::tests {
namespace {

using ::testing::IsEmpty;

constexpr int64_t kSteps = 20;

/// One parameter of every shape that bases tell apart.
Parameters shapes(at::ScalarType type) {
  const auto leaf = [&](at::IntArrayRef shape, uint64_t seed) {
    return normal(shape, seed).to(type).requires_grad_();
  };
  return table({{"wide", leaf({4, 7}, 1)},
                {"tall", leaf({7, 4}, 2)},
                {"stack", leaf({3, 5, 4}, 3)},
                {"kernel", leaf({4, 2, 3, 3}, 4)},
                {"vector", leaf({6}, 5)},
                {"embedding", leaf({5, 3}, 6)}});
}

/// Feeds both the same gradients and expects the same weights, exactly or up to `tolerance`.
void expect_equal(const Parameters& ours, torch::optim::Optimizer& optimizer,
                  const Parameters& theirs, const std::function<void(int64_t)>& reference,
                  double tolerance = 0) {
  for (int64_t step = 0; step < kSteps; ++step) {
    set_gradients(ours, static_cast<uint64_t>(100 * step));
    for (const auto& [name, tensor] : theirs) {
      tensor.mutable_grad() = ours[name].tensor.grad().clone();
    }
    optimizer.step();
    reference(step);
  }
  for (const auto& [name, tensor] : theirs) {
    const auto& own = ours[name].tensor;
    if (tolerance == 0) {
      EXPECT_TRUE(at::equal(own, tensor)) << name;
    } else {
      EXPECT_LE(((own - tensor).norm() / tensor.norm()).item<double>(), tolerance) << name;
    }
  }
}

TEST(Reductions, MuonWithoutGaugesIsMuonAndAdamW) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    for (const auto method : {PolarMethod::exact, PolarMethod::fast, PolarMethod::sharpen,
                              PolarMethod::newton_schulz}) {
      for (const auto scale :
           {UpdateScale::original, UpdateScale::match_rms_adamw, UpdateScale::frobenius}) {
        SCOPED_TRACE(testing::Message()
                     << type << " " << to_string(method) << " " << to_string(scale));
        const auto ours = shapes(type);
        const auto theirs = ours.clone();
        const MuonOptions options{
            .lr = 0.03, .weight_decay = 0.2, .momentum = 0.9, .method = method, .scale = scale};
        DDCMuon optimizer(ours, {}, options, {},
                          {.names = {"embedding"}, .options = {.lr = 2e-3, .weight_decay = 0.05}});
        Muon muon({OptimizerParamGroup({theirs["wide"].tensor, theirs["tall"].tensor,
                                        theirs["stack"].tensor, theirs["kernel"].tensor})},
                  {}, {}, options);
        torch::optim::AdamW adamw({theirs["vector"].tensor, theirs["embedding"].tensor},
                                  torch::optim::AdamWOptions(2e-3).weight_decay(0.05));
        expect_equal(ours, optimizer, theirs, [&](int64_t) {
          muon.step();
          adamw.step();
        });
      }
    }
  }
}

TEST(Reductions, SgdWithoutGaugesIsTorchsSgd) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    for (const auto& settings :
         std::vector<SgdOptions>{{.lr = 0.125},
                                 {.lr = 0.125, .momentum = 0.9},
                                 {.lr = 0.125, .momentum = 0.9, .dampening = 0.3},
                                 {.lr = 0.125, .momentum = 0.9, .nesterov = true}}) {
      const auto ours = shapes(type);
      const auto theirs = ours.clone();
      DDCSgd optimizer(ours, {}, settings);
      torch::optim::SGD sgd(theirs.tensors(), torch::optim::SGDOptions(settings.lr)
                                                  .momentum(settings.momentum)
                                                  .dampening(settings.dampening)
                                                  .nesterov(settings.nesterov));
      expect_equal(ours, optimizer, theirs, [&](int64_t) { sgd.step(); });
    }
  }
}

/// Lion as published (Algorithm 2), in operations of ATen on float64.
TEST(Reductions, LionWithoutGaugesIsLion) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    for (const bool maximize : {false, true}) {
      const LionOptions settings{.lr = 1.0 / 128, .weight_decay = 0.25, .maximize = maximize};
      const auto ours = shapes(type);
      DDCLion optimizer(ours, {}, settings);
      std::vector<at::Tensor> expected;
      std::vector<at::Tensor> momenta;
      for (const auto& tensor : ours.tensors()) {
        expected.push_back(tensor.detach().to(at::kDouble, false, /*copy=*/true));
        momenta.push_back(at::zeros_like(expected.back()));
      }
      for (uint64_t step = 0; step < 6; ++step) {
        set_gradients(ours, 10 * step);
        optimizer.step();
        for (size_t i = 0; i < expected.size(); ++i) {
          const auto g = ours.tensors()[i].grad().to(at::kDouble) * (maximize ? -1 : 1);
          const auto mean = momenta[i] * settings.beta1 + g * (1 - settings.beta1);
          // (A sign that rounding decides would be no comparison.)
          ASSERT_GT(mean.abs().min().item<double>(), 1e-6);
          expected[i].mul_(1 - settings.lr * settings.weight_decay);
          expected[i].sub_(mean.sign(), settings.lr);
          momenta[i].mul_(settings.beta2).add_(g, 1 - settings.beta2);
          EXPECT_TRUE(at::allclose(ours.tensors()[i].to(at::kDouble), expected[i], 0,
                                   type == at::kDouble ? 1e-15 : 1e-6))
              << i;
        }
      }
    }
  }
}

TEST(Reductions, LionDoesNotStepAlongRoundingErrors) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    Parameters params;
    params.add("w", at::zeros({4}, type).requires_grad_());
    DDCLion optimizer(params, {}, {.lr = 0.5, .beta1 = 0.5, .weight_decay = 0});
    params["w"].tensor.mutable_grad() = at::tensor({0.0, 4e-9, -1e-20, 2.0}, type);
    optimizer.step();
    EXPECT_TRUE(
        at::allclose(params["w"].tensor, at::tensor({0.0, -0.1, 2.5e-13, -0.5}, type), 1e-6, 0));
  }
}

/// A reference per matrix of every tensor, with decoupled decay.
template <class Make>
auto by_matrices(const Parameters& params, double lr, double weight_decay, const Make& make) {
  using Reference = decltype(make(int64_t{1}, int64_t{1}, false));
  std::map<std::string, std::vector<Reference>> references;
  return [=](int64_t) mutable {
    const at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : params) {
      const int64_t count = tensor.dim() == 3 ? tensor.size(0) : 1;
      const int64_t rows = tensor.dim() == 3 ? tensor.size(1) : tensor.size(0);
      const auto matrices = tensor.grad().reshape({count, rows, -1});
      auto& own = references[name];
      for (auto i = static_cast<int64_t>(own.size()); i < count; ++i) {
        own.push_back(make(rows, matrices.size(2), tensor.dim() == 1));
      }
      std::vector<at::Tensor> moves;
      for (int64_t i = 0; i < count; ++i) {
        moves.push_back(own[static_cast<size_t>(i)](matrices[i]));
      }
      at::Tensor weights = tensor;
      weights.mul_(1 - lr * weight_decay).add_(at::stack(moves).reshape(tensor.sizes()));
    }
  };
}

TEST(Reductions, ShampooWithoutGaugesIsShampooWithDecoupledDecay) {
  const ShampooOptions settings{.lr = 0.02,
                                .beta1 = 0.8,
                                .beta2 = 0.9,
                                .eps = 1e-4,
                                .precondition_every = 3,
                                .weight_decay = 0.3};
  const auto ours = shapes(at::kDouble);
  const auto theirs = ours.clone();
  DDCShampoo optimizer(ours, {}, settings);
  const auto make = [=](int64_t, int64_t, bool vector) {
    return ReferenceShampoo(true, !vector, settings);
  };
  expect_equal(ours, optimizer, theirs, by_matrices(theirs, 0.02, 0.3, make), 1e-9);
}

TEST(Reductions, SoapWithoutGaugesIsSoapWithDecoupledDecay) {
  const SoapOptions settings{
      .lr = 0.02, .beta1 = 0.9, .beta2 = 0.95, .precondition_every = 3, .weight_decay = 0.3};
  const auto ours = shapes(at::kDouble);
  const auto theirs = ours.clone();
  DDCSoap optimizer(ours, {}, settings);
  const auto make = [=](int64_t rows, int64_t columns, bool vector) {
    return ReferenceSoap(rows, columns, !vector, !vector, settings);
  };
  expect_equal(ours, optimizer, theirs, by_matrices(theirs, 0.02, 0.3, make), 1e-11);
}

/// A rule of the test's own: the sign of a moving average.
struct SignRule {
  static constexpr const char* name = "Sign";
  struct Options {
    double lr = 1e-3;
    double momentum = 0.9;
    double weight_decay = 0;
    bool maximize = false;

    OptionList options() {
      return {{"lr", lr, "learning rate", at_least(0)},
              {"momentum", momentum, "decay of the average", fraction()},
              {"weight_decay", weight_decay, "decoupled weight decay", at_least(0)},
              {"maximize", maximize, "ascend"}};
    }
    void check() const {
      TORCH_CHECK_VALUE(momentum < 0.99 || lr < 1, "option momentum needs lr < 1, got ", lr);
    }
  };
  struct State {
    at::Tensor average;

    StateTensors tensors() { return {{"average", &average}}; }
  };
  static State init(const TensorView& view, const Options& /*options*/) { return {view.zeros()}; }
  static at::Tensor step(const at::Tensor& gradient, int64_t /*step*/, const TensorView& /*view*/,
                         State& state, const Options& options) {
    state.average.copy_(state.average * options.momentum + gradient * (1 - options.momentum));
    return state.average.sign() * -options.lr;
  }
};
using Sign = Lifted<SignRule>;

TEST(OwnRule, EqualsALoopByHand) {
  const auto ours = shapes(at::kDouble);
  const auto theirs = ours.clone();
  Sign optimizer(ours, {}, {.lr = 0.03, .weight_decay = 0.2});
  std::map<std::string, at::Tensor> averages;
  expect_equal(
      ours, optimizer, theirs,
      [&](int64_t) {
        const at::NoGradGuard no_grad;
        for (const auto& [name, tensor] : theirs) {
          auto& average = averages[name];
          average = average.defined() ? average * 0.9 + tensor.grad() * (1 - 0.9)
                                      : tensor.grad() * (1 - 0.9);
          tensor.copy_(tensor * (1 - 0.03 * 0.2) - average.sign() * 0.03);
        }
      },
      1e-15);
}

TEST(OwnRule, InheritsEveryGauge) {
  const auto bed = testbeds::rms_norm_block({.gauges = testbeds::GaugeSet::full});
  const auto gauges = bed.gauges(bed.init(1, at::kDouble));
  const double error = paired_error(
      bed, gauges, testbeds::lifted<SignRule>({.lr = 1e-2, .weight_decay = 0.1}), {.steps = 40});
  RecordProperty("float64", testing::PrintToString(error));
  EXPECT_LE(error, kWholeModelTolerance);
}

TEST(OwnRule, GoesOnFromItsStateToTheLastBit) {
  const auto bed = testbeds::rms_norm_block({.gauges = testbeds::GaugeSet::full});
  const auto params = bed.init(1, at::kDouble);
  Sign optimizer(params, bed.gauges(params), {.lr = 1e-2, .weight_decay = 0.1});
  const auto run = [&](const Parameters& table, Sign& sign, uint64_t from) {
    for (uint64_t step = from; step < from + 5; ++step) {
      backward(bed, table, bed.batch(step, at::kDouble));
      sign.step();
    }
  };
  run(params, optimizer, 0);
  const auto copy = params.clone();
  Sign resumed(copy, bed.gauges(copy));
  const auto state = optimizer.state_dict();
  EXPECT_GT(state.tensors.size(), params.size());
  resumed.load_state_dict(state);
  run(params, optimizer, 5);
  run(copy, resumed, 5);
  EXPECT_THAT(differences(snapshot(optimizer), snapshot(resumed)), IsEmpty());
}

TEST(OwnRule, NamesOptionsItRefuses) {
  const auto params = shapes(at::kDouble);
  const auto make = [&](const SignRule::Options& options) { Sign(params, {}, options); };
  expect_error([&] { make({.lr = -1}); }, {"lr", ">= 0", "-1"});
  expect_error([&] { make({.lr = kNaN}); }, {"lr", "finite", "nan"});
  expect_error([&] { make({.momentum = 2}); }, {"momentum", "[0, 1)", "2"});
  expect_error([&] { make({.lr = 3, .momentum = 0.995}); }, {"momentum", "lr < 1", "3"});
  expect_error([&] { make({.weight_decay = -0.5}); }, {"weight_decay", ">= 0", "-0.5"});
  expect_error([&] { make({.weight_decay = kInf}); }, {"weight_decay", "finite", "inf"});
  expect_error([&] { DDCSgd(params, {}, {.nesterov = true}); }, {"nesterov", "momentum > 0", "0"});
  expect_error([&] { DDCSoap(params, {}, {.beta2 = 1}); }, {"beta2", "[0, 1)", "1"});
  expect_error([&] { DDCShampoo(params, {}, {.precondition_every = 0}); },
               {"precondition_every", ">= 1", "0"});
  Sign optimizer(params);
  auto state = optimizer.state_dict();
  const auto place = state.description.find("\"momentum\":0.9,");
  ASSERT_NE(place, std::string::npos);
  state.description.erase(place, 15);
  expect_error([&] { optimizer.load_state_dict(state); }, {"param group 0", "momentum", "missing"});
  expect_error(
      [&] {
        Sign({OptimizerParamGroup(params.tensors(),
                                  std::make_unique<LiftedRuleOptions<AdamRule>>())},
             params);
      },
      {"param group 0", "another optimizer's type"});
}

TEST(OwnRule, GroupsKeepTheirOptionsOrGetTheDefaults) {
  const auto params = shapes(at::kDouble);
  auto own = std::make_unique<LiftedRuleOptions<SignRule>>(SignRule::Options{.momentum = 0.5});
  Sign optimizer({OptimizerParamGroup({params["wide"].tensor}, std::move(own)),
                  OptimizerParamGroup({params["tall"].tensor})},
                 params, {}, {.lr = 0.25, .momentum = 0.75, .weight_decay = 0.125});
  const auto options = [&](size_t group) {
    return dynamic_cast<const LiftedRuleOptions<SignRule>&>(
               optimizer.param_groups().at(group).options())
        .get();
  };
  EXPECT_EQ(options(0).momentum, 0.5);
  EXPECT_EQ(options(1).momentum, 0.75);
  EXPECT_EQ(options(0).lr, SignRule::Options().lr);
  EXPECT_EQ(options(0).weight_decay, 0);
  EXPECT_EQ(options(1).lr, 0.25);
  EXPECT_EQ(options(1).weight_decay, 0.125);
  optimizer.param_groups()[0].options().set_lr(0.5);
  EXPECT_EQ(options(0).lr, 0.5);
  EXPECT_EQ(options(1).lr, 0.25);
}

}  // namespace
}  // namespace ddc::tests
