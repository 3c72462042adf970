#include "ddc/testbeds/language_model.h"
#include "entries.h"

namespace ddc::testbeds {

OptionList options_of(LanguageModelOptions& options) {
  return {
      {"text", options.text, "a file; empty: Debian's King James text"},
      {"train_characters", options.train_characters, "bytes to train on; 0: all not held out"},
      {"validation_fraction", options.validation_fraction, "share of the text that is held out"},
      {"sequence", options.sequence, "bytes that a window of the text has"},
      {"batch_size", options.batch_size, "windows per batch"},
      {"d_model", options.d_model, "width of the residual stream"},
      {"heads", options.heads, "number of attention heads"},
      {"kv_heads", options.kv_heads, "number of key and value heads"},
      {"d_ff", options.d_ff, "number of hidden units"},
      {"layers", options.layers, "number of layers"},
      {"observed_windows", options.observed_windows, "windows that are looked at"},
      {"gauge_set", options.gauges, "abelian, rotations or full"}};
}

}  // namespace ddc::testbeds

namespace ddc::experiments {

TestbedEntry language_model_entry() {
  using testbeds::LanguageModelOptions;
  return {.name = "language_model",
          .description = "a small Llama learns to continue the King James text, or any other",
          .settings = declared_settings<LanguageModelOptions>(),
          .make =
              [](const Json& settings) {
                return testbeds::language_model(options_from<LanguageModelOptions>(settings));
              },
          .recipe = {{"lr", 1e-3}, {"weight_decay", 0.1}, {"steps", 2000}},
          .check =
              [](const Json& settings) {
                testbeds::check_text(options_from<LanguageModelOptions>(settings));
              }};
}

}  // namespace ddc::experiments
