#pragma once

#include "ddc/testbeds/testbed.h"

// Tasks that several testbeds share.

namespace ddc::testbeds {

/// Tokens drawn at random, and for each the sum of its multiple and its predecessor.
decltype(Testbed::batch) token_sums(int64_t vocabulary, int64_t multiplier, int64_t batch_size,
                                    int64_t sequence);

/// Standard normal inputs of this shape (the batch comes first), and the class whose direction
/// `features` of them, [batch, d_features], lie along most.
using Features = std::function<at::Tensor(const at::Tensor& inputs)>;
decltype(Testbed::batch) nearest_directions(std::vector<int64_t> shape, int64_t d_features,
                                            int64_t classes, uint64_t teacher_seed,
                                            Features features);

}  // namespace ddc::testbeds
