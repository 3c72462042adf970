// What may be called from several threads at once (docs/reference/promises.md). `make tsan` looks for races in it.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <mutex>
#include <thread>

#include "ddc/discover/discover.h"
#include "ddc/discover/symmetry_group.h"
#include "ddc/io/checkpoint.h"
#include "ddc/optim/registry.h"
#include "ddc/testbeds/zoo.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

using testbeds::evaluation_of;
using testbeds::zoo_entry;

/// Calls work(0), ..., work(count - 1), each in a thread of its own, and throws what any of them threw.
void at_once(size_t count, const std::function<void(size_t)>& work) {
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::exception_ptr error;
  for (size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        error = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
}

/// Weights after a few steps of a network of the zoo, in float32, where loops over memory are threaded too.
Parameters trained(const std::string& name, Place place, const std::string& rule = "DDCAdam") {
  const auto entry = zoo_entry(name);
  auto params = entry.testbed.init(entry.seed, at::kFloat);
  Treatment treatment;
  treatment.placement = place;
  const auto& registered = registered_rule(rule);
  // Muon steps vectors by Adam, in a group of their own.
  const bool splits = registered.options()->list().find("use_adam") != nullptr;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const bool vectors : {false, true}) {
    std::vector<at::Tensor> own;
    for (const auto& tensor : params.tensors()) {
      if (vectors == (splits && tensor.dim() < 2)) own.push_back(tensor);
    }
    if (own.empty()) continue;
    auto options = registered.options();
    options->set_lr(1e-3);
    if (vectors) options->list().assign({{"use_adam", true}});
    groups.emplace_back(std::move(own), std::move(options));
  }
  const auto optimizer = registered.make(groups, params, entry.testbed.gauges(params), treatment);
  for (uint64_t step = 0; step < 4; ++step) {
    backward(entry.testbed, params, entry.testbed.batch(step, at::kFloat));
    optimizer->step();
  }
  return params;
}

TEST(Threads, OptimizersOfDifferentParametersStepAtOnce) {
  const std::vector<std::pair<std::string, Place>> runs{{"rms_swiglu_rope", Place::canonical},
                                                        {"rms_swiglu_rope", Place::in_place},
                                                        {"vit", Place::canonical},
                                                        {"fused_qkv", Place::in_place}};
  std::vector<Parameters> alone;
  for (const auto& [name, place] : runs) alone.push_back(trained(name, place));
  std::vector<Parameters> together(runs.size());
  at_once(runs.size(), [&](size_t i) { together[i] = trained(runs[i].first, runs[i].second); });
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const auto& [name, tensor] : alone[i]) {
      EXPECT_TRUE(at::equal(tensor, together[i][name].tensor)) << runs[i].first << " " << name;
    }
  }
}

TEST(Threads, EveryRuleStepsBesideTheOthers) {
  std::vector<std::pair<std::string, Place>> runs;
  for (const auto& rule : registered_rules()) {
    for (const auto place : {Place::canonical, Place::in_place})
      runs.emplace_back(rule.name, place);
  }
  std::vector<Parameters> alone;
  for (const auto& [rule, place] : runs) alone.push_back(trained("mlp_chain", place, rule));
  std::vector<Parameters> together(runs.size());
  at_once(runs.size(),
          [&](size_t i) { together[i] = trained("mlp_chain", runs[i].second, runs[i].first); });
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const auto& [name, tensor] : alone[i]) {
      EXPECT_TRUE(at::equal(tensor, together[i][name].tensor)) << runs[i].first << " " << name;
    }
  }
}

TEST(Threads, DifferentModelsAreDiscoveredAtOnce) {
  const std::vector<std::string> names{"mlp_chain", "mlp_chain", "conv_relu"};
  const auto found = [&](size_t i) {
    const auto entry = zoo_entry(names[i]);
    const auto params = entry.testbed.init(entry.seed, at::kDouble);
    return discover(params, evaluation_of(entry.testbed, params)).to_json();
  };
  std::vector<std::string> together(names.size());
  at_once(names.size(), [&](size_t i) { together[i] = found(i); });
  for (const size_t i : {1, 2}) EXPECT_EQ(together[i], found(i)) << names[i];
  EXPECT_EQ(together[0], together[1]);
}

TEST(Threads, ACheckpointThatTwoThreadsWriteIsThatOfOneOfThem) {
  const auto entry = zoo_entry("fused_qkv");
  std::vector<Parameters> weights;
  for (const uint64_t seed : {1, 2}) weights.push_back(entry.testbed.init(seed, at::kFloat));
  const auto path = std::filesystem::path(::testing::TempDir()) /
                    ("ddc-threads-" + std::to_string(::getpid()) + ".safetensors");
  at_once(2, [&](size_t i) {
    for (int time = 0; time < 20; ++time) save_checkpoint(path, weights[i], nullptr);
  });
  const auto read = entry.testbed.init(3, at::kFloat);
  load_checkpoint(path, read, nullptr);
  const bool is_first = at::equal(read.begin()->tensor, weights[0].begin()->tensor);
  for (const auto& [name, tensor] : weights[is_first ? 0 : 1]) {
    EXPECT_TRUE(at::equal(tensor, read[name].tensor)) << name;
  }
  std::filesystem::remove(path);
}

TEST(Threads, AGroupIsReadAtOnce) {
  const auto entry = zoo_entry("rms_swiglu_rope");
  const auto params = entry.testbed.init(entry.seed, at::kDouble);
  SymmetryGroup group{.parameters = fingerprint(params)};
  for (auto& gauge : entry.testbed.gauges(params)) group.findings.push_back({.gauge = gauge});
  const auto text = group.to_json();
  at_once(4, [&](size_t i) {
    const auto own = params.clone();
    group.check(own);
    group.act_random_(own, 0.1, i);
    TORCH_CHECK(group.to_json() == text && SymmetryGroup::parse(text).to_json() == text,
                "a group was read otherwise");
  });
}

}  // namespace
}  // namespace ddc::tests
