// Linear gauges: the section (equal Gram matrices) is held, also for pairs of which one side starts at
// zero, and a pair of which one side never gets full rank trains.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>

#include "ddc/gauge/linear_pair.h"
#include "ddc/optim/sgd.h"
#include "ddc/optim/shampoo.h"
#include "ddc/optim/soap.h"
#include "ddc/testbeds/blocks.h"
#include "support/matrices.h"
#include "support/small_networks.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

using testbeds::Batch;
using testbeds::GaugeSet;

struct Pair {
  int64_t in = 6;
  int64_t inner = 3;
  int64_t out = 5;
  bool second_is_zero = false;
};

/// y = B A x, against a linear teacher of rank `inner`.
Testbed factor_pair(const Pair& pair) {
  Testbed bed;
  bed.name = "factor pair";
  bed.init = [=](uint64_t seed, at::ScalarType type) {
    Parameters params;
    const auto first = normal({pair.inner, pair.in}, seed) / std::sqrt(pair.in);
    const auto second = normal({pair.out, pair.inner}, seed + 50) / std::sqrt(pair.inner);
    params.add("a", first.to(type).requires_grad_());
    params.add("b",
               (pair.second_is_zero ? at::zeros_like(second) : second).to(type).requires_grad_());
    return params;
  };
  const auto teacher = normal({pair.out, std::min(pair.inner, pair.out)}, 7)
                           .matmul(normal({std::min(pair.inner, pair.out), pair.in}, 8)) /
                       std::sqrt(static_cast<double>(pair.in));
  bed.batch = [=](uint64_t seed, at::ScalarType type) {
    const auto inputs = normal({16, pair.in}, seed + 1000);
    return Batch{inputs.to(type), inputs.matmul(teacher.t()).to(type)};
  };
  bed.outputs = [](const Parameters& params, const at::Tensor& inputs) {
    return inputs.matmul(params["a"].tensor.t()).matmul(params["b"].tensor.t());
  };
  bed.loss = [outputs = bed.outputs](const Parameters& params, const Batch& batch) {
    return (outputs(params, batch.inputs) - batch.targets).square().mean();
  };
  bed.gauges = [](const Parameters& params) {
    return std::vector{linear_pair({.first = params["a"], .second = params["b"], .name = "pair"})};
  };
  return bed;
}

AdamOptions fast() { return AdamOptions{.lr = 1e-2, .weight_decay = 0.01}; }

double largest(const at::Tensor& tensor) { return tensor.abs().max().item<double>(); }

/// Exponential of a symmetric matrix.
at::Tensor symmetric_exp(const at::Tensor& matrix) {
  const auto [values, vectors] = at::linalg_eigh(matrix);
  return (vectors * values.exp()).matmul(vectors.t());
}

/// What the gauge coordinate is said to be, from the weights: log S with S M_plus S = M_minus.
double coordinate_error(const at::Tensor& log_s, const at::Tensor& plus, const at::Tensor& minus) {
  const auto s = symmetric_exp(log_s);
  return ((s.matmul(plus).matmul(s) - minus).norm() / minus.norm()).item<double>();
}

struct Followed {
  int64_t degenerate_at_start = 0;
  int64_t degenerate_at_end = 0;
  int64_t bound_at = -1;
  /// Drift of the gauge coordinate since the block was bound.
  double drift = 0;
  double coordinate_error = 0;
  double first_loss = 0;
  double last_loss = 0;
  bool finite = true;
};

