#include "models.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "ddc/testbeds/blocks.h"
#include "ddc/testbeds/mlp.h"
#include "ddc/testbeds/modular_addition.h"
#include "ddc/testbeds/zoo.h"

namespace ddc::cli {
namespace {

/// Insertions, deletions and replacements that make one of the other (Levenshtein).
size_t edit_distance(std::string_view from, std::string_view to) {
  std::vector<size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < from.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < to.size(); ++j) {
      const size_t replaced = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

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

const Model* find_model(const std::string& name) {
  const auto found = std::find_if(models().begin(), models().end(),
                                  [&](const Model& model) { return model.name == name; });
  return found == models().end() ? nullptr : &*found;
}

std::string nearest_model(const std::string& name) {
  std::string nearest;
  // With more edits than half the letters and one it is another word.
  size_t best = name.size() / 2 + 2;
  for (const auto& model : models()) {
    const size_t distance = edit_distance(name, model.name);
    if (distance >= best) continue;
    best = distance;
    nearest = model.name;
  }
  return nearest;
}

}  // namespace ddc::cli
