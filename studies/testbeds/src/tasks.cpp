#include "tasks.h"

#include <ATen/ATen.h>

#include <utility>

#include "draw.h"
#include "options.h"

namespace ddc::testbeds {

decltype(Testbed::batch) token_sums(int64_t vocabulary, int64_t multiplier, int64_t batch_size,
                                    int64_t sequence) {
  check_positive("batch_size", batch_size);
  return [=](uint64_t seed, at::ScalarType /*dtype*/) {
    const auto tokens = at::randint(0, vocabulary, {batch_size, sequence},
                                    generator(seed, Stream::batch), at::kLong);
    const auto previous = at::constant_pad_nd(tokens, {1, 0}).narrow(1, 0, sequence);
    return Batch{tokens, (tokens * multiplier + previous).remainder(vocabulary)};
  };
}

decltype(Testbed::batch) nearest_directions(std::vector<int64_t> shape, int64_t d_features,
                                            int64_t classes, uint64_t teacher_seed,
                                            Features features) {
  check_positive("batch_size", shape.front());
  const auto directions =
      normal({d_features, classes}, 1, generator(teacher_seed, Stream::teacher));
  return [shape = std::move(shape), directions, features = std::move(features)](
             uint64_t seed, at::ScalarType dtype) {
    const auto inputs = normal(shape, 1, generator(seed, Stream::batch));
    return Batch{inputs.to(dtype), features(inputs).matmul(directions).argmax(-1)};
  };
}

}  // namespace ddc::testbeds
