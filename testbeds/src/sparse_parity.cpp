#include "ddc/testbeds/sparse_parity.h"

#include <ATen/ATen.h>

#include "ddc/gauge/norm_scale.h"
#include "draw.h"
#include "layers.h"
#include "options.h"

namespace ddc::testbeds {

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
    weights.add("norm.weight", {options.d_hidden}, options.gain_spread, /*mean=*/1);
    weights.add_linear("readout", 1, options.d_hidden);
    return weights.parameters();
  };
  bed.outputs = [](const Parameters& params, const at::Tensor& inputs) {
    const auto hidden = linear(params, "hidden", inputs).relu();
    return linear(params, "readout", layer_norm(params, "norm", hidden)).squeeze(-1);
  };
  bed.batch = [options](uint64_t /*seed*/, at::ScalarType dtype) {
    const auto numbers = at::arange(int64_t{1} << options.bits, at::kLong).unsqueeze(1);
    const auto bits = numbers.bitwise_right_shift(at::arange(options.bits, at::kLong)).remainder(2);
    const auto signs = (1 - 2 * bits).to(dtype);
    return Batch{signs, signs.narrow(1, 0, options.relevant).prod(1)};
  };
  set_criterion(bed, logistic);
  bed.gauges = [](const Parameters& params) {
    return std::vector<Gauge>{
        norm_scale({.gain = params["norm.weight"], .readers = {params["readout.weight"]}})};
  };
  return bed;
}

}  // namespace ddc::testbeds
