#include "ddc/testbeds/sparse_parity.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "ddc/gauge/rescale.h"
#include "support.h"
#include "support/errors.h"

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

TEST(SparseParity, BadOptionsAreNamed) {
  expect_error([] { sparse_parity({.bits = 30}); }, {"bits", "30"});
  expect_error([] { sparse_parity({.bits = 4, .relevant = 5}); }, {"relevant", "bits (4)", "5"});
}

}  // namespace
}  // namespace ddc::testbeds
