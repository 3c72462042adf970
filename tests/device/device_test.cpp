// Steps on an accelerator: nothing of a canonical step is on the wrong side, and the host waits once, for
// the check of the gradients. The accelerator is a pretend one.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <limits>
#include <map>

#include "ddc/io/checkpoint.h"
#include "ddc/optim/adam.h"
#include "ddc/optim/registry.h"
#include "ddc/placement.h"
#include "ddc/testbeds/runs.h"
#include "ddc/testbeds/zoo.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/pretend_device.h"

namespace ddc::tests {
namespace {

using pretend::kDevice;
using pretend::total;
using pretend::Traffic;
using testbeds::backward;
using testbeds::zoo_entry;
using testbeds::ZooEntry;

Treatment held(int64_t every = 1) { return {.placement = Place::canonical, .every = every}; }

Parameters copied(const Parameters& params, c10::Device device) {
  Parameters copies;
  for (const auto& [name, tensor] : params) {
    const auto copy = tensor.detach().to(device, tensor.scalar_type(), false, /*copy=*/true);
    copies.add(name, at::Tensor(copy).requires_grad_(tensor.requires_grad()));
  }
  return copies;
}

/// Gradients of a batch; passes are made on the CPU.
void differentiate(const testbeds::Testbed& bed, const Parameters& params, uint64_t seed) {
  const auto here = copied(params, at::kCPU);
  backward(bed, here, bed.batch(seed, here.begin()->tensor.scalar_type()));
  for (const auto& [name, tensor] : here) {
    params[name].tensor.mutable_grad() = tensor.grad().to(params[name].tensor.device());
  }
}

/// max over tensors of |a - b| relative to |b|, or to a thousandth of the largest tensor: some are empty.
double apart(const Parameters& on_device, const Parameters& expected) {
  const at::NoGradGuard no_grad;
  const auto actual = copied(on_device, at::kCPU);
  double most = 0;
  for (const auto& [name, tensor] : expected) most = std::max(most, tensor.norm().item<double>());
  double result = 0;
  for (const auto& [name, tensor] : expected) {
    const double size = std::max(tensor.norm().item<double>(), most * 1e-3);
    const double error = (actual[name].tensor - tensor).norm().item<double>() / size;
    if (!(error <= result)) result = error;
  }
  return result;
}

void expect_on_device(LiftedOptimizer& optimizer) {
  for (const auto& [name, tensor] : optimizer.parameter_table()) {
    EXPECT_EQ(tensor.device(), kDevice) << name;
  }
  for (const auto& slot : optimizer.state_slots()) {
    // Counts, and where the weights are, belong to the host, which decides by them.
    const bool is_of_host = slot.tensor->scalar_type() == at::kLong || slot.field == "original";
    EXPECT_EQ(slot.tensor->device(), is_of_host ? c10::Device(at::kCPU) : kDevice) << slot.key();
  }
}

/// Options without which a rule has no memory, or decomposes matrices in every step.
const std::map<std::string, OptionValues> kOptions = {
    {"DDCSgd", {{"momentum", 0.9}}}, {"DDCMuon", {{"method", std::string("fast")}}}};

/// A rule and a network.
class DeviceSteps : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  /// Matrices by the rule, vectors too unless it leaves them to Adam.
  std::unique_ptr<LiftedOptimizer> make(const Parameters& params) const {
    const auto& rule = registered_rule(std::get<0>(GetParam()));
    const bool splits = rule.options()->list().find("use_adam") != nullptr;
    std::vector<at::Tensor> matrices;
    std::vector<at::Tensor> vectors;
    for (const auto& tensor : params.tensors()) {
      (splits && tensor.dim() < 2 ? vectors : matrices).push_back(tensor);
    }
    const auto options = [&](bool by_adam) {
      auto result = rule.options();
      result->list().assign({{"lr", 1e-3}, {"weight_decay", 0.1}});
      if (const auto found = kOptions.find(rule.name); found != kOptions.end()) {
        result->list().assign(found->second);
      }
      if (by_adam) result->list().assign({{"use_adam", true}});
      return result;
    };
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(matrices, options(false));
    if (!vectors.empty()) groups.emplace_back(vectors, options(true));
    return rule.make(groups, params, bed.gauges(params), held());
  }

