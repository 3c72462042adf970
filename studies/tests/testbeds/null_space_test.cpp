#include "ddc/testbeds/null_space.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "ddc/testbeds/blocks.h"
#include "ddc/testbeds/diagonal_network.h"
#include "ddc/testbeds/mlp.h"
#include "ddc/testbeds/teacher_student.h"
#include "support/errors.h"
#include "support/testbeds.h"

namespace ddc::testbeds {
namespace {

using tests::expect_error;

/// Between what is null and what is not, or the rank is not to be trusted.
constexpr double clear_gap = 1e3;

const NullSpaceOptions raw{.log_softmax = false};

/// y = B A x, with three hidden units between five inputs and four outputs.
Testbed two_linear_layers() {
  Testbed bed;
  bed.init = [](uint64_t seed, at::ScalarType dtype) {
    Parameters params;
    params.add("a", at::randn({3, 5}, test_generator(seed), dtype).requires_grad_());
    params.add("b", at::randn({4, 3}, test_generator(seed + 1), dtype).requires_grad_());
    return params;
  };
  bed.batch = [](uint64_t seed, at::ScalarType dtype) {
    return Batch{at::randn({8, 5}, test_generator(seed), dtype), {}};
  };
  bed.outputs = [](const Parameters& params, const at::Tensor& inputs) {
    return inputs.matmul(params["a"].tensor.t()).matmul(params["b"].tensor.t());
  };
  return bed;
}

TEST(NullSpace, OfTwoLinearLayersIsTheLinearGroupOfTheHiddenUnits) {
  const auto bed = two_linear_layers();
  const auto params = bed.init(1, at::kDouble);
  const auto space = null_space(bed, params, raw);
  EXPECT_EQ(space.parameters, 15 + 12);
  EXPECT_EQ(space.dimension, 9);
  EXPECT_EQ(space.rank, 18);
  EXPECT_GT(space.gap, 1e9);
  // a -> (1 + M) a, b -> b (1 - M), for any M; and not with the same sign.
  const auto generator = at::randn({3, 3}, test_generator(5), at::kDouble);
  const auto in = generator.matmul(params["a"].tensor).flatten();
  const auto out = params["b"].tensor.matmul(generator).flatten();
  EXPECT_LE(distance_from(space, at::cat({in, -out}).unsqueeze(1)), 1e-12);
  EXPECT_GT(distance_from(space, at::cat({in, out}).unsqueeze(1)), 0.1);
}

TEST(NullSpace, BasisIsOrthonormal) {
  const auto bed = two_linear_layers();
  const auto space = null_space(bed, bed.init(1, at::kDouble), raw);
  EXPECT_TRUE(at::allclose(space.basis.t().matmul(space.basis), at::eye(9, at::kDouble), 0, 1e-12));
}

TEST(NullSpace, OfAReluNetworkHasOneDirectionPerHiddenUnit) {
  const auto bed = relu_teacher_student({.d_in = 4, .d_hidden = 6, .d_out = 3});
  const auto params = bed.init(1, at::kDouble);
  const auto space = null_space(bed, params, raw);
  EXPECT_EQ(space.dimension, 6);
  EXPECT_GT(space.gap, clear_gap);
  const auto gauges = relu_teacher_student({.d_in = 4, .d_hidden = 6, .per_channel = true});
  EXPECT_LE(distance_from(space, tangents(gauges.gauges(params), params)), 1e-10);
}

TEST(NullSpace, OfADiagonalNetworkHasOneDirectionPerCoordinate) {
  const auto bed = diagonal_network({.dimension = 12, .samples = 64});
  const auto params = bed.init(1, at::kDouble);
  const auto space = null_space(bed, params, raw);
  EXPECT_EQ(space.dimension, 12);
  EXPECT_LE(distance_from(space, tangents(bed.gauges(params), params)), 1e-10);
}

TEST(NullSpace, OfANetworkWithoutGaugesIsEmpty) {
  auto bed = two_linear_layers();
  bed.outputs = [](const Parameters& params, const at::Tensor& inputs) {
    return at::cat({inputs.matmul(params["a"].tensor.t()),
                    inputs.narrow(1, 0, 3).matmul(params["b"].tensor.t())},
                   1);
  };
  const auto space = null_space(bed, bed.init(1, at::kDouble), raw);
  EXPECT_EQ(space.rank, space.parameters);
  EXPECT_EQ(space.basis.size(1), 0);
  EXPECT_GT(space.gap, clear_gap);
}

TEST(NullSpace, DeadUnitsAreCounted) {
  const auto bed = relu_chain({.depth = 2, .d_in = 4, .d_hidden = 6, .d_out = 3});
  const auto params = bed.init(1, at::kDouble);
  const auto alive = null_space(bed, params, raw);
  EXPECT_EQ(dead_units(alive, params, "layers.0.weight"), 0);
  EXPECT_EQ(alive.dimension, 6);
  {
    const at::NoGradGuard no_grad;
    params["layers.0.bias"].tensor[2].fill_(-100);
  }
  const auto space = null_space(bed, params, raw);
  EXPECT_EQ(dead_units(space, params, "layers.0.weight"), 1);
  // All that enters and leaves the dead unit is null, in place of its one scale.
  EXPECT_EQ(space.dimension, 5 + (4 + 1 + 3));
}

TEST(NullSpace, TooFewRowsAreAnError) {
  const auto bed = two_linear_layers();
  expect_error([&] { null_space(bed, bed.init(1, at::kDouble), {.batches = 0}); },
               {"0 rows", "27 parameters"});
}

// The blocks whose bound gauges span the null space are in structural_null_space_test.cpp. Here is the
// one with directions that belong to no gauge of the library; they are counted.

/// One parallel layer with heads of size 4, of which 2 coordinates are rotary, and 8 channels.
struct GptJCount {
  /// Gains and shifts of two norms. The shift of the layer's norm is not bound: attention has no biases
  /// that could take it up.
  int64_t norms = 2 * (8 + 8);
  /// Per head one plane that can be scaled and turned, and the linear group of the two coordinates that
  /// pass through; all of the value heads' linear groups.
  int64_t heads = 2 * (2 + 2 * 2) + 2 * 4 * 4;
  /// Means of the output projection.
  int64_t output_means = 8;
  /// The shift of the norm acts as a bias of keys and values. Keys and values get columns back where a
  /// constant key is not seen (two coordinates per head) and where a constant value can be taken over by
  /// the bias of the down projection. Not bound either.
  int64_t columns = 2 * 2 + 8;
  /// Rescaling, means of the down projection and its bias, columns of the up projection.
  int64_t feed_forward = 10 + (10 + 1) + 10;
  /// Row and bias shift, columns that the norm does not see; one is counted twice.
  int64_t unembedding = 8 + 1 + 32 - 1;
  /// Means of tokens, and the rotations of the residual stream that keep the mean. These are not bound
  /// where a norm has a reader without a bias.
  int64_t learned_embedding = 32 + 7 * 6 / 2;

