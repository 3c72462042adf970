// Loops over raw memory, beside the same in operations of ATen.

#include "kernels/tensors.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <limits>

#include "ddc/optim/adam.h"

namespace ddc::tests {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor random(at::IntArrayRef shape, at::ScalarType type, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(shape, generator, at::kDouble).to(type);
}

/// Runs a body with one thread and with two.
template <class Body>
void with_threads(const Body& body) {
  const int before = at::get_num_threads();
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    body();
  }
  at::set_num_threads(before);
}

double tolerance(at::ScalarType type) { return type == at::kDouble ? 1e-14 : 1e-6; }

TEST(Kernels, SumSquaresAlongBothAxesWithWeights) {
  with_threads([] {
    for (const auto type : {at::kFloat, at::kDouble}) {
      for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 1},
                                          {3, 1},
                                          {1, 700},
                                          {65, 513},
                                          {200, 1030},
                                          {0, 4},
                                          {4, 0}}) {
        const auto x = random({rows, columns}, type, 1);
        for (const int64_t along : {0, 1}) {
          const auto weights = random({x.size(1 - along)}, at::kDouble, 2).abs();
          for (const auto& weight : {at::Tensor(), weights}) {
            auto square = x.to(at::kDouble).square();
            if (weight.defined()) square = square * weight.unsqueeze(along);
            const auto expected = square.sum(1 - along, /*keepdim=*/true);
            const auto actual = kernels::squares(x, along, weight);
            EXPECT_EQ(actual.sizes(), expected.sizes());
            EXPECT_TRUE(at::allclose(actual, expected, tolerance(type), 0))
                << rows << " x " << columns << " along " << along;
          }
        }
      }
    }
  });
}

TEST(Kernels, SumColumns) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    const auto x = random({300, 517}, type, 3);
    EXPECT_TRUE(at::allclose(kernels::column_sums(x), x.to(at::kDouble).sum(0, true), 0,
                             300 * tolerance(type)));
  }
}

TEST(Kernels, ScaleRowsAndColumns) {
  with_threads([] {
    for (const auto type : {at::kFloat, at::kDouble}) {
      const auto x = random({130, 257}, type, 4);
      const auto rows = random({130, 1}, at::kDouble, 5);
      const auto columns = random({1, 257}, at::kDouble, 6);
      for (const auto& row : {at::Tensor(), rows}) {
        for (const auto& column : {at::Tensor(), columns}) {
          auto expected = x.to(at::kDouble);
          if (row.defined()) expected = expected * row;
          if (column.defined()) expected = expected * column;
          auto actual = x.clone();
          const auto version = actual._version();
          kernels::scale_(actual, row.defined() ? row.const_data_ptr<double>() : nullptr,
                          column.defined() ? column.const_data_ptr<double>() : nullptr);
          EXPECT_GT(actual._version(), version) << "autograd must know of it";
          EXPECT_TRUE(at::allclose(actual.to(at::kDouble), expected, tolerance(type), 0));
        }
      }
    }
  });
}

TEST(Kernels, FindWhatIsNotFinite) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const auto fine = random({40000}, type, 7);
    EXPECT_TRUE(kernels::all_finite({fine, at::empty({0}, type), at::full({}, 1e-40, type)}));
    EXPECT_TRUE(kernels::all_finite({fine.view({200, 200}).t()}));
    EXPECT_TRUE(kernels::all_finite({fine.slice(0, 0, 40000, 3)}));
    for (const double bad : {kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()}) {
      for (const int64_t place : {0, 17, 39999}) {
        auto broken = fine.clone();
        broken[place].fill_(bad);
        EXPECT_FALSE(kernels::all_finite({fine, broken})) << bad << " at " << place;
        EXPECT_FALSE(kernels::all_finite({broken.view({200, 200}).t()}));
      }
    }
  }
}

TEST(Kernels, HandEveryPieceToOneThread) {
  with_threads([] {
    const std::vector<int64_t> counts{0, 1, 16384, 16385, 100000};
    std::vector<at::Tensor> seen;
    for (const int64_t count : counts) seen.push_back(at::zeros({count}, at::kLong));
    kernels::in_pieces(counts, [&](size_t i, int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) ++seen[i].mutable_data_ptr<int64_t>()[j];
    });
    for (const auto& each : seen) EXPECT_TRUE((each == 1).all().item<bool>());
  });
}

