#include "ddc/testbeds/modular_addition.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "draw.h"
#include "layers.h"
#include "options.h"
#include "sums_of_rows.h"
#include "transformer.h"

namespace ddc::testbeds {
namespace {

/// [a, b, =] with (a + b) mod p, for pairs numbered a * p + b.
Batch sums(const at::Tensor& pairs, const ModularAdditionOptions& options) {
  const auto a = pairs.div(options.modulus, "floor");
  const auto b = pairs.remainder(options.modulus);
  std::vector<at::Tensor> tokens = {a, b};
  if (options.equals_sign) tokens.push_back(at::full_like(a, options.modulus));
  return {at::stack(tokens, 1), (a + b).remainder(options.modulus)};
}

/// What the transformer of one layer without attention biases and final norm computes, faster for many pairs: the
/// attention reads tokens at positions, of which there are few (p per position). What a head makes of each
/// of them, up to the hidden units of the feed-forward part, is computed once, and a pair is a weighted sum
/// of it.
at::Tensor table_logits(const ModularAdditionOptions& options, const Parameters& params,
                        const at::Tensor& inputs) {
  const auto weight = [&](const char* name) { return params[name].tensor; };
  const int64_t head_size = options.d_model / options.heads;
  const int64_t last = inputs.size(1) - 1;
  const auto& embedding = weight("embedding.weight");
  const int64_t tokens = embedding.size(0);
  // [positions, heads, tokens, head_size]
  const auto split = [&](const at::Tensor& x) {
    return x.unflatten(-1, {options.heads, head_size}).transpose(-2, -3);
  };

  // [positions, tokens, d_model]
  const auto stream = embedding + weight("positions.weight").unsqueeze(1);
  const auto normed = layer_norm(params, "layers.0.attention_norm", stream);
  const auto query = split(linear(params, "layers.0.attention.query", normed[last]));
  const auto keys = split(linear(params, "layers.0.attention.key", normed));
  // [heads, positions * tokens, head_size]
  const auto values = split(linear(params, "layers.0.attention.value", normed.flatten(0, 1)));
  // [positions, heads, query token, key token]
  const auto products = query.matmul(keys.mT()) / std::sqrt(static_cast<double>(head_size));

  // Products of every pair, and rows of a table that `through` makes.
  std::vector<at::Tensor> scores;
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t <= last; ++t) {
    const auto token = inputs.select(1, t);
    scores.push_back(
        products[t].flatten(1).index_select(1, inputs.select(1, last) * tokens + token));
    for (int64_t h = 0; h < options.heads; ++h) {
      rows.push_back((h * (last + 1) + t) * tokens + token);
    }
  }
  const int64_t written = (last + 1) * options.heads * tokens;
  rows.push_back(written + inputs.select(1, last));
  const auto one = at::ones({inputs.size(0), 1}, embedding.options());
  const auto attention = at::stack(scores).softmax(0).flatten(0, 1).t();
  const auto pairs = at::stack(rows, 1);
  const auto shares = at::cat({attention, one}, 1);

  // What heads write to the stream, and what stands there at the last position, seen through a map.
  const auto output = weight("layers.0.attention.output.weight")
                          .unflatten(1, {options.heads, head_size})
                          .permute({1, 2, 0});
  const auto through = [&](const at::Tensor& heads_map, const at::Tensor& stream_read) {
    return at::cat({values.matmul(heads_map).flatten(0, 1), stream_read});
  };
  const auto x = sums_of_rows(through(output, stream[last]), pairs, shares);

  // The norm takes the mean off, which may as well be taken off its reader's rows; its shift and the
  // bias are a row of their own.
  const auto centred = x - x.mean(1, /*keepdim=*/true);
  const auto scale = (centred.square().mean(1, /*keepdim=*/true) + default_norm_eps).rsqrt();
  const auto& up = weight("layers.0.mlp.up.weight");
  const auto folded = up * weight("layers.0.mlp_norm.weight");
  const auto reader = (folded - folded.mean(1, /*keepdim=*/true)).t();
  const auto bias = weight("layers.0.mlp.up.bias") + up.mv(weight("layers.0.mlp_norm.bias"));
  const auto table =
      at::cat({through(output.matmul(reader), stream[last].matmul(reader)), bias.unsqueeze(0)});
  const auto hidden =
      sums_of_rows(table, at::constant_pad_nd(pairs, {0, 1}, static_cast<double>(written + tokens)),
                   at::cat({shares * scale, one}, 1), options.degree);