Followed follow(const Testbed& bed, int64_t steps, const AdamOptions& options = fast()) {
  const auto params = bed.init(1, at::kDouble);
  DDCAdam optimizer(params, bed.gauges(params), options, in_place());
  Followed result;
  result.degenerate_at_start = optimizer.report().degenerate_channels();
  result.first_loss = loss_of(bed, params, bed.batch(0, at::kDouble));
  at::Tensor start;
  for (int64_t step = 0; step < steps; ++step) {
    const auto now = optimizer.gauge_coordinate("pair")[0];
    const bool bound = optimizer.report().degenerate_channels() == 0;
    EXPECT_EQ(now.isfinite().all().item<bool>(), bound) << "at step " << step;
    if (bound && !start.defined()) {
      start = now.clone();
      result.bound_at = step;
    }
    if (start.defined()) result.drift = std::max(result.drift, largest(now - start));
    backward(bed, params, bed.batch(static_cast<uint64_t>(step), at::kDouble));
    optimizer.step();
    result.finite = result.finite && all_finite(params);
  }
  if (start.defined()) {
    const auto a = params["a"].tensor.detach();
    const auto b = params["b"].tensor.detach();
    result.coordinate_error =
        coordinate_error(optimizer.gauge_coordinate("pair")[0], a.matmul(a.t()), b.t().matmul(b));
  }
  result.degenerate_at_end = optimizer.report().degenerate_channels();
  result.last_loss = loss_of(bed, params, bed.batch(0, at::kDouble));
  return result;
}

PairedRun related(int64_t steps) { return {.steps = steps, .size = 0.5}; }

TEST(LinearPair, ThatStartsAtZeroIsEquivariantThenBoundAndHeld) {
  const auto bed = factor_pair({.second_is_zero = true});
  const auto gauges = bed.gauges(bed.init(1, at::kDouble));
  // By default they are in place: at the canonical one what grows out of zero is moved by much more than rounding.
  const DDCAdam by_default(bed.init(1, at::kDouble), gauges, fast());
  EXPECT_EQ(by_default.report().place, Place::in_place);
  EXPECT_EQ(by_default.report().why_in_place,
            "gauge 'pair' has no canonical place while 'b' is zero");
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const PairedRun run{.seed = seed, .steps = 300, .size = 0.5};
    EXPECT_LE(paired_error(bed, gauges, ddc_adam(fast(), {}), run), 1e-12) << seed;
  }
  EXPECT_GE(paired_error(bed, gauges, testbeds::adamw(1e-2, 0.01), related(300)), 1e-2);

  const auto run = follow(bed, 600);
  EXPECT_EQ(run.degenerate_at_start, 3);
  EXPECT_GT(run.bound_at, 0);
  EXPECT_LT(run.bound_at, 300);
  EXPECT_LE(run.drift, 1e-10);
  EXPECT_LE(run.coordinate_error, 1e-10);
  EXPECT_EQ(run.degenerate_at_end, 0);
  EXPECT_TRUE(run.finite);
  EXPECT_LE(run.last_loss, run.first_loss / 10);
  std::cout << "bound at step " << run.bound_at << ", drift since " << run.drift << ", loss "
            << run.first_loss << " -> " << run.last_loss << "\n";
}

TEST(LinearPair, ThatIsNotZeroIsHeldFromTheStart) {
  const auto bed = factor_pair({});
  const auto gauges = bed.gauges(bed.init(1, at::kDouble));
  for (const auto& treatment : {in_place(), placed()}) {
    EXPECT_LE(paired_error(bed, gauges, ddc_adam(fast(), treatment), related(300)), 1e-10)
        << to_string(treatment);
  }
  const auto run = follow(bed, 600);
  EXPECT_EQ(run.bound_at, 0);
  EXPECT_LE(run.drift, 1e-10);
  EXPECT_LE(run.coordinate_error, 1e-10);
  EXPECT_LE(run.last_loss, run.first_loss / 10);
}

