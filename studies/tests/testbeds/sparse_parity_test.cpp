#include "ddc/testbeds/sparse_parity.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "ddc/discover/gate.h"
#include "ddc/gauge/rescale.h"
#include "support/errors.h"
#include "support/testbeds.h"

namespace ddc::testbeds {
namespace {

using tests::expect_error;

TEST(SparseParity, EnumeratesAllInputsOnce) {
  const auto batch = sparse_parity().batch(0, at::kFloat);
  ASSERT_EQ(batch.inputs.sizes(), at::IntArrayRef({1024, 10}));
  EXPECT_EQ(std::get<0>(at::unique_dim(batch.inputs, 0)).size(0), 1024);
  EXPECT_EQ(batch.inputs.sum().item<double>(), 0);
}

TEST(SparseParity, TargetIsTheProductOfTheFirstThreeSigns) {
  const auto batch = sparse_parity().batch(0, at::kFloat);
  const auto& x = batch.inputs;
  EXPECT_TRUE(at::equal(batch.targets, x.select(1, 0) * x.select(1, 1) * x.select(1, 2)));
}

TEST(SparseParity, InternalNormBreaksTheReluRescale) {
  const auto bed = sparse_parity({.d_hidden = 32});
  const auto params = bed.init(1, at::kDouble);
  const auto wrong =
      relu_rescale({.in = params["hidden.weight"], .out = {params["readout.weight"]}});
  EXPECT_GT(loss_change(bed, {wrong}, params, bed.batch(0, at::kDouble)), 1e-4);
}

TEST(SparseParity, GateClearsTheNormScaleAndRefusesTheReluRescale) {
  for (const bool offset : {false, true}) {
    const auto bed = sparse_parity({.d_hidden = 32, .gain_is_offset = offset});
    const auto params = bed.init(1, at::kDouble);
    const auto evaluate = evaluation_of(bed, params);
    EXPECT_TRUE(gate(bed.gauges(params), params, evaluate).passed);
    const auto rescale = relu_rescale({.in = params["hidden.weight"],
                                       .in_bias = params["hidden.bias"],
                                       .out = {params["readout.weight"]}});
    const auto verdict = gate(rescale, params, evaluate);
    EXPECT_FALSE(verdict.passed);
    EXPECT_GT(verdict.residual, 1e-3);
  }
}

TEST(SparseParity, GainStoredAsOffsetIsTheSameNetwork) {
  const auto plain = sparse_parity({.d_hidden = 16});
  const auto offset = sparse_parity({.d_hidden = 16, .gain_is_offset = true});
  const auto batch = plain.batch(0, at::kDouble);
  EXPECT_DOUBLE_EQ(plain.loss(plain.init(3, at::kDouble), batch).item<double>(),
                   offset.loss(offset.init(3, at::kDouble), batch).item<double>());
}

TEST(SparseParity, ObservesDeadChannels) {
  const auto bed = sparse_parity({.d_hidden = 16});
  const auto params = bed.init(3, at::kDouble);
  const double before = bed.observe(params).at("dead_units");
  {
    const at::NoGradGuard no_grad;
    params["norm.weight"].tensor.narrow(0, 0, 5).zero_();
  }
  EXPECT_EQ(before, 0);
  EXPECT_EQ(bed.observe(params).at("dead_units"), 5);
}

TEST(SparseParity, BadOptionsAreNamed) {
  expect_error([] { sparse_parity({.bits = 30}); }, {"bits", "30"});
  expect_error([] { sparse_parity({.bits = 4, .relevant = 5}); }, {"relevant", "bits (4)", "5"});
}

}  // namespace
}  // namespace ddc::testbeds
