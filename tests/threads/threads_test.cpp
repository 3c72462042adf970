// What may be called from several threads at once (docs/reference/promises.md). `make tsan` looks for races in it.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <thread>

#include "ddc/discover/symmetry_group.h"
#include "ddc/testbeds/zoo.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

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
Parameters trained(const std::string& name, Place place) {
  const auto entry = zoo_entry(name);
  auto params = entry.testbed.init(entry.seed, at::kFloat);
  Treatment treatment;
  treatment.placement = place;
  const auto optimizer =
      testbeds::ddc_adam({.lr = 1e-3}, treatment)(params, entry.testbed.gauges(params));
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
