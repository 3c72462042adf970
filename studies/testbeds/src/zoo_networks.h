#pragma once

#include "ddc/testbeds/zoo.h"

// The networks of the zoo that are no transformers.

namespace ddc::testbeds {

ZooEntry conv_relu_entry(const ZooShape& shape);
ZooEntry mlp_chain_entry(const ZooShape& shape);
ZooEntry linear_pair_entry(const ZooShape& shape);

/// Those of `imagined` that are not, leg by leg, among `actual`, each with the reason.
std::vector<Refused> refuse(const std::vector<Gauge>& imagined, const std::vector<Gauge>& actual,
                            const std::string& reason);

}  // namespace ddc::testbeds