  // The unembedding reads the stream, and through `mlp.down` the hidden units.
  const auto& unembedding = weight("unembedding.weight");
  const auto reads = unembedding.t();
  const auto direct =
      sums_of_rows(through(output.matmul(reads), stream[last].matmul(reads)), pairs, shares);
  return at::addmm(direct + unembedding.mv(weight("layers.0.mlp.down.bias")), hidden,
                   unembedding.matmul(weight("layers.0.mlp.down.weight")).t());
}

/// Accuracies, and where the unembedding W [C, d] is along the orbit of the logits' shift: m is the mean
/// of its rows, C |m|^2 / |W|^2 the share of W that is constant over rows ("The readout row-shift gauge
/// on the grokking transformer").
Observations observe(const Testbed& bed, const ModularAdditionSplit& split,
                     const Parameters& params) {
  const at::NoGradGuard no_grad;
  const auto test = bed.outputs(params, split.test.inputs);
  const auto weight = params["unembedding.weight"].tensor.to(at::kDouble);
  const double classes = static_cast<double>(weight.size(0));
  const auto mean = weight.mean(0);
  const double mode = std::sqrt(classes) * mean.norm().item<double>();
  const double whole = weight.norm().item<double>();
  return {
      {"train_accuracy", accuracy(bed.outputs(params, split.train.inputs), split.train.targets)},
      {"test_accuracy", accuracy(test, split.test.targets)},
      {"test_loss", cross_entropy(test, split.test.targets).item<double>()},
      {"shift_norm", mode},
      {"shift_fraction", mode * mode / (whole * whole)},
      {"quotient_norm", (weight - mean).norm().item<double>()}};
}

}  // namespace

ModularAdditionSplit modular_addition_split(const ModularAdditionOptions& options) {
  TORCH_CHECK(options.modulus >= 2, "testbed option modulus must be >= 2, got ", options.modulus);
  TORCH_CHECK(options.train_fraction > 0 && options.train_fraction < 1,
              "testbed option train_fraction must be between 0 and 1, got ",
              options.train_fraction);
  const int64_t pairs = options.modulus * options.modulus;
  const int64_t train = std::clamp<int64_t>(
      std::llround(options.train_fraction * static_cast<double>(pairs)), 1, pairs - 1);
  const auto order = at::randperm(pairs, generator(options.split_seed, Stream::split), at::kLong);
  // In order, so that neighbours share tokens: tables are then read from near memory.
  const auto part = [&](int64_t begin, int64_t count) {
    return sums(std::get<0>(order.narrow(0, begin, count).sort()), options);
  };
  return {.train = part(0, train), .test = part(train, pairs - train)};
}

Testbed modular_addition(const ModularAdditionOptions& options) {
  const auto split = modular_addition_split(options);
  const auto train = split.train;
  const int64_t pairs = train.inputs.size(0);
  TORCH_CHECK(
      options.batch_size >= 0 && options.batch_size <= pairs,
      "testbed option batch_size must be between 0 (all) and the number of training pairs (", pairs,
      "), got ", options.batch_size);
  check_degree(options.degree);
  // The equals sign stands at the last position and nowhere else, or nowhere at all.
  std::vector<int64_t> token_class(options.modulus, 0);
  token_class.push_back(options.equals_sign ? 1 : -1);
  auto bed = transformer_testbed(
      {.vocabulary = options.modulus + 1,
       .classes = options.modulus,
       .d_model = options.d_model,
       .heads = options.heads,
       .kv_heads = options.heads,
       .d_ff = options.d_ff,
       .sequence = options.equals_sign ? 3 : 2,
       .layers = options.layers,
       .feed_forwards = {{"mlp", options.degree == 2 ? FeedForward::Kind::squared_relu
                                                     : FeedForward::Kind::relu}},
       .attention_biases = options.attention_biases,
       .final_norm = options.final_norm,
       .unembedding_bias = false,
       .z_loss = options.z_loss,
       .readout = Readout::last_position,
       .embedding_spread =
           options.torch_init ? 1 : 1 / std::sqrt(static_cast<double>(options.d_model)),
       .torch_init = options.torch_init,
       .gain_spread = options.gain_spread,
       .bias_spread = options.bias_spread,
       .residual_shifts = options.residual_shifts,
       .gauges = options.gauges,
       .token_class = token_class,
       .position_class =
           options.equals_sign ? std::vector<int64_t>{0, 0, 1} : std::vector<int64_t>{0, 0}});
  bed.name = "modular addition";
  bed.full_batch = options.batch_size == 0;
  if (bed.full_batch && options.layers == 1 && !options.attention_biases && !options.final_norm) {
    bed.outputs = [options](const Parameters& params, const at::Tensor& inputs) {
      return table_logits(options, params, inputs);
    };
    set_criterion(bed, bed.criterion);
  }
  bed.batch = [train, pairs, batch_size = options.batch_size](uint64_t seed,
                                                              at::ScalarType /*dtype*/) {
    if (batch_size == 0) return train;
    const auto chosen =
        at::randperm(pairs, generator(seed, Stream::batch), at::kLong).narrow(0, 0, batch_size);
    return Batch{train.inputs.index_select(0, chosen), train.targets.index_select(0, chosen)};
  };
  bed.observe = [bed, split](const Parameters& params) { return observe(bed, split, params); };
  return bed;
}

}  // namespace ddc::testbeds
