#pragma once

#include <nlohmann/json.hpp>

#include "ddc/experiments/catalogue.h"
#include "ddc/testbeds/testbed.h"

// Entries of the catalogue that have files of their own.

namespace ddc::testbeds {

/// Enumerators are text in JSON.
void to_json(nlohmann::json& json, const GaugeSet& set);
void from_json(const nlohmann::json& json, GaugeSet& set);

}  // namespace ddc::testbeds

namespace ddc::experiments {

TestbedEntry language_model_entry();
TestbedEntry fashion_mnist_entry();
TestbedEntry rope_grokking_entry();

}  // namespace ddc::experiments
