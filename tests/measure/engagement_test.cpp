#include "ddc/measure/engagement.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <iostream>

#include "ddc/testbeds/blocks.h"
#include "support/errors.h"
#include "support/testbeds.h"

namespace ddc {
namespace {

using testbeds::GaugeSet;
using testbeds::Testbed;
using tests::expect_error;

Evaluate loss_of(const Testbed& bed, const Parameters& params, at::ScalarType type = at::kDouble) {
  return [=](uint64_t number) { return Evaluation(bed.loss(params, bed.batch(number, type))); };
}

Testbed block(GaugeSet set) {
  return testbeds::layer_norm_block({.d_model = 8, .heads = 2, .d_ff = 6, .gauges = set});
}

/// The same bits, and no gradients.
void expect_untouched(const Parameters& params, const Parameters& before) {
  for (const auto& [name, tensor] : params) {
    EXPECT_TRUE(at::equal(tensor.view(at::kLong), before[name].tensor.view(at::kLong))) << name;
    EXPECT_FALSE(tensor.grad().defined()) << name;
  }
}

TEST(Engagement, AdamWMovesGaugeCoordinatesAndDdcDoesNot) {
  const auto bed = block(GaugeSet::with_residual_rotation);
  const auto params = bed.init(1, at::kDouble);
  const auto before = params.clone();
  const auto gauges = bed.gauges(params);
  const auto found = engagement(gauges, params, loss_of(bed, params));
  const auto slower = engagement(gauges, params, loss_of(bed, params), {.lr = 1e-4});
  ASSERT_EQ(found.size(), gauges.size());
  for (size_t k = 0; k < gauges.size(); ++k) {
    const auto& [plain, lifted, engaged] = found[k];
    std::cout << gauges[k].name << " (" << to_string(gauges[k].action) << "): AdamW " << plain
              << ", DDCAdam " << lifted << "\n";
    EXPECT_TRUE(engaged) << gauges[k].name;
    EXPECT_GT(plain, 1e-4) << gauges[k].name;
    if (!gauges[k].mixes()) {
      EXPECT_LT(lifted, 1e-9) << gauges[k].name;
      continue;
    }
    // Steps without a part along the orbit turn weights by the square of their length, others by the
    // length.
    EXPECT_LT(lifted, 1e-3 * plain) << gauges[k].name;
    EXPECT_LT(slower[k].lifted, 0.03 * lifted) << gauges[k].name;
    EXPECT_GT(slower[k].plain, 0.03 * plain) << gauges[k].name;
  }
  expect_untouched(params, before);
}

/// Softmax does not see a bias of the keys. With a gauge that hands it the norm's shift it would be the
/// effective bias that is looked at, which moves.
TEST(Engagement, WhatAdamWDoesNotMoveIsNotEngaged) {
  const auto bed = block(GaugeSet::full);
  const auto params = bed.init(1, at::kDouble);
  const auto gauges = bed.gauges(params);
  const std::vector<Gauge> alone{testbeds::gauge_called(gauges, "layers.0.attention.key.bias:null"),
                                 testbeds::gauge_called(gauges, "layers.0.mlp.up.weight:rescale")};
  const auto found = engagement(alone, params, loss_of(bed, params));
  EXPECT_FALSE(found[0].engaged) << found[0].plain;
  EXPECT_LT(found[0].plain, 1e-10);
  EXPECT_TRUE(found[1].engaged) << found[1].plain;
}

TEST(Engagement, OfFloatModelsIsSeenThroughTheirRounding) {
  const auto bed = block(GaugeSet::abelian);
  const auto params = bed.init(1, at::kFloat);
  const auto gauges = bed.gauges(params);
  const auto found = engagement(gauges, params, loss_of(bed, params, at::kFloat));
  for (size_t k = 0; k < gauges.size(); ++k) {
    EXPECT_TRUE(found[k].engaged) << gauges[k].name;
    EXPECT_LT(found[k].lifted, 1e-6) << gauges[k].name;
  }
}

TEST(Engagement, BringsParametersBackIfABatchFails) {
  const auto bed = block(GaugeSet::abelian);
  const auto params = bed.init(1, at::kDouble);
  const auto before = params.clone();
  const auto good = loss_of(bed, params);
  const auto gauges = bed.gauges(params);
  int calls = 0;
  // In the middle of the first run, then of the second.
  for (const int last : {3, 14}) {
    calls = 0;
    bool moved = false;
    const Evaluate failing = [&](uint64_t batch) {
      if (++calls == last) {
        moved = !at::equal(params["embedding.weight"].tensor, before["embedding.weight"].tensor);
        TORCH_CHECK(false, "out of data");
      }
      return good(batch);
    };
    expect_error([&] { engagement(gauges, params, failing); }, {"out of data"});
    EXPECT_TRUE(moved);
    expect_untouched(params, before);
  }
  expect_error(
      [&] {
        engagement(gauges, params, [&](uint64_t batch) {
          return Evaluation(good(batch).loss * (batch == 2 ? NAN : 1.0));
        });
      },
      {"batch 2", "NaN"});
  expect_untouched(params, before);
}

TEST(Engagement, LeavesGradientsOfTheCallerAlone) {
  const auto bed = block(GaugeSet::abelian);
  const auto params = bed.init(1, at::kDouble);
  const auto& weight = params["embedding.weight"].tensor;
  weight.mutable_grad() = at::full_like(weight, 7);
  engagement(bed.gauges(params), params, loss_of(bed, params));
  EXPECT_TRUE(at::equal(weight.grad(), at::full_like(weight, 7)));
  EXPECT_FALSE(params["unembedding.weight"].tensor.grad().defined());
}

TEST(Engagement, FrozenAndTiedParametersAreNotSteppedOrSteppedOnce) {
  const auto bed = block(GaugeSet::abelian);
  const auto own = bed.init(1, at::kDouble);
  Parameters params(std::vector<NamedTensor>(own.begin(), own.end()));
  params.add("again", own["embedding.weight"].tensor);
  const auto gauges = bed.gauges(own);
  const auto expected = engagement(gauges, own, loss_of(bed, own));
  const auto found = engagement(gauges, params, loss_of(bed, own));
  for (size_t k = 0; k < gauges.size(); ++k) {
    EXPECT_EQ(found[k].plain, expected[k].plain) << gauges[k].name;
  }
  for (const auto& [name, tensor] : own)
    at::Tensor(tensor).requires_grad_(name == "unembedding.bias");
  for (const auto& each : engagement(gauges, own, loss_of(bed, own))) {
    EXPECT_EQ(each.engaged, each.plain > 0);
    EXPECT_LT(each.lifted, 1e-9);
  }
}

TEST(Engagement, NeedsAStep) {
  const auto bed = block(GaugeSet::abelian);
  const auto params = bed.init(1, at::kDouble);
  expect_error([&] { engagement(bed.gauges(params), params, loss_of(bed, params), {.steps = 0}); },
               {"steps", "at least 1", "0"});
}

}  // namespace
}  // namespace ddc
