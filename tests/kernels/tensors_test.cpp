// Loops over raw memory, beside the same in operations of ATen.

#include "kernels/tensors.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include "ddc/optim/adam.h"
#include "kernels/pass.h"

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

/// In the streams that are read side by side, and in what is left of them.
TEST(Kernels, FindOneEntryWhereverItIs) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const int64_t count : {1, 63, 255, 256, 257, 1025}) {
      for (int64_t place = 0; place < count; ++place) {
        auto entries = at::ones({count}, type);
        entries[place].fill_(place % 2 == 0 ? -kInfinity : std::nan(""));
        EXPECT_FALSE(kernels::all_finite({entries})) << place << " of " << count;
        entries[place].fill_(-1e38);
        EXPECT_TRUE(kernels::all_finite({entries})) << place << " of " << count;
        EXPECT_FALSE(kernels::none_huge({entries})) << place << " of " << count;
        entries[place].fill_(1e9);
        EXPECT_TRUE(kernels::none_huge({entries})) << place << " of " << count;
      }
    }
  }
}

TEST(Kernels, FindWhatIsHuge) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const auto fine = random({40000}, type, 7);
    const auto below = at::full({}, kernels::kHuge * (1 - 1.0 / 128), type);
    EXPECT_TRUE(kernels::none_huge({fine, below, -below, at::full({}, 1e-40, type)}));
    EXPECT_TRUE(kernels::none_huge({fine.slice(0, 0, 40000, 3)}));
    for (const double huge : {kernels::kHuge, 1e30, 3e38, kInfinity, std::nan("")}) {
      for (const int64_t place : {0, 17, 39999}) {
        auto broken = fine.clone();
        broken[place].fill_(-huge);
        EXPECT_FALSE(kernels::none_huge({fine, broken})) << huge << " at " << place;
        EXPECT_FALSE(kernels::none_huge({broken.slice(0, 0, 40000, place == 17 ? 17 : 39999)}));
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
        std::vector<kernels::PassEntry> pass;
        std::vector<at::Tensor> gradients;
        for (size_t i = 0; i < weights.size(); ++i) {
          auto gradient = at::empty_like(weights[i]);
          gradient.copy_(random(weights[i].sizes(), type, 100 * step + i));
          if (step == 3) gradient.mul_(1e-30);  // denormal squares
          gradients.push_back(gradient);
          pass.push_back({weights[i], gradient, {}, {}});
          EXPECT_TRUE(AdamRule::in_place(moments[i], step, options, pass.back()));
          EXPECT_TRUE(pass.back().fits());
        }
        kernels::run(pass);
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

TEST(Pass, DoesNotTakeWhatLoopsCannotReach) {
  const AdamOptions options;
  const auto half = random({8}, at::kHalf, 1);
  const auto gaps = random({16}, at::kFloat, 2).slice(0, 0, 16, 2);
  const auto weights = random({4, 5}, at::kFloat, 3);
  const auto fits = [&](const at::Tensor& tensor, const at::Tensor& gradient) {
    const auto moments = AdamRule::init({"w", tensor, {}, {}}, options);
    kernels::PassEntry entry{tensor, gradient, {}, {}};
    return AdamRule::in_place(moments, 1, options, entry) && entry.fits();
  };
  EXPECT_TRUE(fits(weights, at::ones({4, 5})));
  EXPECT_FALSE(fits(half, at::ones_like(half)));
  EXPECT_FALSE(fits(gaps, at::ones({8})));
  // A gradient that is laid out otherwise, or of another type.
  EXPECT_FALSE(fits(weights, random({5, 4}, at::kFloat, 4).t()));
  EXPECT_FALSE(fits(weights, at::ones({4, 5}, at::kDouble)));
}

TEST(Pass, StepsBfloat16WithFloatState) {
  const AdamOptions options{.lr = 1e-2, .weight_decay = 0.1};
  auto weights = random({33, 65}, at::kBFloat16, 1);
  auto wide = weights.to(at::kFloat);
  auto moments = AdamRule::init({"w", weights, {}, {}}, options);
  auto of_wide = AdamRule::init({"w", wide, {}, {}}, options);
  for (int64_t step = 1; step <= 5; ++step) {
    wide.copy_(weights);
    const auto gradient = random({33, 65}, at::kBFloat16, 10 + step);
    kernels::PassEntry entry{weights, gradient, {}, {}};
    kernels::PassEntry widened{wide, gradient.to(at::kFloat), {}, {}};
    ASSERT_TRUE(AdamRule::in_place(moments, step, options, entry) && entry.fits());
    ASSERT_TRUE(AdamRule::in_place(of_wide, step, options, widened));
    kernels::run({entry});
    kernels::run({widened});
    EXPECT_TRUE(at::equal(weights, wide.to(at::kBFloat16))) << "step " << step;
    EXPECT_TRUE(at::equal(moments.exp_avg_sq, of_wide.exp_avg_sq));
  }
}

/// What edges mean, in operations of ATen on float64.
at::Tensor vector_of(const std::vector<double>& values, double nothing, int64_t size) {
  return values.empty() ? at::full({size}, nothing, at::kDouble) : at::tensor(values, at::kDouble);
}

at::Tensor turned(at::Tensor x, const kernels::Edges& edges) {
  for (size_t i = 0; i < edges.turns.size(); ++i) {
    const auto [first, second] = edges.items[i];
    if (second < 0) continue;
    const auto [c, s] = edges.turns[i];
    const auto a = x[first].clone();
    const auto b = x[second].clone();
    x[first] = c * a - s * b;
    x[second] = s * a + c * b;
  }
  return x;
}

TEST(Pass, GoesThroughEdges) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    const double tolerance = type == at::kFloat ? 1e-5 : 1e-13;
    for (const int64_t columns : {7, 700}) {
      const int64_t rows = 150;
      const auto numbers = [&](int64_t size, uint64_t seed, bool positive) {
        auto x = random({size}, at::kDouble, seed);
        if (positive) x = x.abs() + 0.5;
        return std::vector<double>(x.const_data_ptr<double>(), x.const_data_ptr<double>() + size);
      };
      kernels::Edges edges;
      for (int64_t i = 0; i < 40; ++i) edges.items.push_back({i, i + 40});
      for (int64_t i = 80; i < rows; ++i) edges.items.push_back({i, -1});
      for (size_t i = 0; i < edges.items.size(); ++i) {
        edges.turns.push_back(
            {std::cos(0.1 * static_cast<double>(i)), std::sin(0.1 * static_cast<double>(i))});
      }
      edges.rows = numbers(rows, 1, true);
      // Rows that turn together have one factor.
      for (size_t i = 0; i < 40; ++i) edges.rows[i + 40] = edges.rows[i];
      edges.columns = numbers(columns, 2, true);
      edges.row_shift = numbers(rows, 3, false);
      edges.row_pattern = numbers(columns, 4, false);
      edges.column_shift = numbers(columns, 5, false);
      edges.column_pattern = numbers(rows, 6, false);
      edges.out_rows = numbers(rows, 7, true);
      edges.out_columns = numbers(columns, 8, true);
      edges.wants_row_squares = edges.wants_column_squares = edges.wants_overlaps = true;
      edges.row_dots[0].weights = numbers(columns, 9, false);
      edges.row_dots[1].weights = numbers(columns, 10, false);
      edges.column_dots[0].weights = numbers(rows, 11, false);
      edges.column_dots[1].weights = numbers(rows, 12, false);

      auto weights = random({rows, columns}, type, 20);
      const auto gradient = random({rows, columns}, type, 21);
      const auto row = vector_of(edges.rows, 1, rows).unsqueeze(1);
      const auto column = vector_of(edges.columns, 1, columns);
      const auto x = turned(
          (weights.to(at::kDouble) -
           vector_of(edges.row_shift, 0, rows).outer(vector_of(edges.row_pattern, 1, columns)) -
           vector_of(edges.column_pattern, 1, rows)
               .outer(vector_of(edges.column_shift, 0, columns))) *
              row * column,
          edges);
      const auto g = turned(gradient.to(at::kDouble) / row / column, edges);
      const AdamOptions options{.lr = 1e-2, .weight_decay = 0.1};
      const auto wanted_rule = x.clone();
      auto expected = AdamRule::init({"w", wanted_rule, {}, {}}, options);
      const auto y = (x * (1 - options.lr * options.weight_decay) +
                      AdamRule::step(g, 1, {"w", wanted_rule, {}, {}}, expected, options)) *
                     vector_of(edges.out_rows, 1, rows).unsqueeze(1) *
                     vector_of(edges.out_columns, 1, columns);

      auto moments = AdamRule::init({"w", weights, {}, {}}, options);
      kernels::PassEntry entry{weights, gradient, {}, {}, &edges};
      ASSERT_TRUE(AdamRule::in_place(moments, 1, options, entry) && entry.fits());
      kernels::run({entry});
      const auto near = [&](const at::Tensor& actual, const at::Tensor& wanted, const char* what) {
        const double size = wanted.abs().max().item<double>();
        EXPECT_LE((actual.to(at::kDouble) - wanted).abs().max().item<double>(), tolerance * size)
            << what << ", " << columns << " columns";
      };
      near(weights, y, "weights");
      near(moments.exp_avg, expected.exp_avg, "first moment");
      near(moments.exp_avg_sq, expected.exp_avg_sq, "second moment");
      near(vector_of(edges.row_squares, 0, rows), y.square().sum(1), "squares of rows");
      near(vector_of(edges.column_squares, 0, columns), y.square().sum(0), "squares of columns");
      for (size_t k = 0; k < 2; ++k) {
        near(vector_of(edges.row_dots[k].sums, 0, rows),
             y.mv(vector_of(edges.row_dots[k].weights, 0, columns)), "sums of rows");
        near(vector_of(edges.column_dots[k].sums, 0, columns),
             y.t().mv(vector_of(edges.column_dots[k].weights, 0, rows)), "sums of columns");
      }
      for (size_t i = 0; i < 40; ++i) {
        const auto [first, second] = edges.items[i];
        const double cosine = (x[first].dot(y[first]) + x[second].dot(y[second])).item<double>();
        const double sine = (x[second].dot(y[first]) - x[first].dot(y[second])).item<double>();
        const double size = (x[first].norm() * y[first].norm()).item<double>() + 1;
        EXPECT_NEAR(edges.overlaps[i][0], cosine, tolerance * size * 10);
        EXPECT_NEAR(edges.overlaps[i][1], sine, tolerance * size * 10);
      }
    }
  }
}

