#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace ddc::testbeds {

/// Counts the bytes of tensors that are made and freed while it is in force, and the most there were at
/// once. What is resident is more: the allocator keeps what was freed between what was not.
class Tally : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*ptr*/, int64_t size, size_t /*allocated*/, size_t /*reserved*/,
                         c10::Device /*device*/) override {
    const int64_t now = live_ += size;
    int64_t most = most_;
    while (now > most && !most_.compare_exchange_weak(most, now)) {
    }
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t most() const { return most_; }
  /// What was made and is still there, less what was there before and is not.
  int64_t live() const { return live_; }

 private:
  std::atomic<int64_t> live_ = 0;
  std::atomic<int64_t> most_ = 0;
};

/// The tally of a function's run.
template <class Run>
std::shared_ptr<const Tally> tally_of(const Run& run) {
  const auto tally = std::make_shared<Tally>();
  const c10::DebugInfoGuard counted(c10::DebugInfoKind::PROFILER_STATE, tally);
  run();
  return tally;
}

}  // namespace ddc::testbeds
