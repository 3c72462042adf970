// The gauges of biases and of norm kernels hold what they say, measured on the weights.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <iostream>
#include <map>

#include "ddc/testbeds/blocks.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

/// Exchanges, kernel shifts and null vectors, straight from the weights: the norms' shifts; the means
/// of readers' rows as seen through the gain; and, of value and key bias, what the network sees,
/// W shift + bias. (The bias alone moves as W does: it takes up what the norm's shift, which is held,
/// adds through W.)
TEST(BiasGauges, AreHeldToRoundingInFloat32WhereAdamWMovesThem) {
  const auto bed = testbeds::layer_norm_block({.d_model = 8,
                                               .heads = 2,
                                               .d_ff = 10,
                                               .relu_part = false,
                                               .gauges = testbeds::GaugeSet::full});
  Parameters params;
  const auto tensor = [&](const std::string& name) {
    return params[name].tensor.detach().to(at::kDouble);
  };
  const auto row_mean = [&](const std::string& reader, const std::string& norm) {
    return (tensor(reader) * tensor(norm)).mean(1);
  };
  const auto measure = [&] {
    std::map<std::string, at::Tensor> held;
    for (const auto* name :
         {"layers.0.attention_norm.bias", "layers.0.squared_mlp_norm.bias", "final_norm.bias"}) {
      held[name] = tensor(name).clone();
    }
    for (const auto* head : {"value", "key"}) {
      const auto name = std::string("layers.0.attention.") + head;
      held[name + ".bias"] =
          tensor(name + ".bias") +
          tensor(name + ".weight").matmul(tensor("layers.0.attention_norm.bias"));
    }
    for (const auto* head : {"query", "key", "value"}) {
      const auto name = std::string("layers.0.attention.") + head + ".weight";
      held[name] = row_mean(name, "layers.0.attention_norm.weight");
    }
    held["up"] = row_mean("layers.0.squared_mlp.up.weight", "layers.0.squared_mlp_norm.weight");
    held["unembedding"] = row_mean("unembedding.weight", "final_norm.weight");
    return held;
  };
  const auto train = [&](const OptimizerMaker& make) {
    params = bed.init(1, at::kFloat);
    const auto start = measure();
    const auto run = testbeds::drift(bed, params, bed.gauges(params), make, {.steps = 500});
    EXPECT_LT(run.final_loss, 0.8 * run.losses.front());
    std::map<std::string, double> moved;
    for (const auto& [name, value] : measure())
      moved[name] = (value - start.at(name)).abs().max().item<double>();
    return moved;
  };
  for (const auto& [name, moved] :
       train(ddc_adam({.lr = 3e-3, .weight_decay = 0.01}, in_place()))) {
    std::cout << name << " moves by " << moved << "\n";
    EXPECT_LE(moved, 1e-6) << name;
  }
  for (const auto& [name, moved] : train(testbeds::adamw(3e-3, 0.01))) {
    EXPECT_GE(moved, 1e-3) << name << " with AdamW";
  }
}

}  // namespace
}  // namespace ddc::tests
