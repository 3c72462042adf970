// A base rule of one's own that inherits every gauge: the sign of the momentum (Lion's simplest cousin).
// The rule is the struct; everything below it shows that two copies of a network, the same function
// written down differently, stay the same function under it.

#include <ATen/ATen.h>

#include <cstdio>

#include "ddc/optim/lifted.h"
#include "ddc/testbeds/blocks.h"
#include "ddc/testbeds/runs.h"

struct SignMomentum {
  static constexpr const char* name = "SignMomentum";
  struct Options {
    double lr = 1e-3;
    double momentum = 0.9;
    double weight_decay = 0;
    bool maximize = false;

    ddc::OptionList options() {
      return {{"lr", lr, "learning rate", ddc::at_least(0)},
              {"momentum", momentum, "decay of the average", ddc::fraction()},
              {"weight_decay", weight_decay, "decoupled weight decay", ddc::at_least(0)},
              {"maximize", maximize, "ascend"}};
    }
  };
  struct State {
    at::Tensor average;

    ddc::StateTensors tensors() { return {{"average", &average}}; }
  };
  static State init(const ddc::TensorView& view, const Options& /*options*/) {
    return {view.zeros()};
  }
  static at::Tensor step(const at::Tensor& gradient, int64_t /*step*/,
                         const ddc::TensorView& /*view*/, State& state, const Options& options) {
    state.average.lerp_(gradient, 1 - options.momentum);
    // A sign makes full steps of rounding errors, so what is next to nothing is left alone.
    const auto smallest = state.average.abs().max() * 1e-7;
    return at::where(state.average.abs() > smallest, state.average.sign(), 0.0) * -options.lr;
  }
};

int main() {
  using namespace ddc::testbeds;
  const auto testbed = rms_norm_block({.gauges = GaugeSet::full});
  const auto gauges = testbed.gauges(testbed.init(1, at::kDouble));
  const auto lifted = [](std::vector<ddc::Gauge> bound) {
    return [bound](const ddc::Parameters& params, const std::vector<ddc::Gauge>&) {
      return std::make_unique<ddc::Lifted<SignMomentum>>(
          params, bound, SignMomentum::Options{.lr = 1e-3, .weight_decay = 0.01});
    };
  };
  std::printf("%s, two copies related by a random element of its %zu gauges, after 50 steps\n",
              testbed.name.c_str(), gauges.size());
  std::printf("  relative error without gauges  %.1e\n", paired_error(testbed, gauges, lifted({})));
  std::printf("  relative error with them       %.1e\n",
              paired_error(testbed, gauges, lifted(gauges)));
  return 0;
}
