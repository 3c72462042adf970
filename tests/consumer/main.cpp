// What a user's first program does: bind two gauges, train, look at the report, and have the
// identities of a gauge checked.

#include <ATen/ATen.h>
#include <ddc/gauge/norm.h>
#include <ddc/gauge/rescale.h>
#include <ddc/optim/adam.h>
#include <ddc/testing/gauge_invariants.h>
#include <ddc/version.h>

#include <iostream>

int main() {
  at::manual_seed(1);
  const auto draw = [](at::IntArrayRef shape) {
    return at::randn(shape, at::kDouble).requires_grad_();
  };
  const ddc::Parameters params(std::vector<ddc::NamedTensor>{{"norm.weight", draw({8})},
                                                             {"norm.bias", draw({8})},
                                                             {"fc1.weight", draw({16, 8})},
                                                             {"fc1.bias", draw({16})},
                                                             {"fc2.weight", draw({4, 16})}});
  const auto loss = [](const ddc::Parameters& p, int64_t batch) {
    const auto x = at::linspace(-1, 1, 32 * 8, at::kDouble).view({32, 8}).roll(batch, 0).sin();
    const auto normed = at::layer_norm(x, {8}, p["norm.weight"].tensor, p["norm.bias"].tensor);
    const auto hidden = at::linear(normed, p["fc1.weight"].tensor, p["fc1.bias"].tensor).relu();
    return (at::linear(hidden, p["fc2.weight"].tensor) - x.narrow(1, 0, 4)).square().mean();
  };

  ddc::DDCAdam optimizer(params,
                         {ddc::norm_scale({.gain = params["norm.weight"],
                                           .shift = params["norm.bias"],
                                           .readers = {params["fc1.weight"]}}),
                          ddc::relu_rescale({.in = params["fc1.weight"],
                                             .in_bias = params["fc1.bias"],
                                             .out = {params["fc2.weight"]}})},
                         {.lr = 1e-2, .weight_decay = 0.01});
  const double before = loss(params, 0).item<double>();
  for (int64_t step = 0; step < 100; ++step) {
    optimizer.zero_grad();
    loss(params, step).backward();
    optimizer.step();
  }
  const double after = loss(params, 0).item<double>();
  std::cout << "ddc " << ddc::kVersion << ": loss " << before << " -> " << after << '\n'
            << optimizer.report();

  const auto report = ddc::testing::check_gauge_invariants(optimizer.gauges()[1], params, loss);
  std::cout << report;
  return after < before && report.ok() ? 0 : 1;
}