TEST(Pass, DoesNotDependOnThreadsNorOnCompany) {
  const int threads = at::get_num_threads();
  const AdamOptions options;
  const auto result = [&](int count, bool alone) {
    at::set_num_threads(count);
    std::vector<at::Tensor> weights;
    std::vector<AdamMoments> moments;
    std::vector<kernels::Edges> edges(3);
    std::vector<kernels::PassEntry> pass;
    for (size_t i = 0; i < 3; ++i) {
      weights.push_back(random({700, 300 + 50 * static_cast<int64_t>(i)}, at::kFloat, i));
      moments.push_back(AdamRule::init({"w", weights[i], {}, {}}, options));
      edges[i].wants_column_squares = edges[i].wants_row_squares = true;
      pass.push_back(
          {weights[i], random(weights[i].sizes(), at::kFloat, 10 + i), {}, {}, &edges[i]});
      EXPECT_TRUE(AdamRule::in_place(moments[i], 1, options, pass.back()));
    }
    if (alone) {
      for (const auto& entry : pass) kernels::run({entry});
    } else {
      kernels::run(pass);
    }
    at::set_num_threads(threads);
    return std::make_pair(weights, edges);
  };
  const auto first = result(1, true);
  for (const bool alone : {false, true}) {
    const auto second = result(2, alone);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(at::equal(first.first[i], second.first[i]));
      EXPECT_EQ(first.second[i].column_squares, second.second[i].column_squares);
      EXPECT_EQ(first.second[i].row_squares, second.second[i].row_squares);
    }
  }
}

