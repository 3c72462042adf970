#include <initializer_list>
#include <string>

#include "ddc/testbeds/rope_grokking.h"
#include "entries.h"

namespace ddc::testbeds {

// Enumerators are text in JSON; declared before the templates that convert them.
OptionList options_of(RopeGrokkingOptions& options) {
  return {
      {"modulus", options.modulus, "p of (a + b) mod p"},
      {"train_fraction", options.train_fraction, "share of the pairs to train on"},
      {"split_seed", options.split_seed, "which pairs are for training"},
      {"sequence", options.sequence, "tokens per sequence, four for each equation"},
      {"batch_size", options.batch_size, "sequences per batch; 0: as many as the pairs fill"},
      {"d_model", options.d_model, "width of the residual stream"},
      {"heads", options.heads, "number of attention heads"},
      {"d_ff", options.d_ff, "number of hidden units"},
      {"layers", options.layers, "number of layers"},
      {"activation", options.activation, "activation of the hidden units"},
      {"rotation", options.rotation, "gauges of queries and keys; rotary embedding breaks full"},
      {"scales_and_shifts", options.scales_and_shifts, "list the other gauges too"}};
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