TEST(AdamKernel, IsTorchsFusedAdamW) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    for (const double beta1 : {0.9, 0.3}) {
      const bool maximize = beta1 < 0.5;
      const AdamOptions options{.lr = 3e-3,
                                .beta1 = beta1,
                                .eps = 1e-10,
                                .weight_decay = maximize ? 0 : 0.1,
                                .maximize = maximize};
      std::vector<at::Tensor> weights;
      for (const auto& shape :
           std::vector<std::vector<int64_t>>{{}, {0}, {1}, {7}, {33, 65}, {50000}, {2, 3, 4, 5}}) {
        weights.push_back(random(shape, type, weights.size()));
      }
      weights.push_back(random({2, 3, 4, 5}, type, 9).contiguous(at::MemoryFormat::ChannelsLast));
      weights.push_back(random({6, 7}, type, 10).t());
      std::vector<AdamMoments> moments;
      std::vector<at::Tensor> expected;
      std::vector<at::Tensor> first;
      std::vector<at::Tensor> second;
      for (const auto& each : weights) {
        moments.push_back(AdamRule::init({"w", each, {}, {}}, options));
        expected.push_back(each.clone());
        first.push_back(at::zeros_like(each));
        second.push_back(at::zeros_like(each));
      }
      for (int64_t step = 1; step <= 5; ++step) {
        std::vector<InPlaceStep<AdamMoments, AdamOptions>> steps;
        std::vector<at::Tensor> gradients;
        for (size_t i = 0; i < weights.size(); ++i) {
          auto gradient = at::empty_like(weights[i]);
          gradient.copy_(random(weights[i].sizes(), type, 100 * step + i));
          if (step == 3) gradient.mul_(1e-30);  // denormal squares
          gradients.push_back(gradient);
          steps.push_back({weights[i], gradient, step, &moments[i], &options});
        }
        for (const bool done : AdamRule::step_in_place_(steps)) EXPECT_TRUE(done);
        const std::vector<at::Tensor> counts(weights.size(),
                                             at::full({}, static_cast<double>(step), at::kFloat));
        at::_fused_adamw_(expected, gradients, first, second, {}, counts, options.lr, options.beta1,
                          options.beta2, options.weight_decay, options.eps,
                          /*amsgrad=*/false, maximize);
      }
      // Torch's kernel fuses other multiplications in what is left of a vector at the end.
      const auto same = [&](const at::Tensor& actual, const at::Tensor& wanted) {
        return at::allclose(actual, wanted, tolerance(type), 0);
      };
      for (size_t i = 0; i < weights.size(); ++i) {
        EXPECT_TRUE(same(weights[i], expected[i])) << weights[i].sizes();
        EXPECT_TRUE(same(moments[i].exp_avg, first[i])) << weights[i].sizes();
        EXPECT_TRUE(same(moments[i].exp_avg_sq, second[i])) << weights[i].sizes();
      }
    }
  }
}

TEST(AdamKernel, LeavesWhatDoesNotFitToTheRule) {
  const AdamOptions options;
  auto narrow = random({8}, at::kBFloat16, 1);
  auto gaps = random({16}, at::kFloat, 2).slice(0, 0, 16, 2);
  auto weights = random({4, 5}, at::kFloat, 3);
  std::vector<AdamMoments> moments;
  for (const auto& each : {narrow, gaps, weights}) {
    moments.push_back(AdamRule::init({"w", each, {}, {}}, options));
  }
  const auto before = std::vector<at::Tensor>{narrow.clone(), gaps.clone(), weights.clone()};
  const auto done = AdamRule::step_in_place_(
      {{narrow, at::ones_like(narrow), 1, &moments[0], &options},
       {gaps, at::ones({8}), 1, &moments[1], &options},
       // A gradient that is laid out otherwise.
       {weights, random({5, 4}, at::kFloat, 4).t(), 1, &moments[2], &options}});
  EXPECT_EQ(done, std::vector<bool>(3, false));
  EXPECT_TRUE(at::equal(narrow, before[0]));
  EXPECT_TRUE(at::equal(gaps, before[1]));
  EXPECT_TRUE(at::equal(weights, before[2]));
}

}  // namespace
}  // namespace ddc::tests