/// Four inner units, but three outputs or inputs: that side has rank three whatever is trained.
TEST(LinearPair, WithMoreUnitsThanASideHasRankStaysDegenerateAndTrains) {
  for (const auto& pair : {Pair{.in = 6, .inner = 4, .out = 3}, Pair{.in = 3, .inner = 4, .out = 6},
                           Pair{.in = 6, .inner = 4, .out = 3, .second_is_zero = true}}) {
    const auto bed = factor_pair(pair);
    const auto gauges = bed.gauges(bed.init(1, at::kDouble));
    const auto run = follow(bed, 600);
    EXPECT_EQ(run.degenerate_at_start, 4);
    EXPECT_EQ(run.degenerate_at_end, 4);
    EXPECT_TRUE(run.finite);
    EXPECT_LE(run.last_loss, run.first_loss / 10);
    // What the other side does not read has no gradient but rounding, 1e-16, of which Adam makes steps
    // of lr 1e-16 / eps. That this is all there is shows in a larger eps.
    auto large_eps = fast();
    large_eps.eps = 1e-3;
    for (const auto& treatment : {in_place(), placed()}) {
      SCOPED_TRACE(to_string(treatment));
      EXPECT_LE(paired_error(bed, gauges, ddc_adam(fast(), treatment), related(100)), 1e-8);
      EXPECT_LE(paired_error(bed, gauges, ddc_adam(large_eps, treatment), related(100)), 1e-12);
    }
  }
}

TEST(LinearPair, WithDependentOrZeroRowsTrainsWithoutNaN) {
  const std::map<std::string, std::function<void(const Parameters&)>> changes{
      {"two equal rows", [](const Parameters& p) { p["a"].tensor[0].copy_(p["a"].tensor[1]); }},
      {"a zero row", [](const Parameters& p) { p["a"].tensor[0].zero_(); }},
      {"all zero", [](const Parameters& p) {
         p["a"].tensor.zero_();
         p["b"].tensor.zero_();
       }}};
  for (const auto& [name, change] : changes) {
    SCOPED_TRACE(name);
    const auto run = follow(starting_from(factor_pair({}), change), 400);
    EXPECT_EQ(run.degenerate_at_start, 3);
    EXPECT_TRUE(run.finite);
    // Blocks get bound as soon as they have full rank, when the Gram matrices' condition number is some
    // 1e7, and the coordinate is known to that many times rounding.
    EXPECT_LE(run.drift, 1e-8);
    // Without a gradient on either side nothing can be learnt.
    if (name != "all zero") {
      EXPECT_LE(run.last_loss, run.first_loss / 2);
    }
  }
}

/// Where neither side fixes a basis, copies have no place to agree on.
TEST(LinearPair, WithoutFullRankOnEitherSideIsRefused) {
  const std::map<std::string, std::function<void(const Parameters&)>> changes{
      {"a zero row and column",
       [](const Parameters& p) {
         p["a"].tensor[0].zero_();
         p["b"].tensor.select(1, 0).zero_();
       }},
      {"two equal rows and columns", [](const Parameters& p) {
         p["a"].tensor[0].copy_(p["a"].tensor[1]);
         p["b"].tensor.select(1, 0).copy_(p["b"].tensor.select(1, 1));
       }}};
  for (const auto& [name, change] : changes) {
    SCOPED_TRACE(name);
    const auto bed = starting_from(factor_pair({}), change);
    const auto params = bed.init(1, at::kDouble);
    for (const auto& treatment : {in_place(), placed()}) {
      EXPECT_THROW(DDCAdam(params, bed.gauges(params), {}, treatment), c10::Error);
    }
  }
}

