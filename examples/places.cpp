// Prints how far the losses of DDCAdam at the two places are apart over 100 steps, where both are one algorithm
// (scales and shifts of weights as they are stored), on the transformer blocks and the zoo; and beside it how
// far AdamW's in float32 are from its own in float64, without any gauge. `places NAME...` prints some of them.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "ddc/optim/adam.h"
#include "ddc/testbeds/blocks.h"
#include "ddc/testbeds/runs.h"
#include "ddc/testbeds/zoo.h"

namespace {

using namespace ddc::testbeds;

constexpr uint64_t kSteps = 100;

struct Network {
  std::string name;
  Testbed bed;
  uint64_t seed = 1;
};

/// Gauges for which both places are one algorithm.
std::vector<ddc::Gauge> scales_and_shifts(std::vector<ddc::Gauge> gauges) {
  std::erase_if(gauges, [](const ddc::Gauge& gauge) {
    return (gauge.action != ddc::Action::scale && gauge.action != ddc::Action::shift) ||
           std::any_of(gauge.legs.begin(), gauge.legs.end(),
                       [](const ddc::Leg& leg) { return !leg.through.empty(); });
  });
  return gauges;
}

std::vector<Network> networks() {
  std::vector<Network> result = {{"layer norm block", layer_norm_block({.relu_part = false})},
                                 {"rms norm block", rms_norm_block()},
                                 {"gpt-j block", gpt_j_block()},
                                 {"vit block", vit_block()}};
  for (const auto& entry : zoo()) result.push_back({entry.name, entry.testbed, entry.seed});
  std::erase_if(result, [](const Network& each) {
    return scales_and_shifts(each.bed.gauges(each.bed.init(each.seed, at::kDouble))).empty();
  });
  return result;
}

/// Decay acts on a gain 1 + w in place and on w at the canonical place, where gains are stored so.
ddc::AdamOptions options_for(const std::vector<ddc::Gauge>& gauges) {
  const bool offset = std::any_of(gauges.begin(), gauges.end(), [](const ddc::Gauge& gauge) {
    return gauge.legs.front().offset != 0;
  });
  return {.lr = 1e-3, .weight_decay = offset ? 0 : 0.1};
}

/// One copy of a network in training.
struct Copy {
  const Network& network;
  ddc::Parameters params;
  ddc::DDCAdam optimizer;

  Copy(const Network& of, const ddc::Parameters& start, const std::vector<ddc::Gauge>& gauges,
       const ddc::AdamOptions& options, const ddc::Treatment& treatment = {})
      : network(of), params(start), optimizer(params, gauges, options, treatment) {}

  double step(uint64_t number) {
    const auto type = params.begin()->tensor.scalar_type();
    const double loss = backward(network.bed, params, network.bed.batch(1000 + number, type));
    optimizer.step();
    return loss;
  }
};

double apart(Copy& first, Copy& second) {
  double largest = 0;
  for (uint64_t step = 0; step < kSteps; ++step) {
    const double one = first.step(step);
    largest = std::max(largest, std::abs(second.step(step) - one) / std::abs(one));
  }
  return largest;
}

double between_places(const Network& network, at::ScalarType type) {
  const auto params = network.bed.init(network.seed, type);
  const auto gauges = scales_and_shifts(network.bed.gauges(params));
  const auto options = options_for(gauges);
  Copy first(network, params, gauges, options,
             {.placement = ddc::Place::in_place, .hold = ddc::Hold::unit});
  Copy second(network, params.clone(), gauges, options, {.placement = ddc::Place::canonical});
  return apart(first, second);
}

double rounding_of_adamw(const Network& network) {
  const auto params = network.bed.init(network.seed, at::kFloat);
  const auto options = options_for(scales_and_shifts(network.bed.gauges(params)));
  ddc::Parameters wide;
  for (const auto& [name, tensor] : params) {
    wide.add(name, tensor.detach().to(at::kDouble).requires_grad_());
  }
  Copy first(network, wide, {}, options);
  Copy second(network, params, {}, options);
  return apart(first, second);
}

}  // namespace

int main(int count, char** arguments) {
  const std::set<std::string> wanted(arguments + 1, arguments + count);
  std::printf("%d threads\n\n", at::get_num_threads());
  std::printf("| network | float64 | float32 | AdamW in float32 against float64 |\n");
  std::printf("| --- | ---: | ---: | ---: |\n");
  for (const auto& network : networks()) {
    if (!wanted.empty() && wanted.count(network.name) == 0) continue;
    std::printf("| %s | %.1e | %.1e | %.1e |\n", network.name.c_str(),
                between_places(network, at::kDouble), between_places(network, at::kFloat),
                rounding_of_adamw(network));
    std::fflush(stdout);
  }
  return 0;
}
