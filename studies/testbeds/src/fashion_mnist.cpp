#include "ddc/testbeds/fashion_mnist.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>

#include "ddc/geometry/observables.h"
#include "draw.h"
#include "idx.h"
#include "layers.h"
#include "options.h"
#include "transformer.h"

namespace ddc::testbeds {
namespace {

namespace fs = std::filesystem;

constexpr int64_t classes = 10;

/// Units below this are dead, as channels of `sparse_parity` are.
constexpr double dead_below = 1e-3;

constexpr const char* train_part = "train";
constexpr const char* validation_part = "t10k";

fs::path images_file(const fs::path& folder, const std::string& part) {
  return folder / (part + "-images-idx3-ubyte.gz");
}

fs::path labels_file(const fs::path& folder, const std::string& part) {
  return folder / (part + "-labels-idx1-ubyte.gz");
}

/// Images [samples, side, side] and classes, as bytes.
struct Part {
  at::Tensor images;
  at::Tensor labels;
};

Part read_part(const fs::path& folder, const std::string& part) {
  const auto images = images_file(folder, part);
  const auto labels = labels_file(folder, part);
  const Part result{read_idx(images, 3), read_idx(labels, 1)};
  TORCH_CHECK(result.images.size(0) == result.labels.size(0), "'", images.string(), "' has ",
              result.images.size(0), " images, but '", labels.string(), "' has ",
              result.labels.size(0), " labels");
  TORCH_CHECK(result.images.size(1) == result.images.size(2), "the images of '", images.string(),
              "' are not square: ", result.images.sizes());
  const auto largest = result.labels.max().item<int64_t>();
  TORCH_CHECK(largest < classes, "'", labels.string(), "' has the label ", largest,
              ", but there are ", classes, " classes");
  return result;
}

struct Parts {
  Part train;
  Part validation;
};

/// Read once, for all testbeds of the process: it takes half a second.
const Parts& read_parts(const std::string& folder) {
  static std::mutex mutex;
  static std::map<std::string, Parts> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(folder);
  if (found != known.end()) return found->second;
  Parts parts{read_part(folder, train_part), read_part(folder, validation_part)};
  TORCH_CHECK(parts.train.images.size(1) == parts.validation.images.size(1), "the images of '",
              images_file(folder, train_part).string(), "' have another size than those of '",
              images_file(folder, validation_part).string(), "'");
  return known.emplace(folder, std::move(parts)).first->second;
}

Part first(const Part& part, const char* option, int64_t count) {
  const int64_t all = part.images.size(0);
  TORCH_CHECK(count >= 0 && count <= all, "testbed option ", option,
              " must be between 0 (all) and the number of images (", all, "), got ", count);
  const int64_t kept = count == 0 ? all : count;
  return {part.images.narrow(0, 0, kept), part.labels.narrow(0, 0, kept)};
}

/// [samples, patches, pixels], row by row.
at::Tensor in_patches(const at::Tensor& images, int64_t side) {
  const int64_t count = images.size(1) / side;
  return images.view({-1, count, side, count, side})
      .permute({0, 1, 3, 2, 4})
      .reshape({-1, count * count, side * side});
}

/// What the units of a layer can do at most, whatever the units of measurement between its two maps.
at::Tensor joint_norms(const Parameters& params, const std::string& layer) {
  const auto in =
      at::cat({params[layer + ".up.weight"].tensor, params[layer + ".up.bias"].tensor.unsqueeze(1)},
              1)
          .to(at::kDouble);
  const auto out = params[layer + ".down.weight"].tensor.to(at::kDouble);
  return in.square().sum(1) * out.norm(2, 0);
}

Observations observe(const Transformer& network, const FashionMnistSplit& seen,
                     const Parameters& params) {
  const at::NoGradGuard no_grad;
  const auto dtype = params.begin()->tensor.scalar_type();
  ActivationSpectrum spectrum;
  int64_t dead = 0;
  const auto train = traced_outputs(network, params, seen.train.inputs.to(dtype),
                                    [&](const std::string& name, const at::Tensor& values) {
                                      if (name == "stream") {
                                        spectrum = activation_spectrum(values);
                                      } else if (name.ends_with(".up")) {
                                        dead += dead_units(values).never_on;
                                      }
                                    });
  const auto validation = traced_outputs(network, params, seen.validation.inputs.to(dtype), {});
  int64_t gate_dead = 0;
  for (int64_t l = 0; l < network.layers; ++l) {
    const auto norms = joint_norms(params, "layers." + std::to_string(l) + ".mlp");
    gate_dead += norms.lt(dead_below).sum().item<int64_t>();
  }
  const double train_loss = cross_entropy(train, seen.train.targets).item<double>();
  const double validation_loss = cross_entropy(validation, seen.validation.targets).item<double>();
  return {{"train_loss", train_loss},
          {"train_accuracy", accuracy(train, seen.train.targets)},
          {"validation_loss", validation_loss},
          {"validation_accuracy", accuracy(validation, seen.validation.targets)},
          {"gap", validation_loss - train_loss},
          {"dead_relu", static_cast<double>(dead)},
          {"gate_dead", static_cast<double>(gate_dead)},
          {"sigma_min", spectrum.sigma_min},
          {"effective_rank", spectrum.effective_rank}};
}

}  // namespace

void check_images(const FashionMnistOptions& options) {
  for (const auto* part : {train_part, validation_part}) {
    for (const auto& file : {images_file(options.data, part), labels_file(options.data, part)}) {
      TORCH_CHECK(fs::is_regular_file(file), "no Fashion-MNIST ('", file.string(),
                  "'): install it (apt-get install dataset-fashion-mnist), or name a folder with "
                  "--set data=FOLDER");
    }
  }
}

FashionMnistSplit fashion_mnist_split(const FashionMnistOptions& options) {
  check_positive("patch", options.patch);
  check_images(options);
  const auto& parts = read_parts(options.data);
  const auto train = first(parts.train, "train_samples", options.train_samples);
  const auto validation = first(parts.validation, "validation_samples", options.validation_samples);
  const int64_t side = train.images.size(1);
  TORCH_CHECK(side % options.patch == 0, "testbed option patch must divide the side of an image (",
              side, "), got ", options.patch);
  const auto [variance, mean] = at::var_mean(train.images.to(at::kFloat), /*unbiased=*/false);
  const auto batch = [&, centre = mean, spread = variance.sqrt()](const Part& part) {
    const auto pixels = part.images.to(at::kFloat).sub_(centre).div_(spread);
    return Batch{in_patches(pixels, options.patch), part.labels.to(at::kLong)};
  };
  return {.train = batch(train), .validation = batch(validation)};
}

Testbed fashion_mnist(const FashionMnistOptions& options) {
  check_positive("batch_size", options.batch_size);
  check_positive("observed_samples", options.observed_samples);
  const auto split = fashion_mnist_split(options);
  const Transformer network{.d_patch = options.patch * options.patch,
                            .classes = classes,
                            .d_model = options.d_model,
                            .heads = options.heads,
                            .kv_heads = options.heads,
                            .d_ff = options.d_ff,
                            .sequence = split.train.inputs.size(1),
                            .layers = options.layers,
                            .feed_forwards = {{"mlp", FeedForward::Kind::squared_relu}},
                            .causal = false,
                            .readout = Readout::class_token,
                            .gain_spread = options.gain_spread,
                            .bias_spread = options.bias_spread,
                            .gauges = options.gauges};
  auto bed = transformer_testbed(network);
  bed.name = "fashion mnist";
  const auto train = split.train;
  bed.batch = [train, size = options.batch_size](uint64_t seed, at::ScalarType dtype) {
    const auto chosen =
        at::randint(0, train.inputs.size(0), {size}, generator(seed, Stream::batch), at::kLong);
    return Batch{train.inputs.index_select(0, chosen).to(dtype),
                 train.targets.index_select(0, chosen)};
  };
  const int64_t observed = std::min(options.observed_samples, train.inputs.size(0));
  const FashionMnistSplit seen{
      .train = {train.inputs.narrow(0, 0, observed), train.targets.narrow(0, 0, observed)},
      .validation = split.validation};
  bed.observe = [network, seen](const Parameters& params) {
    return observe(network, seen, params);
  };
  return bed;
}

}  // namespace ddc::testbeds
