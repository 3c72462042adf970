#include "ddc/testbeds/null_space.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <ostream>

#include "ddc/testbeds/blocks.h"
#include "ddc/testbeds/diagonal_network.h"
#include "ddc/testbeds/mlp.h"
#include "ddc/testbeds/teacher_student.h"
#include "support.h"
#include "support/errors.h"

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

// The blocks. The counts are sums over the symmetries that are known, at one point of each network.
// That they come out says that no more directions are null there; which ones those are is checked
// for the listed gauges alone. Heads have the size 4 and norms 8 channels throughout.

struct Block {
  std::string name;
  Testbed bed;
  /// Picked for its ReLUs: none is dead, nor active so seldom that the inputs do not tell all its
  /// weights apart. Most seeds of the ViT block have such units, and a larger null space for it.
  uint64_t seed;
  int64_t dimension;
};

void PrintTo(const Block& block, std::ostream* out) { *out << block.name; }

/// All the linear maps of a head's four coordinates, and the rotations of the residual stream: all
/// of them, or those that keep the mean over channels.
constexpr int64_t linear_group = 4 * 4;
constexpr int64_t rotations = 8 * 7 / 2;
constexpr int64_t mean_keeping_rotations = 7 * 6 / 2;
/// Gain and shift of a LayerNorm: both can be taken over by the readers.
constexpr int64_t layer_norm = 8 + 8;

/// Three norms, SwiGLU units, unembedding rows; one key head with two planes, each of which can be
/// scaled and turned.
constexpr int64_t rms_fixed = 3 * 8 + 10 + 8 + 2 * 2 + linear_group;

/// What every attention with biases has: linear groups on queries and keys and on values of both
/// heads, the key bias, the value bias against the output bias, means of the output projection and
/// its bias, and one column per row of query, key and value that the mean-free norm does not see.
constexpr int64_t attention = 4 * linear_group + 8 + 8 + (8 + 1) + 3 * 8;
/// Rescaling, means of the down projection and its bias, columns of the up projection.
constexpr int64_t feed_forward = 10 + (10 + 1) + 10;
/// Row and bias shift, columns that the norm does not see; one is counted twice.
constexpr int64_t unembedding(int64_t classes) { return 8 + 1 + classes - 1; }

constexpr int64_t layer_norm_fixed =
    4 * layer_norm + attention + 2 * feed_forward + unembedding(11);
/// Means of tokens and positions, and their exchange; one is counted twice.
constexpr int64_t layer_norm_learned = 11 + 6 + 8 - 1 + mean_keeping_rotations;

/// Per head one plane that can be scaled and turned, and the linear group of the two coordinates
/// that pass through. There are no biases in attention, but the shift of the norm acts as one: keys
/// and values get columns back where a constant key is not seen (two coordinates per head) and
/// where a constant value can be taken over by the bias of the down projection.
constexpr int64_t gpt_j_fixed = 2 * layer_norm + 2 * (2 + 2 * 2) + 2 * linear_group + 8 +
                                (2 * 2 + 8) + feed_forward + unembedding(32);
constexpr int64_t gpt_j_learned = 32 + mean_keeping_rotations;

constexpr int64_t vit_fixed = 5 * layer_norm + 2 * attention + 2 * feed_forward + unembedding(10);
/// Means of patch embedding, its bias, class token and positions; two exchanges; two are counted
/// twice.
constexpr int64_t vit_learned = (6 + 1 + 1 + 5) + 2 * 8 - 2 + mean_keeping_rotations;

std::vector<Block> blocks() {
  std::vector<Block> result;
  for (const bool fixed : {false, true}) {
    // A large eps, or the scale of the residual stream would be all but null.
    const double eps = 0.1;
    const auto add = [&](const std::string& name, const Testbed& bed, uint64_t seed,
                         int64_t if_fixed, int64_t if_learned) {
      result.push_back(
          {name + (fixed ? "Fixed" : ""), bed, seed, fixed ? if_fixed : if_fixed + if_learned});
    };
    add("LayerNormBlock",
        layer_norm_block(
            {.d_model = 8, .heads = 2, .d_ff = 10, .fixed_embedding = fixed, .norm_eps = eps}),
        1, layer_norm_fixed, layer_norm_learned);
    add("RmsNormBlock",
        rms_norm_block({.d_model = 8,
                        .heads = 2,
                        .kv_heads = 1,
                        .d_ff = 10,
                        .fixed_embedding = fixed,
                        .norm_eps = eps}),
        1, rms_fixed, rotations);
    // The feed-forward part sees nothing but single tokens here: it takes many to tell its units
    // apart.
    add("GptJBlock",
        gpt_j_block({.vocabulary = 32,
                     .d_model = 8,
                     .heads = 2,
                     .rotary_size = 2,
                     .d_ff = 10,
                     .batch_size = 16,
                     .fixed_embedding = fixed,
                     .norm_eps = eps}),
        1, gpt_j_fixed, gpt_j_learned);
    add("VitBlock",
        vit_block({.d_model = 8,
                   .heads = 2,
                   .d_ff = 10,
                   .batch_size = 64,
                   .fixed_embedding = fixed,
                   .norm_eps = eps}),
        fixed ? 1 : 3, vit_fixed, vit_learned);
  }
  return result;
}

class NullSpaceOfBlock : public testing::TestWithParam<Block> {};

INSTANTIATE_TEST_SUITE_P(All, NullSpaceOfBlock, testing::ValuesIn(blocks()),
                         [](const auto& instance) { return instance.param.name; });

TEST_P(NullSpaceOfBlock, IsAllKnownAndHoldsTheGauges) {
  const auto& [name, bed, seed, dimension] = GetParam();
  const auto params = bed.init(seed, at::kDouble);
  const auto space = null_space(bed, params);
  EXPECT_GT(space.gap, clear_gap);
  EXPECT_EQ(space.dimension, dimension);
  EXPECT_LE(distance_from(space, tangents(bed.gauges(params), params)), 1e-9);
  for (const auto& [tensor_name, tensor] : params) {
    if (!tensor_name.ends_with("mlp.up.weight")) continue;
    EXPECT_EQ(dead_units(space, params, tensor_name), 0) << tensor_name;
  }
}

}  // namespace
}  // namespace ddc::testbeds