/// Entries go through the same operations wherever they stand: in the blocks that a loop is cut into, in what is
/// left of them, in a matrix with edges that do nothing.
TEST(Pass, StepsEveryEntryOnItsOwn) {
  const AdamOptions options{.lr = 1e-2, .weight_decay = 0.1};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto type : {at::kFloat, at::kDouble}) {
    const int64_t rows = 3;
    const int64_t columns = 719;
    const double denormal = type == at::kFloat ? 1e-42 : 1e-312;
    auto weights = random({rows, columns}, type, 1);
    auto gradient = random({rows, columns}, type, 2);
    // Weights and state that are no numbers, or next to nothing, concern nobody else.
    const std::vector<double> values = {nan, kInfinity, -kInfinity, denormal, -denormal, 0.0, -0.0};
    for (size_t i = 0; i < values.size(); ++i) {
      weights.view({-1})[static_cast<int64_t>(97 * i)].fill_(values[i]);
      gradient.view({-1})[static_cast<int64_t>(97 * i + 1)].fill_(
          std::isfinite(values[i]) ? values[i] : 0);
    }
    const auto stepped = [&](const at::Tensor& x, const at::Tensor& g, kernels::Edges* edges) {
      auto result = x.clone();
      auto moments = AdamRule::init({"w", result, {}, {}}, options);
      moments.exp_avg_sq.view({-1})[0].fill_(nan);
      kernels::PassEntry entry{result, g, {}, {}, edges};
      EXPECT_TRUE(AdamRule::in_place(moments, 1, options, entry) && entry.fits());
      kernels::run({entry});
      return at::stack({result, moments.exp_avg, moments.exp_avg_sq}).flatten(1);
    };
    const auto same = [](const at::Tensor& a, const at::Tensor& b) {
      return at::where(a == b, 1, 0)
          .logical_or(a.isnan().logical_and(b.isnan()))
          .all()
          .item<bool>();
    };
    const auto all = stepped(weights, gradient, nullptr);
    EXPECT_TRUE(all.slice(1, 2, 97).isfinite().all().item<bool>());
    for (const int64_t i :
         {int64_t{1}, int64_t{2}, int64_t{98}, int64_t{1000}, rows * columns - 1}) {
      const auto x = weights.flatten().slice(0, i, i + 1).clone();
      const auto g = gradient.flatten().slice(0, i, i + 1).clone();
      auto moments = AdamRule::init({"w", x, {}, {}}, options);
      kernels::PassEntry entry{x, g, {}, {}};
      ASSERT_TRUE(AdamRule::in_place(moments, 1, options, entry));
      kernels::run({entry});
      EXPECT_TRUE(same(all[0][i], x[0]) && same(all[2][i], moments.exp_avg_sq[0])) << i;
    }
    kernels::Edges edges;
    EXPECT_TRUE(same(all, stepped(weights, gradient, &edges)));
    edges.columns.assign(columns, 1);
    edges.wants_column_squares = true;
    EXPECT_TRUE(same(all, stepped(weights, gradient, &edges)));
    edges.column_shift.assign(columns, 0);
    edges.column_pattern.assign(rows, 1);
    edges.column_dots[0].weights.assign(rows, 1);
    edges.out_columns.assign(columns, 1);
    EXPECT_TRUE(same(all, stepped(weights, gradient, &edges)));
  }
}

