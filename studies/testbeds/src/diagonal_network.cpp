#include "ddc/testbeds/diagonal_network.h"

#include <ATen/ATen.h>

#include <cmath>

#include "ddc/gauge/rescale.h"
#include "ddc/geometry/curvature.h"
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
/// as they are: along the balanced mode u = v = t the Fisher matrix goes like t^(2 (k - 1)).
double dead_point_order(const Testbed& bed, const Parameters& params, int64_t coordinate) {
  const auto log_fisher = [&](double t) {
    Parameters at_t;
    std::vector<at::Tensor> mode;
    for (const auto& [name, tensor] : params) {
      auto value = tensor.detach().to(at::kDouble).clone();
      value[coordinate].fill_(t);
      mode.push_back(at::zeros_like(value));
      mode.back()[coordinate].fill_(1);
      at_t.add(name, value.requires_grad_(true));
    }
    const auto direction = at::cat(mode);
    const Curvature fisher(at_t, evaluation_of(bed, at_t));
    return std::log(at::dot(direction, fisher.product(direction)).item<double>());
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
  bed.observe = [bed, dead = dead_coordinate(options)](const Parameters& params) -> Observations {
    const auto mode = (params["u"].tensor / params["v"].tensor).detach().abs().log();
    return {{"mode_norm", mode.to(at::kDouble).norm().item<double>()},
            {"order", dead_point_order(bed, params, dead)}};
  };
  return bed;
}

}  // namespace ddc::testbeds