/// Re-balancing on a trigger: both copies cross the threshold together.
TEST(LinearPair, RebalancedOnATriggerIsEquivariantAndStaysBelowIt) {
  constexpr double kThreshold = 1e-2;
  const auto bed = factor_pair({});
  const auto treatment = in_place({.rebalance_above = kThreshold});
  EXPECT_LE(paired_error(bed, bed.gauges(bed.init(1, at::kDouble)), ddc_adam(fast(), treatment),
                         related(300)),
            1e-10);

  const auto params = bed.init(1, at::kDouble);
  DDCAdam optimizer(params, bed.gauges(params), fast(), treatment);
  // The weights taken to where both Gram matrices were equal at the start: how far apart they are.
  const auto log_s = optimizer.gauge_coordinate("pair")[0];
  const auto imbalance = [&, root = symmetric_exp(log_s / 2),
                          inverse_root = symmetric_exp(-log_s / 2)] {
    const auto a = root.matmul(params["a"].tensor.detach());
    const auto b = params["b"].tensor.detach().matmul(inverse_root);
    const auto plus = a.matmul(a.t());
    const auto minus = b.t().matmul(b);
    return ((plus - minus).norm() / (plus.norm() + minus.norm())).item<double>();
  };
  EXPECT_LE(imbalance(), 1e-14);
  int64_t rebalanced = 0;
  double furthest = 0;
  for (uint64_t step = 0; step < 300; ++step) {
    backward(bed, params, bed.batch(step, at::kDouble));
    optimizer.step();
    if (optimizer.report().largest_imbalance() > kThreshold) {
      ++rebalanced;
      EXPECT_LE(imbalance(), 1e-12);
    }
    furthest = std::max(furthest, imbalance());
  }
  std::cout << "re-balanced in " << rebalanced << " of 300 steps, imbalance <= " << furthest
            << "\n";
  EXPECT_LE(furthest, kThreshold);
  EXPECT_GT(furthest, kThreshold / 10);
  EXPECT_GT(rebalanced, 0);
  EXPECT_LT(rebalanced, 150);
}

// ---- In transformers ----------------------------------------------------------------------------

struct Block {
  std::string name;
  Testbed bed;
};

std::vector<Block> blocks() {
  return {
      {"LayerNorm",
       testbeds::layer_norm_block(
           {.d_model = 8, .heads = 2, .d_ff = 10, .relu_part = false, .gauges = GaugeSet::full})},
      {"RmsNorm",
       testbeds::rms_norm_block(
           {.d_model = 8, .heads = 2, .kv_heads = 1, .d_ff = 10, .gauges = GaugeSet::full})}};
}

TEST(LinearGaugesOfHeads, AreHeldWhereAdamWMovesThem) {
  for (const auto& [name, bed] : blocks()) {
    const auto drifts = [&](const OptimizerMaker& make) {
      const auto params = bed.init(1, at::kDouble);
      const auto gauges = bed.gauges(params);
      const auto run =
          testbeds::drift(bed, params, gauges, make, {.steps = 200, .type = at::kDouble});
      double most = 0;
      for (size_t k = 0; k < gauges.size(); ++k) {
        if (gauges[k].action != Action::linear) continue;
        EXPECT_TRUE(run.of_gauge[k].isfinite().all().item<bool>()) << gauges[k].name;
        most = std::max(most, largest(run.of_gauge[k]));
      }
      return most;
    };
    const double held = drifts(ddc_adam(fast(), in_place()));
    const double moved = drifts(testbeds::adamw(1e-2, 0.01));
    std::cout << name << ": log S of heads moves by " << held << ", with AdamW by " << moved
              << "\n";
    EXPECT_LE(held, 1e-10) << name;
    EXPECT_GE(moved, 1e-2) << name;
  }
}

TEST(LinearGaugesOfHeads, OfRankDeficientHeadsTrainWithoutNaN) {
  for (const auto& [name, bed] : blocks()) {
    const auto damaged = starting_from(bed, [](const Parameters& params) {
      params["layers.0.attention.value.weight"].tensor[0].copy_(
          params["layers.0.attention.value.weight"].tensor[1]);
      params["layers.0.attention.query.weight"].tensor[2].zero_();
    });
    for (const auto& treatment : {in_place(), placed()}) {
      const auto params = damaged.init(1, at::kDouble);
      DDCAdam optimizer(params, damaged.gauges(params), fast(), treatment);
      const double before = loss_of(damaged, params, damaged.batch(0, at::kDouble));
      for (uint64_t step = 0; step < 100; ++step) {
        backward(damaged, params, damaged.batch(step, at::kDouble));
        optimizer.step();
        ASSERT_TRUE(all_finite(params)) << name << " at step " << step;
      }
      EXPECT_LT(loss_of(damaged, params, damaged.batch(0, at::kDouble)), before) << name;
    }
  }
}

}  // namespace
}  // namespace ddc::tests
