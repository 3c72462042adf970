#include "ddc/testbeds/fashion_mnist.h"
#include "entries.h"

namespace ddc::testbeds {

template <class Visit>
void visit_settings(FashionMnistOptions& options, Visit&& visit) {
  visit("data", options.data, "the folder of the idx.gz files");
  visit("train_samples", options.train_samples, "images to train on; 0: all");
  visit("validation_samples", options.validation_samples, "images to validate on; 0: all");
  visit("batch_size", options.batch_size, "images per batch");
  visit("patch", options.patch, "pixels that a side of a patch has");
  visit("d_model", options.d_model, "width of the residual stream");
  visit("heads", options.heads, "number of attention heads");
  visit("d_ff", options.d_ff, "number of hidden units");
  visit("layers", options.layers, "number of layers");
  visit("observed_samples", options.observed_samples, "training images that are looked at");
  visit("gauge_set", options.gauges, "abelian, rotations or full");
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
