#include "ddc/testbeds/language_model.h"
#include "entries.h"

namespace ddc::testbeds {

template <class Visit>
void visit_settings(LanguageModelOptions& options, Visit&& visit) {
  visit("text", options.text, "a file; empty: Debian's King James text");
  visit("train_characters", options.train_characters, "bytes to train on; 0: all not held out");
  visit("validation_fraction", options.validation_fraction, "share of the text that is held out");
  visit("sequence", options.sequence, "bytes that a window of the text has");
  visit("batch_size", options.batch_size, "windows per batch");
  visit("d_model", options.d_model, "width of the residual stream");
  visit("heads", options.heads, "number of attention heads");
  visit("kv_heads", options.kv_heads, "number of key and value heads");
  visit("d_ff", options.d_ff, "number of hidden units");
  visit("layers", options.layers, "number of layers");
  visit("observed_windows", options.observed_windows, "windows that are looked at");
  visit("gauge_set", options.gauges, "abelian, rotations or full");
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
