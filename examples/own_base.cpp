// A base rule of one's own that inherits every gauge: the sign of the momentum (Lion's simplest cousin).
// The rule is the struct; everything below it shows that two copies of a network, the same function
// written down differently, stay the same function under it.

#include <ATen/ATen.h>

#include <cstdio>

#include "ddc/optim/lifted_rule.h"
#include "ddc/testbeds/blocks.h"
#include "ddc/testbeds/runs.h"

struct SignMomentum {
  static constexpr const char* name = "SignMomentum";
  struct Settings {
    double lr = 1e-3;
    double momentum = 0.9;
  };
  struct State {
    at::Tensor average;
  };
  template <class Visit>
  static void options(Settings& settings, Visit&& visit) {
    visit("lr", settings.lr);
    visit("momentum", settings.momentum);
  }
  template <class Visit>
  static void tensors(State& state, Visit&& visit) {
    visit("average", state.average);
  }
  static at::Tensor step(const at::Tensor& gradient, int64_t /*step*/,
                         const ddc::TensorView& /*view*/, State& state, const Settings& settings) {
    if (!state.average.defined()) state.average = at::zeros_like(gradient);
    state.average.lerp_(gradient, 1 - settings.momentum);
    // A sign makes full steps of rounding errors, so what is next to nothing is left alone.
    const auto smallest = state.average.abs().max() * 1e-7;
    return at::where(state.average.abs() > smallest, state.average.sign(), 0.0) * -settings.lr;
  }
};

int main() {
  using namespace ddc::testbeds;
  const auto testbed = rms_norm_block({.gauges = GaugeSet::full});
  const auto gauges = testbed.gauges(testbed.init(1, at::kDouble));
  const auto lifted = [](std::vector<ddc::Gauge> bound) {
    return [bound](const ddc::Parameters& params, const std::vector<ddc::Gauge>&) {
      return std::make_unique<ddc::Lifted<SignMomentum>>(
          params, bound,
          ddc::RuleOptions<SignMomentum>{.settings = {.lr = 1e-3}, .weight_decay = 0.01});
    };
  };
  std::printf("%s, two copies related by a random element of its %zu gauges, after 50 steps\n",
              testbed.name.c_str(), gauges.size());
  std::printf("  relative error without gauges  %.1e\n", paired_error(testbed, gauges, lifted({})));
  std::printf("  relative error with them       %.1e\n",
              paired_error(testbed, gauges, lifted(gauges)));
  return 0;
}