  ZooEntry entry = zoo_entry(std::get<1>(GetParam()));
  const testbeds::Testbed& bed = entry.testbed;
};

std::vector<std::string> rules() {
  std::vector<std::string> names;
  for (const auto& rule : registered_rules()) names.push_back(rule.name);
  return names;
}

// The networks together have all kinds of gauges.
INSTANTIATE_TEST_SUITE_P(All, DeviceSteps,
                         ::testing::Combine(::testing::ValuesIn(rules()),
                                            ::testing::Values("ln_squared_relu", "rms_swiglu_rope",
                                                              "gemma", "linear_pair", "vit")),
                         [](const auto& instance) {
                           return std::get<0>(instance.param) + "_" + std::get<1>(instance.param);
                         });

TEST_P(DeviceSteps, WaitOnceAndEqualThoseOnTheCpu) {
  const auto here = bed.init(entry.seed, at::kDouble);
  const auto there = copied(here, kDevice);
  const auto on_cpu = make(here);
  const auto on_device = make(there);
  expect_on_device(*on_device);
  EXPECT_LE(apart(there, here), 1e-12);
  for (int step = 0; step < 6; ++step) {
    differentiate(bed, here, 1000 + step);
    differentiate(bed, there, 1000 + step);
    on_cpu->step();
    const Traffic traffic;
    on_device->step();
    if (step == 0) continue;
    EXPECT_LE(total(traffic.waits()), 1) << pretend::listed(traffic.waits());
    EXPECT_EQ(total(traffic.uploads()), 0) << pretend::listed(traffic.uploads());
    // Shampoo's roots are new in every step; SOAP's bases are not.
    if (std::get<0>(GetParam()) != "DDCShampoo") {
      EXPECT_EQ(total(traffic.decompositions()), 0) << pretend::listed(traffic.decompositions());
    }
  }
  expect_on_device(*on_device);
  // On the CPU moves along orbits may wait for the next step.
  on_cpu->settle_();
  EXPECT_LE(apart(there, here), 1e-12);
}

TEST_P(DeviceSteps, GoOnFromCheckpoints) {
  const auto there = copied(bed.init(entry.seed, at::kDouble), kDevice);
  const auto optimizer = make(there);
  const auto train = [&](LiftedOptimizer& each, const Parameters& params, int from, int to) {
    for (int step = from; step < to; ++step) {
      differentiate(bed, params, 1000 + step);
      each.step();
    }
  };
  train(*optimizer, there, 0, 3);
  const auto placed = copied(there, kDevice);
  optimizer->to_original_();
  EXPECT_GT(apart(there, copied(placed, at::kCPU)), 1e-3);
  optimizer->to_canonical_();
  EXPECT_LE(apart(there, copied(placed, at::kCPU)), 1e-12);
  const auto saved = copied(there, kDevice);
  const auto state = optimizer->state_dict();
  train(*optimizer, there, 3, 5);
  const auto expected = copied(there, at::kCPU);
  // A file comes by way of the CPU.
  for (const auto device : {kDevice, c10::Device(at::kCPU)}) {
    const auto copy = copied(saved, kDevice);
    const auto resumed = make(copy);
    auto loaded = state;
    for (auto& [key, tensor] : loaded.tensors) tensor = tensor.to(device);
    resumed->load_state_dict(loaded);
    expect_on_device(*resumed);
    train(*resumed, copy, 3, 5);
    EXPECT_LE(apart(copy, expected), 1e-8) << device;
  }
}

class DeviceHold : public ::testing::TestWithParam<std::string> {
 protected:
  ZooEntry entry = zoo_entry(GetParam());
  const testbeds::Testbed& bed = entry.testbed;
};

INSTANTIATE_TEST_SUITE_P(All, DeviceHold, ::testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const auto& entry : testbeds::zoo()) names.push_back(entry.name);
                           return names;
                         }()),
                         [](const auto& instance) { return instance.param; });

TEST_P(DeviceHold, RestoresBehindAdamWWithoutWaiting) {
  for (const auto& [type, every, tolerance] :
       {std::tuple{at::kDouble, 1, 1e-12}, std::tuple{at::kFloat, 2, 1e-4}}) {
    const auto here = bed.init(entry.seed, type);
    const auto there = copied(here, kDevice);
    Placement on_cpu(here, bed.gauges(here), held(every));
    Placement on_device(there, bed.gauges(there), held(every));
    const auto options = torch::optim::AdamWOptions(1e-3).weight_decay(0.1);
    torch::optim::AdamW first(here.tensors(), options);
    torch::optim::AdamW second(there.tensors(), options);
    for (int step = 0; step < 4; ++step) {
      differentiate(bed, here, 1000 + step);
      differentiate(bed, there, 1000 + step);
      first.step();
      on_cpu.restore_();
      second.step();
      const Traffic traffic;
      on_device.restore_();
      EXPECT_EQ(total(traffic.waits()), 0) << pretend::listed(traffic.waits());
      EXPECT_EQ(total(traffic.decompositions()), 0) << pretend::listed(traffic.decompositions());
      EXPECT_EQ(total(traffic.uploads()), 0) << pretend::listed(traffic.uploads());
    }
    // The CPU sweeps chains of scales until nothing moves, for which an accelerator would have to wait.
    const bool chain = entry.name == "conv_relu" || entry.name == "mlp_chain";
    const double near = chain ? 1e-4 : tolerance;
    EXPECT_LE(apart(there, here), near);
    EXPECT_NEAR(on_device.distance_to_section(), on_cpu.distance_to_section(), near);
    on_cpu.to_original_();
    on_device.to_original_();
    EXPECT_LE(apart(there, here), near);
  }
}

