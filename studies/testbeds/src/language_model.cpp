#include "ddc/testbeds/language_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "ddc/geometry/observables.h"
#include "draw.h"
#include "layers.h"
#include "options.h"
#include "transformer.h"

namespace ddc::testbeds {
namespace {

/// The bytes from each of these places on, and the ones after them.
Batch windows(const at::Tensor& text, const at::Tensor& starts, int64_t sequence) {
  const auto places = starts.unsqueeze(1) + at::arange(sequence + 1, at::kLong);
  const auto bytes = text.index_select(0, places.flatten()).view(places.sizes()).to(at::kLong);
  return {bytes.narrow(1, 0, sequence).contiguous(), bytes.narrow(1, 1, sequence).contiguous()};
}

/// How many places there are at which a window, and the byte after it, can start.
int64_t places(const at::Tensor& text, int64_t sequence) { return text.size(0) - sequence; }

Batch spread_windows(const at::Tensor& text, int64_t count, int64_t sequence) {
  const auto last = static_cast<double>(places(text, sequence) - 1);
  return windows(text, at::linspace(0, last, count, at::kDouble).to(at::kLong), sequence);
}

struct Observed {
  Batch train;
  Batch validation;
};

Observations observe(const Transformer& network, const Observed& windows,
                     const Parameters& params) {
  const at::NoGradGuard no_grad;
  ActivationSpectrum spectrum;
  const auto train = traced_outputs(network, params, windows.train.inputs,
                                    [&](const std::string& name, const at::Tensor& values) {
                                      if (name == "stream") spectrum = activation_spectrum(values);
                                    });
  const auto validation = traced_outputs(network, params, windows.validation.inputs, {});
  const double train_loss = cross_entropy(train, windows.train.targets).item<double>();
  const double validation_loss =
      cross_entropy(validation, windows.validation.targets).item<double>();
  return {{"train_loss", train_loss},
          {"train_accuracy", accuracy(train, windows.train.targets)},
          {"validation_loss", validation_loss},
          {"validation_accuracy", accuracy(validation, windows.validation.targets)},
          {"gap", validation_loss - train_loss},
          {"sigma_min", spectrum.sigma_min},
          {"effective_rank", spectrum.effective_rank}};
}

}  // namespace

void check_text(const LanguageModelOptions& options) {
  if (options.text.empty()) {
    TORCH_CHECK(std::filesystem::exists(king_james_file), "no King James text at ", king_james_file,
                ": write it (scripts/setup.sh data), or name a text with --set text=FILE");
  } else {
    TORCH_CHECK(std::filesystem::is_regular_file(options.text), "there is no text '", options.text,
                "' (setting text)");
  }
}

LanguageModelSplit language_model_split(const LanguageModelOptions& options) {
  check_positive("sequence", options.sequence);
  TORCH_CHECK(options.validation_fraction > 0 && options.validation_fraction < 1,
              "testbed option validation_fraction must be between 0 and 1, got ",
              options.validation_fraction);
  TORCH_CHECK(options.train_characters >= 0, "testbed option train_characters must be >= 0, got ",
              options.train_characters);
  check_text(options);
  const std::string path = options.text.empty() ? king_james_file : options.text;
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file, "cannot read the text '", path, "'");
  const std::string text{std::istreambuf_iterator<char>(file), {}};

  const auto bytes = at::tensor(std::vector<uint8_t>(text.begin(), text.end()), at::kByte);
  const auto seen = at::bincount(bytes, {}, 256).gt(0);
  const auto number = (seen.cumsum(0) - 1).to(at::kByte);
  const auto tokens = number.index_select(0, bytes.to(at::kInt));
  LanguageModelSplit split;
  for (int64_t byte = 0; byte < 256; ++byte) {
    if (seen[byte].item<bool>()) split.vocabulary += static_cast<char>(byte);
  }

  const int64_t size = tokens.size(0);
  const int64_t held_out = std::llround(options.validation_fraction * static_cast<double>(size));
  const int64_t before = size - held_out;
  const int64_t slice = options.train_characters == 0 ? before : options.train_characters;
  TORCH_CHECK(slice <= before, "testbed option train_characters must be at most ", before,
              " (what of '", path, "' is not held out), got ", slice);
  for (const int64_t part : {slice, held_out}) {
    TORCH_CHECK(part > options.sequence, "testbed option sequence must be less than ", part,
                " (the bytes of '", path, "' to train on, or those held out), got ",
                options.sequence);
  }
  split.train = tokens.narrow(0, 0, slice).clone();
  split.validation = tokens.narrow(0, before, held_out).clone();
  return split;
}

Testbed language_model(const LanguageModelOptions& options) {
  check_positive("batch_size", options.batch_size);
  check_positive("observed_windows", options.observed_windows);
  const auto split = language_model_split(options);
  const auto vocabulary = static_cast<int64_t>(split.vocabulary.size());
  const Transformer network{.vocabulary = vocabulary,
                            .classes = vocabulary,
                            .d_model = options.d_model,
                            .heads = options.heads,
                            .kv_heads = options.kv_heads,
                            .d_ff = options.d_ff,
                            .sequence = options.sequence,
                            .layers = options.layers,
                            .feed_forwards = {{"mlp", FeedForward::Kind::swiglu}},
                            .norm = Norm::rms,
                            .rotary = {.pairing = channel_maps::Pairing::half_split},
                            .attention_biases = false,
                            .feed_forward_biases = false,
                            .unembedding_bias = false,
                            .gain_spread = options.gain_spread,
                            .gauges = options.gauges};
  auto bed = transformer_testbed(network);
  bed.name = "language model";
  bed.batch = [train = split.train, sequence = options.sequence, size = options.batch_size](
                  uint64_t seed, at::ScalarType /*dtype*/) {
    const auto starts =
        at::randint(0, places(train, sequence), {size}, generator(seed, Stream::batch), at::kLong);
    return windows(train, starts, sequence);
  };
  const Observed observed{
      .train = spread_windows(split.train, options.observed_windows, options.sequence),
      .validation = spread_windows(split.validation, options.observed_windows, options.sequence)};
  bed.observe = [network, observed](const Parameters& params) {
    return observe(network, observed, params);
  };
  return bed;
}

}  // namespace ddc::testbeds
