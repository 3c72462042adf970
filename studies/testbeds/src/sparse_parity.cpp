#include "ddc/testbeds/sparse_parity.h"

#include <ATen/ATen.h>

#include "ddc/gauge/norm.h"
#include "draw.h"
#include "layers.h"
#include "options.h"

namespace ddc::testbeds {
namespace {

/// Channels whose joint norm is below this are dead: an absolute floor, since the collapse is nearly
/// uniform and hides from measures relative to the median (paper, "The collapse hides from the global
/// gain").
constexpr double dead_below = 1e-3;

Observations observe(const Testbed& bed, double gain_offset, const Parameters& params) {
  const at::NoGradGuard no_grad;
  const auto gain = (params["norm.weight"].tensor + gain_offset).abs().to(at::kDouble);
  const auto& readout = params["readout.weight"].tensor;
  const auto joint = gain * readout.to(at::kDouble).norm(2, 0);
  const auto batch = bed.batch(0, readout.scalar_type());
  return {{"accuracy", accuracy(bed.outputs(params, batch.inputs), batch.targets)},
          {"gain", gain.mean().item<double>()},
          {"joint_norm", joint.mean().item<double>()},
          {"dead_units", joint.lt(dead_below).sum().item<double>()},
          {"global_gain",
           params["hidden.weight"].tensor.norm().item<double>() * readout.norm().item<double>()}};
}

}  // namespace

Testbed sparse_parity(const SparseParityOptions& options) {
  TORCH_CHECK(options.bits > 0 && options.bits <= 20,
              "testbed option bits must be between 1 and 20 (all 2^bits inputs are listed), got ",
              options.bits);
  TORCH_CHECK(options.relevant > 0 && options.relevant <= options.bits,
              "testbed option relevant must be between 1 and bits (", options.bits, "), got ",
              options.relevant);
  check_positive("d_hidden", options.d_hidden);
  Testbed bed;
  bed.name = "sparse parity";
  bed.init = [options](uint64_t seed, at::ScalarType dtype) {
    Initializer weights(seed, dtype);
    weights.add_linear("hidden", options.d_hidden, options.bits);
    weights.add("hidden.bias", {options.d_hidden}, options.bias_spread);
    weights.add("norm.weight", {options.d_hidden}, options.gain_spread,
                /*mean=*/options.gain_is_offset ? 0 : 1);
    weights.add_linear("readout", 1, options.d_hidden);
    return weights.parameters();
  };
  set_network(bed, [offset = options.gain_is_offset ? 1.0 : 0.0](
                       const Parameters& params, const at::Tensor& inputs, const Trace& trace) {
    const auto hidden = linear(params, "hidden", inputs);
    if (trace) trace("hidden", hidden);
    const auto normed =
        at::layer_norm(hidden.relu(), {hidden.size(-1)}, params["norm.weight"].tensor + offset);
    if (trace) trace("stream", normed);
    return linear(params, "readout", normed).squeeze(-1);
  });
  bed.batch = [options](uint64_t /*seed*/, at::ScalarType dtype) {
    const auto numbers = at::arange(int64_t{1} << options.bits, at::kLong).unsqueeze(1);
    const auto bits = numbers.bitwise_right_shift(at::arange(options.bits, at::kLong)).remainder(2);
    const auto signs = (1 - 2 * bits).to(dtype);
    return Batch{signs, signs.narrow(1, 0, options.relevant).prod(1)};
  };
  set_criterion(bed, logistic);
  bed.gauges = [options](const Parameters& params) {
    return std::vector<Gauge>{norm_scale({.gain = params["norm.weight"],
                                          .readers = {params["readout.weight"]},
                                          .gain_is_offset = options.gain_is_offset})};
  };
  bed.full_batch = true;
  bed.observe = [bed, offset = options.gain_is_offset ? 1.0 : 0.0](const Parameters& params) {
    return observe(bed, offset, params);
  };
  return bed;
}

}  // namespace ddc::testbeds
