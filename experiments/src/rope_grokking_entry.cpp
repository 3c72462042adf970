#include <initializer_list>
#include <string>

#include "ddc/testbeds/rope_grokking.h"
#include "entries.h"

namespace ddc::testbeds {

// Enumerators are text in JSON; declared before the templates that convert them.
void to_json(nlohmann::json& json, const Rotation& rotation);
void from_json(const nlohmann::json& json, Rotation& rotation);
void to_json(nlohmann::json& json, const Activation& activation);
void from_json(const nlohmann::json& json, Activation& activation);

template <class Visit>
void visit_settings(RopeGrokkingOptions& options, Visit&& visit) {
  visit("modulus", options.modulus, "p of (a + b) mod p");
  visit("train_fraction", options.train_fraction, "share of the pairs to train on");
  visit("split_seed", options.split_seed, "which pairs are for training");
  visit("sequence", options.sequence, "tokens per sequence, four for each equation");
  visit("batch_size", options.batch_size, "sequences per batch; 0: as many as the pairs fill");
  visit("d_model", options.d_model, "width of the residual stream");
  visit("heads", options.heads, "number of attention heads");
  visit("d_ff", options.d_ff, "number of hidden units");
  visit("layers", options.layers, "number of layers");
  visit("activation", options.activation, "relu, squared_relu or gelu");
  visit("rotation", options.rotation,
        "gauges of queries and keys: torus, none, or full, which rotary embedding breaks");
  visit("scales_and_shifts", options.scales_and_shifts, "list the other gauges too");
}

namespace {

template <class Enum>
void read(const char* setting, const nlohmann::json& json, Enum& value,
          std::initializer_list<Enum> choices) {
  std::string names;
  for (const auto choice : choices) {
    if (json == to_string(choice)) {
      value = choice;
      return;
    }
    names.append(names.empty() ? "" : ", ").append(to_string(choice));
  }
  TORCH_CHECK_VALUE(false, "setting ", setting, " must be one of ", names, ", got ", json.dump());
}

}  // namespace

void to_json(nlohmann::json& json, const Rotation& rotation) { json = to_string(rotation); }
void from_json(const nlohmann::json& json, Rotation& rotation) {
  read("rotation", json, rotation, {Rotation::none, Rotation::torus, Rotation::full});
}

void to_json(nlohmann::json& json, const Activation& activation) { json = to_string(activation); }
void from_json(const nlohmann::json& json, Activation& activation) {
  read("activation", json, activation,
       {Activation::relu, Activation::squared_relu, Activation::gelu});
}

}  // namespace ddc::testbeds

namespace ddc::experiments {

TestbedEntry rope_grokking_entry() {
  using testbeds::RopeGrokkingOptions;
  return {.name = "rope_grokking",
          .description = "a deep rotary transformer groks sums in sequences of equations",
          .settings = declared_settings<RopeGrokkingOptions>(),
          .make =
              [](const Json& settings) {
                return testbeds::rope_grokking(options_from<RopeGrokkingOptions>(settings));
              },
          .recipe = {{"lr", 1e-3}, {"weight_decay", 1.0}, {"steps", 1500}}};
}

}  // namespace ddc::experiments
