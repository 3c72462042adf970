#include "ddc/testbeds/fashion_mnist.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "ddc/discover/gate.h"
#include "ddc/testbeds/runs.h"
#include "support/errors.h"
#include "support/idx_files.h"
#include "support/testbeds.h"

namespace ddc::testbeds {
namespace {

using tests::expect_error;
using tests::Folder;
using tests::gzipped;
using tests::idx_bytes;
using tests::write_images;

class FashionMnist : public testing::Test {
 protected:
  FashionMnist() {
    write_images(folder, "train", 60);
    write_images(folder, "t10k", 30);
  }

  FashionMnistOptions options() const {
    return {.data = folder.string(),
            .validation_samples = 0,
            .batch_size = 16,
            .patch = 4,
            .d_model = 16,
            .heads = 2,
            .d_ff = 24,
            .layers = 2,
            .gain_spread = 0.2,
            .bias_spread = 0.2};
  }

  Folder folder;
};

TEST_F(FashionMnist, ImagesAreCutIntoPatches) {
  auto small = options();
  const auto whole = fashion_mnist_split(small);
  ASSERT_EQ(whole.train.inputs.sizes(), at::IntArrayRef({60, 9, 16}));
  ASSERT_EQ(whole.validation.inputs.sizes(), at::IntArrayRef({30, 9, 16}));
  small.patch = 12;
  const auto images = fashion_mnist_split(small).train.inputs.view({60, 12, 12});
  // The second patch of the second row.
  EXPECT_TRUE(at::equal(whole.train.inputs.select(1, 4),
                        images.narrow(1, 4, 4).narrow(2, 4, 4).reshape({60, 16})));
  // The class is the bright column.
  EXPECT_TRUE(at::equal(images.sum(1).argmax(1), whole.train.targets));
}

TEST_F(FashionMnist, TrainingPixelsHaveMeanZeroAndVarianceOne) {
  const auto pixels = fashion_mnist_split(options()).train.inputs.to(at::kDouble);
  EXPECT_NEAR(pixels.mean().item<double>(), 0, 1e-6);
  EXPECT_NEAR(pixels.square().mean().item<double>(), 1, 1e-6);
}

TEST_F(FashionMnist, SubsetsAreTheFirstImages) {
  auto few = options();
  few.train_samples = 10;
  few.validation_samples = 5;
  const auto split = fashion_mnist_split(few);
  const auto all = fashion_mnist_split(options());
  EXPECT_TRUE(at::equal(split.train.targets, all.train.targets.narrow(0, 0, 10)));
  EXPECT_TRUE(at::equal(split.validation.targets, all.validation.targets.narrow(0, 0, 5)));
  // Batches are drawn from those alone, and are the same for the same seed.
  const auto bed = fashion_mnist(few);
  const auto batch = bed.batch(3, at::kFloat);
  ASSERT_EQ(batch.inputs.sizes(), at::IntArrayRef({16, 9, 16}));
  EXPECT_TRUE(at::equal(batch.inputs, bed.batch(3, at::kFloat).inputs));
  EXPECT_FALSE(at::equal(batch.inputs, bed.batch(4, at::kFloat).inputs));
  for (int64_t i = 0; i < 16; ++i) {
    const auto same = split.train.inputs.eq(batch.inputs[i]).flatten(1).all(1);
    EXPECT_TRUE(same.any().item<bool>()) << i;
  }
}

TEST_F(FashionMnist, GaugesPassTheGate) {
  for (const auto set : {GaugeSet::abelian, GaugeSet::rotations, GaugeSet::full}) {
    auto small = options();
    small.gauges = set;
    const auto bed = fashion_mnist(small);
    const auto params = bed.init(1, at::kDouble);
    const auto gauges = bed.gauges(params);
    for (const auto& gauge : gauges) {
      EXPECT_TRUE(gate(gauge, params, evaluation_of(bed, params)).passed) << gauge.name;
    }
    EXPECT_TRUE(gate(gauges, params, evaluation_of(bed, params)).passed);
  }
}

TEST_F(FashionMnist, CountsUnitsThatAreNeverActive) {
  const auto bed = fashion_mnist(options());
  const auto params = bed.init(1, at::kFloat);
  const at::NoGradGuard no_grad;
  at::Tensor(params["layers.0.mlp.up.bias"].tensor).fill_(1000);
  at::Tensor(params["layers.1.mlp.up.bias"].tensor).fill_(1000);
  EXPECT_EQ(bed.observe(params)["dead_relu"], 0);
  // What a norm gives is at most sqrt(16), so that no input can make up for this.
  at::Tensor(params["layers.0.mlp.up.bias"].tensor).narrow(0, 0, 7).fill_(-1000);
  EXPECT_EQ(bed.observe(params)["dead_relu"], 7);
  at::Tensor(params["layers.1.mlp.up.bias"].tensor).fill_(-1000);
  EXPECT_EQ(bed.observe(params)["dead_relu"], 7 + 24);
}

TEST_F(FashionMnist, CountsUnitsWithoutEffectWhateverTheirScale) {
  const auto bed = fashion_mnist(options());
  const auto params = bed.init(1, at::kFloat);
  EXPECT_EQ(bed.observe(params)["gate_dead"], 0);
  const at::NoGradGuard no_grad;
  at::Tensor(params["layers.0.mlp.down.weight"].tensor).narrow(1, 0, 5).mul_(1e-6);
  EXPECT_EQ(bed.observe(params)["gate_dead"], 5);
  // As strong as before: twice the input is four times the output of a squared ReLU.
  at::Tensor(params["layers.0.mlp.up.weight"].tensor).narrow(0, 0, 5).mul_(1e3);
  at::Tensor(params["layers.0.mlp.up.bias"].tensor).narrow(0, 0, 5).mul_(1e3);
  EXPECT_EQ(bed.observe(params)["gate_dead"], 0);
}

TEST_F(FashionMnist, LearnsWhatTheImagesShow) {
  const auto bed = fashion_mnist(options());
  const auto params = bed.init(1, at::kFloat);
  const auto before = bed.observe(params);
  drift(bed, params, {}, adamw(3e-3, 0.01), {.steps = 150});
  auto after = bed.observe(params);
  EXPECT_LT(before.at("train_accuracy"), 0.5);
  EXPECT_EQ(after["train_accuracy"], 1);
  EXPECT_GT(after["validation_accuracy"], 0.9);
  EXPECT_LT(after["validation_loss"], before.at("validation_loss") / 2);
  EXPECT_DOUBLE_EQ(after["gap"], after["validation_loss"] - after["train_loss"]);
}

TEST_F(FashionMnist, MissingFilesSayWhatToInstall) {
  const std::string hint = "apt-get install dataset-fashion-mnist";
  expect_error([] { fashion_mnist({.data = "/nowhere"}); },
               {"/nowhere/train-images-idx3-ubyte.gz", hint, "--set data="});
  std::filesystem::remove(folder / "t10k-labels-idx1-ubyte.gz");
  expect_error([&] { check_images(options()); }, {"t10k-labels-idx1-ubyte.gz", hint});
}

TEST_F(FashionMnist, PartsThatDoNotFitTogetherAreNamed) {
  const auto labels = [&](const std::string& bytes) {
    const auto count = static_cast<uint32_t>(bytes.size());
    folder.write("t10k-labels-idx1-ubyte.gz", gzipped(folder, idx_bytes({count}, bytes)));
  };
  labels("12345");
  expect_error([&] { fashion_mnist(options()); },
               {"t10k-images-idx3-ubyte.gz", "30 images", "t10k-labels", "5 labels"});
  labels(std::string(30, '\x0b'));
  expect_error([&] { fashion_mnist(options()); }, {"t10k-labels", "label 11", "10 classes"});
  labels(std::string(30, '\1'));
  folder.write("t10k-images-idx3-ubyte.gz",
               gzipped(folder, idx_bytes({30, 2, 3}, std::string(180, 'x'))));
  expect_error([&] { fashion_mnist(options()); }, {"t10k-images", "not square"});
  folder.write("t10k-images-idx3-ubyte.gz",
               gzipped(folder, idx_bytes({30, 4, 4}, std::string(480, 'x'))));
  expect_error([&] { fashion_mnist(options()); }, {"train-images", "another size", "t10k-images"});
}

TEST_F(FashionMnist, BadOptionsAreNamed) {
  auto bad = options();
  bad.train_samples = 61;
  expect_error([&] { fashion_mnist(bad); }, {"train_samples", "60", "61"});
  bad = options();
  bad.patch = 5;
  expect_error([&] { fashion_mnist(bad); }, {"patch", "12", "5"});
  bad = options();
  bad.batch_size = 0;
  expect_error([&] { fashion_mnist(bad); }, {"batch_size", "0"});
}

}  // namespace
}  // namespace ddc::testbeds