  int64_t if_fixed() const {
    return norms + heads + output_means + columns + feed_forward + unembedding;
  }
};

TEST(NullSpace, OfTheGptJBlockIsAllKnownAndHoldsTheGauges) {
  for (const bool fixed : {true, false}) {
    // A large eps, or the scale of the residual stream would be all but null. The feed-forward part
    // sees nothing but single tokens here: it takes many to tell its units apart.
    const auto bed = gpt_j_block({.vocabulary = 32,
                                  .d_model = 8,
                                  .heads = 2,
                                  .rotary_size = 2,
                                  .d_ff = 10,
                                  .batch_size = 16,
                                  .fixed_embedding = fixed,
                                  .norm_eps = 0.1,
                                  .gauges = GaugeSet::full});
    const auto params = bed.init(1, at::kDouble);
    const auto space = null_space(bed, params);
    const GptJCount count;
    EXPECT_GT(space.gap, clear_gap);
    EXPECT_EQ(space.dimension, count.if_fixed() + (fixed ? 0 : count.learned_embedding));
    EXPECT_EQ(dead_units(space, params, "layers.0.mlp.up.weight"), 0);
    for (const auto& gauge : bed.gauges(params)) {
      EXPECT_LE(distance_from(space, orbit_tangents(gauge, params).t()), 1e-9) << gauge.name;
    }
  }
}

}  // namespace
}  // namespace ddc::testbeds
