#pragma once

#include <string>

#include "ddc/testbeds/testbed.h"

namespace ddc::testbeds {

/// The network of the paper's compression study (appendix "Compression on a from-scratch vision
/// transformer"), small, on Fashion-MNIST: square patches of the images are embedded linearly, a class
/// token is put before them and positions are added; pre-LayerNorm layers with biases everywhere and a
/// squared ReLU, wide enough that weight decay can prune units; logits are read from the class token after
/// a final norm.
struct FashionMnistOptions {
  /// The folder of train-images-idx3-ubyte.gz and the three others, which may as well be those of MNIST.
  std::string data = "/usr/share/datasets/fashion-mnist";
  /// The first so many images of either part; 0: all.
  int64_t train_samples = 0;
  int64_t validation_samples = 2000;
  int64_t batch_size = 64;
  /// Pixels that a side of a patch has: a divisor of 28, the side of an image.
  int64_t patch = 7;
  int64_t d_model = 64;
  int64_t heads = 4;
  int64_t d_ff = 256;
  int64_t layers = 3;
  /// How many of the first training images `observe` looks at, at most.
  int64_t observed_samples = 1000;
  /// Standard deviation of gains (about 1) and of shifts and biases (about 0) at the start.
  double gain_spread = 0;
  double bias_spread = 0;
  GaugeSet gauges = GaugeSet::abelian;
};

/// Batches are drawn with replacement. Observed: "train_loss", "train_accuracy", "validation_loss",
/// "validation_accuracy", "gap" (of the losses, validation less train), and on the training images
///  - "dead_relu": hidden units, of all layers, that never get a positive input. (Those of the last layer
///    see the class token alone.)
///  - "gate_dead": hidden units whose joint norm |in|^2 |out|, which no rescale changes, is below 1e-3
///  - "sigma_min" and "effective_rank" of what the class token has become after the last layer.
/// Throws, saying what to install, if there are no images.
Testbed fashion_mnist(const FashionMnistOptions& options = {});

/// Throws, saying what to install, unless the four files are there.
void check_images(const FashionMnistOptions& options);

/// Images as [samples, patches, pixels of a patch], of mean 0 and variance 1 over the training images, in
/// float32; and their classes.
struct FashionMnistSplit {
  Batch train;
  Batch validation;
};
FashionMnistSplit fashion_mnist_split(const FashionMnistOptions& options = {});

}  // namespace ddc::testbeds