/// The same by every rule, whatever rows go through: what stands in one row concerns that row, and the one that
/// turns with it, alone.
TEST(Pass, KeepsRowsApartWhateverTheyGoThrough) {
  constexpr int64_t kRowsOfTest = 6;
  constexpr int64_t kBad = 2;
  const std::vector<std::pair<const char*, kernels::Constants>> rules = {
      {"Adam", kernels::AdamConstants{.lr = 1e-2,
                                      .beta1 = 0.9,
                                      .beta2 = 0.99,
                                      .eps = 1e-8,
                                      .weight_decay = 0.1,
                                      .correction1 = 0.1,
                                      .correction2 = 0.01}},
      {"SGD", kernels::SgdConstants{.lr = 1e-2, .weight_decay = 0.1}},
      {"momentum", kernels::SgdConstants{.lr = 1e-2, .momentum = 0.9}},
      {"Lion", kernels::LionConstants{.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8}}};
  const auto count_of = [](const std::string& rule) {
    return rule == "Adam" ? 2 : rule == "SGD" ? 0 : 1;
  };
  for (const auto type : {at::kFloat, at::kDouble}) {
    for (const int64_t columns : {5, 700}) {
      const auto numbers = [&](int64_t count, uint64_t seed) {
        const auto drawn = random({count}, at::kDouble, seed).abs() + 0.5;
        const auto* data = drawn.const_data_ptr<double>();
        return std::vector<double>(data, data + count);
      };
      const std::vector<std::pair<const char*, std::function<void(kernels::Edges&)>>> ways = {
          {"nothing", [](kernels::Edges&) {}},
          {"row factors",
           [&](kernels::Edges& edges) {
             edges.rows = numbers(kRowsOfTest, 1);
             edges.out_rows = numbers(kRowsOfTest, 2);
             edges.wants_row_squares = true;
           }},
          {"column factors",
           [&](kernels::Edges& edges) {
             edges.columns = numbers(columns, 3);
             edges.out_columns = numbers(columns, 4);
             edges.row_dots[0].weights = numbers(columns, 5);
             edges.wants_row_squares = true;
           }},
          {"shifts",
           [&](kernels::Edges& edges) {
             edges.row_shift = numbers(kRowsOfTest, 6);
             edges.row_pattern = numbers(columns, 7);
             edges.column_shift = numbers(columns, 8);
             edges.column_pattern = numbers(kRowsOfTest, 9);
           }},
          {"centring",
           [&](kernels::Edges& edges) {
             edges.row_dots[0].weights.assign(static_cast<size_t>(columns), 1);
             edges.centre_pattern.assign(static_cast<size_t>(columns), 1);
             edges.wants_row_squares = true;
           }},
          {"pairs",
           [&](kernels::Edges& edges) {
             edges.items = {{0, 1}, {kBad, 5}, {3, -1}, {4, -1}};
             edges.turns = {{0.6, 0.8}, {0.8, 0.6}, {1, 0}, {1, 0}};
             edges.rows = numbers(kRowsOfTest, 10);
             edges.wants_overlaps = true;
             edges.wants_row_squares = true;
           }},
      };
      for (const auto& [rule, constants] : rules) {
        for (const auto& [way, go] : ways) {
          SCOPED_TRACE(testing::Message()
                       << rule << ", " << way << ", " << type << ", " << columns);
          const auto stepped = [&](std::optional<double> bad) {
            auto weights = random({kRowsOfTest, columns}, type, 20);
            auto gradient = random({kRowsOfTest, columns}, type, 21);
            // Squares of these are none, in the other rows too.
            gradient[4].mul_(type == at::kFloat ? 1e-40 : 1e-310);
            if (bad) {
              weights[kBad][columns - 1].fill_(*bad);
              gradient[kBad][0].fill_(*bad);
            }
            std::vector<at::Tensor> state;
            for (int i = 0; i < count_of(rule); ++i) {
              state.push_back(random({kRowsOfTest, columns}, type, 22 + i).abs());
            }
            kernels::Edges edges;
            go(edges);
            kernels::PassEntry entry{weights, gradient, state, constants, &edges};
            EXPECT_TRUE(entry.fits());
            kernels::run({entry});
            std::vector<at::Tensor> all{weights};
            all.insert(all.end(), state.begin(), state.end());
            for (const auto& sums : {edges.row_squares, edges.row_dots[0].sums}) {
              if (!sums.empty()) all.push_back(at::tensor(sums, at::kDouble).unsqueeze(1));
            }
            return all;
          };
          const auto fine = stepped(std::nullopt);
          for (const auto& each : fine) EXPECT_TRUE(each.isfinite().all().item<bool>());
          for (const double bad : {kInfinity, -kInfinity, std::nan(""), 1e-42, -0.0}) {
            const auto broken = stepped(bad);
            ASSERT_EQ(broken.size(), fine.size());
            for (size_t i = 0; i < fine.size(); ++i) {
              for (const int64_t row : {0, 1, 3, 4}) {
                EXPECT_TRUE(at::equal(broken[i][row], fine[i][row])) << bad << ", row " << row;
              }
            }
            // And there it is seen, if it is no number.
            EXPECT_EQ(broken[0][kBad].isfinite().all().item<bool>(), std::isfinite(bad)) << bad;
          }
        }
      }
    }
  }
}

TEST(Pass, TakesTensorsOfAllShapesAndNoneThatOverlap) {
  const AdamOptions options;
  const auto fits = [&](const at::Tensor& tensor) {
    const auto moments = AdamRule::init({"w", tensor, {}, {}}, options);
    kernels::PassEntry entry{tensor, at::ones_like(tensor), {}, {}};
    const bool result = AdamRule::in_place(moments, 1, options, entry) && entry.fits();
    if (result) kernels::run({entry});
    return result;
  };
  EXPECT_TRUE(fits(at::ones({})));
  EXPECT_TRUE(fits(at::ones({0})));
  EXPECT_TRUE(fits(at::ones({3, 0})));
  EXPECT_TRUE(fits(random({2, 3, 4, 5}, at::kFloat, 1).contiguous(at::MemoryFormat::ChannelsLast)));
  EXPECT_FALSE(fits(at::ones({3}).expand({4, 3})));
  EXPECT_FALSE(fits(at::ones({9}).as_strided({3, 3}, {1, 1})));
  EXPECT_FALSE(fits(random({6, 8}, at::kFloat, 2).slice(1, 0, 4)));
}

}  // namespace
}  // namespace ddc::tests
