#include "models.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "ddc/testbeds/blocks.h"
#include "ddc/testbeds/mlp.h"
#include "ddc/testbeds/modular_addition.h"
#include "ddc/testbeds/zoo.h"

namespace ddc::cli {
namespace {

std::vector<Model> make_models() {
  // Testbeds with a fresh batch for every seed: relations that hold on one batch alone are none.
  std::vector<Model> all = {
      {"mlp", "a chain of four linear layers with biases and ReLUs",
       [] { return testbeds::relu_chain(); }},
      {"layer_norm_block", "a transformer with LayerNorm, biases, ReLU and squared ReLU",
       [] { return testbeds::layer_norm_block(); }},
      {"rms_norm_block", "a transformer with RMSNorm, rotary grouped-query attention and SwiGLU",
       [] { return testbeds::rms_norm_block(); }},
      {"gpt_j_block", "attention and feed-forward side by side, partly rotary",
       [] { return testbeds::gpt_j_block(); }},
      {"vit_block", "a vision transformer of two layers", [] { return testbeds::vit_block(); }},
      {"modular_addition", "the paper's grokking transformer, smaller, on (a + b) mod 59",
       [] {
         return testbeds::modular_addition(
             {.modulus = 59, .batch_size = 256, .d_model = 32, .d_ff = 64});
       }},
  };
  for (const auto& entry : testbeds::zoo()) {
    all.push_back({entry.name, entry.description,
                   [name = entry.name] { return testbeds::zoo_entry(name).testbed; }});
  }
  return all;
}

}  // namespace

const std::vector<Model>& models() {
  static const auto all = make_models();
  return all;
}

testbeds::Testbed make_model(const std::string& name) {
  const auto found = std::find_if(models().begin(), models().end(),
                                  [&](const Model& model) { return model.name == name; });
  TORCH_CHECK(found != models().end(), "there is no model '", name, "'");
  return found->make();
}

}  // namespace ddc::cli
