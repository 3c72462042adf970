#include "ddc/testbeds/diagonal_network.h"

#include <ATen/ATen.h>

#include "ddc/gauge/rescale.h"
#include "draw.h"
#include "layers.h"
#include "options.h"

namespace ddc::testbeds {

Testbed diagonal_network(const DiagonalNetworkOptions& options) {
  check_positive("dimension", options.dimension);
  check_positive("samples", options.samples);
  TORCH_CHECK(options.nonzeros >= 0 && options.nonzeros <= options.dimension,
              "testbed option nonzeros must be between 0 and dimension (", options.dimension,
              "), got ", options.nonzeros);
  Testbed bed;
  bed.name = "diagonal network";
  bed.init = [options](uint64_t seed, at::ScalarType dtype) {
    const auto half_log_ratio =
        (at::rand({options.dimension}, generator(seed, Stream::parameters), at::kDouble) - 0.5) *
        options.log_ratio_range;
    Parameters params;
    params.add("u", (half_log_ratio.exp() * options.scale).to(dtype).requires_grad_(true));
    params.add("v", (half_log_ratio.neg().exp() * options.scale).to(dtype).requires_grad_(true));
    return params;
  };
  bed.outputs = [](const Parameters& params, const at::Tensor& inputs) {
    return inputs.matmul(params["u"].tensor * params["v"].tensor);
  };
  bed.batch = [options, network = bed.outputs](uint64_t /*seed*/, at::ScalarType dtype) {
    const auto support =
        at::randperm(options.dimension, generator(options.data_seed, Stream::teacher), at::kLong)
            .narrow(0, 0, options.nonzeros);
    const auto beta = at::zeros({options.dimension}, at::kDouble).index_fill_(0, support, 1);
    const Parameters teacher(std::vector<NamedTensor>{{"u", beta}, {"v", beta}});
    return teach(network, teacher, options.samples, options.dimension,
                 generator(options.data_seed, Stream::batch), dtype);
  };
  bed.full_batch = true;
  set_criterion(bed, mean_squared_error);
  bed.gauges = [](const Parameters& params) {
    return std::vector<Gauge>{diagonal_linear({.u = params["u"], .v = params["v"]})};
  };
  bed.observe = [](const Parameters& params) -> Observations {
    const auto mode = (params["u"].tensor / params["v"].tensor).detach().abs().log();
    return {{"mode_norm", mode.to(at::kDouble).norm().item<double>()}};
  };
  return bed;
}

}  // namespace ddc::testbeds