class DeviceInPlace : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(All, DeviceInPlace,
                         ::testing::Values("ln_squared_relu", "rms_swiglu_rope", "linear_pair"),
                         [](const auto& instance) { return instance.param; });

/// It waits as often as it likes, and has nothing on the wrong side.
TEST_P(DeviceInPlace, StepsEqualThoseOnTheCpu) {
  const auto entry = zoo_entry(GetParam());
  const auto& bed = entry.testbed;
  for (const auto& treatment :
       {Treatment{.placement = Place::in_place},
        Treatment{.placement = Place::in_place, .second_moment = SecondMoment::body_frame_topk},
        Treatment{.placement = Place::in_place, .second_moment = SecondMoment::per_head_matrix},
        // Not Adam, which would make steps of how the two round.
        Treatment{.placement = Place::in_place, .vertical = Vertical::sgd, .procrustes = true}}) {
    const auto here = bed.init(entry.seed, at::kDouble);
    const auto there = copied(here, kDevice);
    DDCAdam on_cpu(here, bed.gauges(here), {.lr = 1e-3}, treatment);
    DDCAdam on_device(there, bed.gauges(there), {.lr = 1e-3}, treatment);
    for (int step = 0; step < 4; ++step) {
      differentiate(bed, here, 1000 + step);
      differentiate(bed, there, 1000 + step);
      on_cpu.step();
      on_device.step();
    }
    expect_on_device(on_device);
    EXPECT_LE(apart(there, here), 1e-12) << to_string(treatment);
    const auto expected = on_cpu.gauge_coordinates();
    const auto actual = on_device.gauge_coordinates();
    for (size_t k = 0; k < expected.size(); ++k) {
      EXPECT_TRUE(at::allclose(actual[k].cpu(), expected[k], 1e-9, 1e-12, /*equal_nan=*/true));
    }
    EXPECT_EQ(on_device.report().degenerate_channels(), on_cpu.report().degenerate_channels());
  }
}

TEST(DeviceStep, FilesGoOnOnEitherSide) {
  const auto entry = zoo_entry("ln_squared_relu");
  const auto& bed = entry.testbed;
  const auto train = [&](DDCAdam& optimizer, const Parameters& params, int from, int to) {
    for (int step = from; step < to; ++step) {
      differentiate(bed, params, 1000 + step);
      optimizer.step();
    }
  };
  const auto params = copied(bed.init(entry.seed, at::kDouble), kDevice);
  DDCAdam optimizer(params, bed.gauges(params), {.lr = 1e-3}, held());
  train(optimizer, params, 0, 3);
  const Folder folder;
  save_checkpoint(folder / "run.safetensors", params, &optimizer);
  train(optimizer, params, 3, 6);
  for (const auto device : {kDevice, c10::Device(at::kCPU)}) {
    const auto copy = copied(bed.init(entry.seed + 1, at::kDouble), device);
    DDCAdam resumed(copy, bed.gauges(copy), {.lr = 1e-3}, held());
    load_checkpoint(folder / "run.safetensors", copy, &resumed);
    train(resumed, copy, 3, 6);
    resumed.settle_();
    EXPECT_LE(apart(params, copied(copy, at::kCPU)), 1e-12) << device;
    // And back to the device, once nothing is pending.
    save_checkpoint(folder / "back.safetensors", copy, &resumed);
    const auto back = copied(bed.init(entry.seed + 2, at::kDouble), kDevice);
    DDCAdam again(back, bed.gauges(back), {.lr = 1e-3}, held());
    load_checkpoint(folder / "back.safetensors", back, &again);
    EXPECT_LE(apart(params, copied(back, at::kCPU)), 1e-12) << device;
  }
}

TEST(DeviceStep, RefusesGradientsThatAreNotFiniteAndChangesNothing) {
  const auto entry = zoo_entry("ln_squared_relu");
  const auto& bed = entry.testbed;
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
        -std::numeric_limits<double>::infinity()}) {
    const auto params = copied(bed.init(entry.seed, at::kDouble), kDevice);
    DDCAdam optimizer(params, bed.gauges(params), {.lr = 1e-2}, held());
    differentiate(bed, params, 1);
    optimizer.step();
    const auto before = copied(params, at::kCPU);
    const auto state = optimizer.state_dict();
    differentiate(bed, params, 2);
    const auto& [name, tensor] = *(params.begin() + 3);
    tensor.grad().flatten()[1].fill_(bad);
    expect_error([&] { optimizer.step(); },
                 {"the gradient of '" + name + "' has NaN or Inf entries", "nothing was changed"});
    EXPECT_EQ(apart(params, before), 0);
    for (const auto& [key, slot] : optimizer.state_dict().tensors) {
      EXPECT_TRUE(at::equal(slot, state.tensors.at(key))) << key;
    }
  }
}

}  // namespace
}  // namespace ddc::tests
