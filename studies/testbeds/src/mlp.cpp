#include "ddc/testbeds/mlp.h"

#include <ATen/ATen.h>

#include "ddc/gauge/rescale.h"
#include "draw.h"
#include "layers.h"
#include "options.h"

namespace ddc::testbeds {
namespace {

std::string layer_name(int64_t l) { return "layers." + std::to_string(l); }

}  // namespace

Testbed relu_chain(const ReluChainOptions& options) {
  TORCH_CHECK(options.depth >= 2, "testbed option depth must be >= 2, got ", options.depth);
  check_positive("d_in", options.d_in);
  check_positive("d_hidden", options.d_hidden);
  check_positive("d_out", options.d_out);
  check_positive("batch_size", options.batch_size);
  check_degree(options.degree);
  const auto draw = [options](Initializer weights) {
    for (int64_t l = 0; l < options.depth; ++l) {
      weights.add_linear(layer_name(l), l + 1 == options.depth ? options.d_out : options.d_hidden,
                         l == 0 ? options.d_in : options.d_hidden, options.bias_spread);
    }
    return weights.parameters();
  };
  Testbed bed;
  bed.name = "relu chain";
  bed.init = [=](uint64_t seed, at::ScalarType dtype) { return draw(Initializer(seed, dtype)); };
  set_network(bed,
              [options](const Parameters& params, const at::Tensor& inputs, const Trace& trace) {
                return relu_stack(params, options.depth, options.degree, inputs, trace);
              });
  bed.batch = [=, network = bed.outputs](uint64_t seed, at::ScalarType dtype) {
    const auto teacher = draw(Initializer(options.teacher_seed, at::kDouble, Stream::teacher));
    return teach(network, teacher, options.batch_size, options.d_in, generator(seed, Stream::batch),
                 dtype);
  };
  set_criterion(bed, mean_squared_error);
  bed.gauges = [options](const Parameters& params) {
    ChainedRescale chain;
    for (int64_t l = 0; l < options.depth; ++l) {
      chain.weights.push_back(params[layer_name(l) + ".weight"]);
      chain.biases.push_back(params[layer_name(l) + ".bias"]);
    }
    chain.degree = static_cast<double>(options.degree);
    chain.whole = !options.per_channel;
    return chained_rescale(chain);
  };
  return bed;
}

}  // namespace ddc::testbeds
