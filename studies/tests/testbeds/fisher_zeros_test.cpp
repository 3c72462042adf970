// The zeros of the Fisher matrix of the testbeds that learn from data of their own, in small: directions of the group,
// axes that nothing depends on, and what is left, with its cause.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "ddc/discover/discover.h"
#include "ddc/geometry/curvature.h"
#include "ddc/testbeds/fashion_mnist.h"
#include "ddc/testbeds/language_model.h"
#include "ddc/testbeds/modular_addition.h"
#include "ddc/testbeds/rope_grokking.h"
#include "support/folder.h"
#include "support/idx_files.h"

namespace ddc::testbeds {
namespace {

/// The spectrum modulo the group that discovery finds. Logits are made small: of a row that is certain the Fisher
/// matrix keeps nothing that rounding leaves.
Spectrum modulo_discovered(const Testbed& bed, int64_t batches) {
  const auto params = bed.init(/*seed=*/1, at::kDouble);
  {
    const at::NoGradGuard no_grad;
    params["unembedding.weight"].tensor.mul_(0.1);
  }
  const Evaluate evaluate = [&](uint64_t number) {
    const auto batch = bed.batch(number + 1, at::kDouble);
    const auto outputs = bed.traced(params, batch.inputs, {});
    return Evaluation(bed.criterion(outputs, batch.targets), outputs);
  };
  const Curvature fisher(params, evaluate, {.batches = batches});
  const auto orbits = orbit_space(discover(params, evaluate).gauges(), params, fisher);
  auto found = spectrum(fisher, orbits);
  EXPECT_EQ(found.method, "dense");
  // Images of tangents of length one.
  for (int64_t k = 0; k < orbits.dimension; ++k) {
    const auto image = fisher.product(orbits.basis.select(1, k).contiguous());
    EXPECT_LE(image.norm().item<double>(), 1e-14 * std::max(1.0, found.largest.value)) << k;
  }
  return found;
}

int64_t removed_by(const Spectrum& spectrum, const std::string& name) {
  for (const auto& [gauge, count] : spectrum.removed_by) {
    if (gauge == name) return count;
  }
  return 0;
}

/// Numbers below `end` that have no pattern.
class Numbers {
 public:
  uint64_t below(uint64_t end) {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return (state_ >> 33) % end;
  }

 private:
  uint64_t state_ = 1;
};

TEST(FisherZeros, OfRopeGrokkingAreTheGroupWhereThereAreBatchesEnough) {
  const auto bed = rope_grokking({.modulus = 5,
                                  .train_fraction = 0.9,
                                  .sequence = 8,
                                  .batch_size = 32,
                                  .d_model = 4,
                                  .heads = 2,
                                  .d_ff = 6,
                                  .layers = 2});
  EXPECT_EQ(modulo_discovered(bed, 8).zeros, 0);
  // One batch does not tell all weights apart.
  EXPECT_GT(modulo_discovered(bed, 1).zeros, 0);
}

TEST(FisherZeros, OfFashionMnistInOneLayerAreMostlyInTheQuery) {
  const tests::Folder folder;
  for (const auto& [part, count] : {std::pair<std::string, uint32_t>("train", 240),
                                    std::pair<std::string, uint32_t>("t10k", 12)}) {
    Numbers numbers;
    std::string images;
    std::string labels;
    for (uint32_t k = 0; k < count * 144; ++k) images += static_cast<char>(numbers.below(256));
    for (uint32_t k = 0; k < count; ++k) labels += static_cast<char>(numbers.below(10));
    folder.write(part + "-images-idx3-ubyte.gz",
                 tests::gzipped(folder, tests::idx_bytes({count, 12, 12}, images)));
    folder.write(part + "-labels-idx1-ubyte.gz",
                 tests::gzipped(folder, tests::idx_bytes({count}, labels)));
  }
  const FashionMnistOptions options{.data = folder.string(),
                                    .validation_samples = 0,
                                    .batch_size = 40,
                                    .patch = 4,
                                    .d_model = 4,
                                    .heads = 2,
                                    .d_ff = 6,
                                    .layers = 1,
                                    .gain_spread = 0.2,
                                    .bias_spread = 0.2};
  // The only query that is read is that of the class token, which is the same for all images.
  const auto single = modulo_discovered(fashion_mnist(options), 12);
  EXPECT_GT(single.zeros, 0);
  EXPECT_EQ(single.zeros_in.front().first, "layers.0.attention.query.weight");
}

TEST(FisherZeros, OfTheLanguageModelAreTheGroupAndTheScaleThatNormsSeeByTheirEps) {
  const tests::Folder folder;
  Numbers numbers;
  std::string text;
  for (int64_t k = 0; k < 4000; ++k) text += static_cast<char>('a' + numbers.below(5));
  const auto bed = language_model({.text = folder.write("text.txt", text),
                                   .sequence = 8,
                                   .batch_size = 8,
                                   .d_model = 4,
                                   .heads = 2,
                                   .kv_heads = 1,
                                   .d_ff = 6,
                                   .layers = 1,
                                   .observed_windows = 2,
                                   .gain_spread = 0.3});
  const auto found = modulo_discovered(bed, 8);
  EXPECT_EQ(found.dead, 0);
  // The scale of the residual stream lies mostly in the embedding, as in the Llama of docs/results/geometry.md.
  EXPECT_EQ(found.zeros, 1);
  EXPECT_EQ(found.zeros_in.front().first, "embedding.weight");
  EXPECT_GT(found.zeros_in.front().second, 0.5);
}

Spectrum of_addition(int64_t modulus, bool attention_biases, bool equals_sign = false) {
  return modulo_discovered(modular_addition({.modulus = modulus,
                                             .train_fraction = 0.97,
                                             .d_model = 4,
                                             .heads = 2,
                                             .d_ff = 6,
                                             .equals_sign = equals_sign,
                                             .attention_biases = attention_biases,
                                             .gain_spread = 0.3,
                                             .bias_spread = 0.3}),
                           /*batches=*/1);
}

/// Zeros are left that no gauge has. They are the network's and not the data's: with four times the pairs (1170 and
/// 10260 outputs, for 238 parameters at modulus 11) there are as many. Some are known: without biases in attention the
/// rotation of the residual stream cannot be bound, and is left. Of the others the cause is not known.
TEST(FisherZeros, OfModularAdditionAreAsManyWithFourTimesTheData) {
  for (const bool biases : {false, true}) {
    const auto few = of_addition(11, biases);
    const auto many = of_addition(23, biases);
    EXPECT_GT(many.samples, 4 * few.samples);
    EXPECT_EQ(few.zeros, many.zeros);
    EXPECT_EQ(few.zeros, biases ? 7 : 18);
    EXPECT_EQ(removed_by(few, "residual:rotation"), biases ? 3 : 0);
    // The row of the embedding that is kept for the equals sign.
    EXPECT_EQ(few.dead, 4);
  }
}

/// Here it is the data: with an equals sign all sequences end alike, and queries are read of that one vector.
TEST(FisherZeros, OfModularAdditionAreMoreWhereAllSequencesEndAlike) {
  EXPECT_GT(*of_addition(11, false, /*equals_sign=*/true).zeros, *of_addition(11, false).zeros);
}

}  // namespace
}  // namespace ddc::testbeds
