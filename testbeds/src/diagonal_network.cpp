#include "ddc/testbeds/diagonal_network.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "ddc/gauge/rescale.h"
#include "draw.h"
#include "layers.h"
#include "options.h"

namespace ddc::testbeds {
namespace {

/// The coordinates in which the target is not zero.
at::Tensor support_of(const DiagonalNetworkOptions& options) {
  return at::randperm(options.dimension, generator(options.data_seed, Stream::teacher), at::kLong)
      .narrow(0, 0, options.nonzeros);
}

/// The first coordinate in which the target is zero; 0 if there is none.
int64_t dead_coordinate(const DiagonalNetworkOptions& options) {
  const auto target = at::zeros({options.dimension}).index_fill_(0, support_of(options), 1);
  return target.argmin().item<int64_t>();
}

/// The order k with which the function vanishes at the dead point u = v = 0 of one coordinate, the others
/// as they are: along the balanced mode u = v = t the Gauss-Newton Fisher, the mean square of the
/// derivative of the outputs, goes like t^(2 (k - 1)).
double dead_point_order(const Parameters& params, const at::Tensor& inputs, int64_t coordinate) {
  const at::AutoGradMode grad(true);
  const auto log_fisher = [&](double at_t) {
    const auto t = at::full({}, at_t, at::kDouble).requires_grad_(true);
    const auto set = [&](const char* name) {
      const auto chosen = at::zeros({params[name].tensor.size(0)}, at::kDouble)
                              .index_fill_(0, at::full({1}, coordinate, at::kLong), 1);
      return params[name].tensor.detach().to(at::kDouble) * (1 - chosen) + t * chosen;
    };
    // The derivative of every output at once: twice through the gradient of a weighted sum.
    const auto weights = at::ones({inputs.size(0)}, at::kDouble).requires_grad_(true);
    const auto sum = inputs.matmul(set("u") * set("v")).dot(weights);
    const auto slope =
        torch::autograd::grad({sum}, {t}, {}, std::nullopt, /*create_graph=*/true)[0];
    const auto derivatives = torch::autograd::grad({slope}, {weights})[0];
    return std::log(derivatives.square().mean().item<double>());
  };
  const double far = 1e-2;
  const double near = 1e-4;
  return 1 + (log_fisher(far) - log_fisher(near)) / (2 * (std::log(far) - std::log(near)));
}

}  // namespace

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
    const auto beta =
        at::zeros({options.dimension}, at::kDouble).index_fill_(0, support_of(options), 1);
    const Parameters teacher(std::vector<NamedTensor>{{"u", beta}, {"v", beta}});
    return teach(network, teacher, options.samples, options.dimension,
                 generator(options.data_seed, Stream::batch), dtype);
  };
  bed.full_batch = true;
  set_criterion(bed, mean_squared_error);
  bed.gauges = [](const Parameters& params) {
    return std::vector<Gauge>{diagonal_linear({.u = params["u"], .v = params["v"]})};
  };
  bed.observe = [batch = bed.batch(0, at::kDouble),
                 dead = dead_coordinate(options)](const Parameters& params) -> Observations {
    const auto mode = (params["u"].tensor / params["v"].tensor).detach().abs().log();
    return {{"mode_norm", mode.to(at::kDouble).norm().item<double>()},
            {"order", dead_point_order(params, batch.inputs, dead)}};
  };
  return bed;
}

}  // namespace ddc::testbeds
