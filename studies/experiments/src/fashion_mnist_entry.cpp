#include "ddc/testbeds/fashion_mnist.h"
#include "entries.h"

namespace ddc::testbeds {

OptionList options_of(FashionMnistOptions& options) {
  return {{"data", options.data, "the folder of the idx.gz files"},
          {"train_samples", options.train_samples, "images to train on; 0: all"},
          {"validation_samples", options.validation_samples, "images to validate on; 0: all"},
          {"batch_size", options.batch_size, "images per batch"},
          {"patch", options.patch, "pixels that a side of a patch has"},
          {"d_model", options.d_model, "width of the residual stream"},
          {"heads", options.heads, "number of attention heads"},
          {"d_ff", options.d_ff, "number of hidden units"},
          {"layers", options.layers, "number of layers"},
          {"observed_samples", options.observed_samples, "training images that are looked at"},
          {"gauge_set", options.gauges, "gauges of the network"}};
}

}  // namespace ddc::testbeds

namespace ddc::experiments {

TestbedEntry fashion_mnist_entry() {
  using testbeds::FashionMnistOptions;
  return {.name = "fashion_mnist",
          .description = "a vision transformer with squared ReLU learns Fashion-MNIST",
          .settings = declared_settings<FashionMnistOptions>(),
          .make =
              [](const Json& settings) {
                return testbeds::fashion_mnist(options_from<FashionMnistOptions>(settings));
              },
          .recipe = {{"lr", 1e-3}, {"weight_decay", 0.1}, {"steps", 2000}},
          .check =
              [](const Json& settings) {
                testbeds::check_images(options_from<FashionMnistOptions>(settings));
              }};
}

}  // namespace ddc::experiments
