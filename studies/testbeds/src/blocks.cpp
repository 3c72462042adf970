#include "ddc/testbeds/blocks.h"

#include <ATen/ATen.h>

#include "tasks.h"
#include "transformer.h"

namespace ddc::testbeds {
Testbed layer_norm_block(const LayerNormBlockOptions& options) {
  std::vector<FeedForward> parts;
  if (options.relu_part) parts.push_back({"mlp", FeedForward::Kind::relu});
  parts.push_back({"squared_mlp", FeedForward::Kind::squared_relu});
  auto bed = transformer_testbed({.vocabulary = options.vocabulary,
                                  .classes = options.vocabulary,
                                  .d_model = options.d_model,
                                  .heads = options.heads,
                                  .kv_heads = options.heads,
                                  .d_ff = options.d_ff,
                                  .sequence = options.sequence,
                                  .layers = options.layers,
                                  .feed_forwards = parts,
                                  .norm_eps = options.norm_eps,
                                  .gain_spread = options.gain_spread,
                                  .bias_spread = options.bias_spread,
                                  .fixed_embedding = options.fixed_embedding,
                                  .residual_shifts = options.residual_shifts,
                                  .gauges = options.gauges});
  bed.name = "layer norm block";
  bed.batch =
      token_sums(options.vocabulary, options.multiplier, options.batch_size, options.sequence);
  return bed;
}

Testbed rms_norm_block(const RmsNormBlockOptions& options) {
  auto bed = transformer_testbed({.vocabulary = options.vocabulary,
                                  .classes = options.vocabulary,
                                  .d_model = options.d_model,
                                  .heads = options.heads,
                                  .kv_heads = options.kv_heads,
                                  .d_ff = options.d_ff,
                                  .sequence = options.sequence,
                                  .layers = options.layers,
                                  .feed_forwards = {{"mlp", FeedForward::Kind::swiglu}},
                                  .norm = Norm::rms,
                                  .gain_is_offset = options.gain_is_offset,
                                  .norm_eps = options.norm_eps,
                                  .rotary = {.pairing = channel_maps::Pairing::half_split},
                                  .attention_biases = false,
                                  .feed_forward_biases = false,
                                  .unembedding_bias = false,
                                  .gain_spread = options.gain_spread,
                                  .fixed_embedding = options.fixed_embedding,
                                  .gauges = options.gauges});
  bed.name = options.gain_is_offset ? "rms norm block (1 + w)" : "rms norm block";
  bed.batch =
      token_sums(options.vocabulary, options.multiplier, options.batch_size, options.sequence);
  return bed;
}

Testbed gpt_j_block(const GptJBlockOptions& options) {
  auto bed = transformer_testbed(
      {.vocabulary = options.vocabulary,
       .classes = options.vocabulary,
       .d_model = options.d_model,
       .heads = options.heads,
       .kv_heads = options.heads,
       .d_ff = options.d_ff,
       .sequence = options.sequence,
       .layers = options.layers,
       .feed_forwards = {{"mlp", FeedForward::Kind::squared_relu}},
       .parallel = true,
       .norm_eps = options.norm_eps,
       .rotary = {.pairing = channel_maps::Pairing::interleaved, .size = options.rotary_size},
       .attention_biases = false,
       .gain_spread = options.gain_spread,
       .bias_spread = options.bias_spread,
       .fixed_embedding = options.fixed_embedding,
       .gauges = options.gauges});
  bed.name = "gpt-j block";
  bed.batch =
      token_sums(options.vocabulary, options.multiplier, options.batch_size, options.sequence);
  return bed;
}

Testbed vit_block(const VitBlockOptions& options) {
  auto bed = transformer_testbed({.d_patch = options.d_patch,
                                  .classes = options.classes,
                                  .d_model = options.d_model,
                                  .heads = options.heads,
                                  .kv_heads = options.heads,
                                  .d_ff = options.d_ff,
                                  .sequence = options.patches,
                                  .layers = options.layers,
                                  .feed_forwards = {{"mlp", FeedForward::Kind::squared_relu}},
                                  .norm_eps = options.norm_eps,
                                  .causal = false,
                                  .readout = Readout::class_token,
                                  .gain_spread = options.gain_spread,
                                  .bias_spread = options.bias_spread,
                                  .fixed_embedding = options.fixed_embedding,
                                  .gauges = options.gauges});
  bed.name = "vit block";
  bed.batch = nearest_directions({options.batch_size, options.patches, options.d_patch},
                                 options.d_patch, options.classes, options.teacher_seed,
                                 [](const at::Tensor& patches) { return patches.mean(1); });
  return bed;
}

}  // namespace ddc::testbeds
