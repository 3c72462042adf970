#pragma once

#include <torch/optim/schedulers/lr_scheduler.h>

#include <cstdint>
#include <vector>

namespace ddc {

/// A linear rise to 1 over `warmup` steps, step 0 being at 1 / (warmup + 1); then a fall to
/// `final_fraction` at step `total` along half a cosine or a straight line; then constant.
struct Schedule {
  enum class Shape { cosine, linear };
  Shape shape = Shape::cosine;
  int64_t warmup = 0;
  int64_t total = 0;
  double final_fraction = 0;

  /// The fraction of the base learning rate at step `step`, counted from 0.
  double fraction(int64_t step) const;
};

/// Applies a Schedule to every param group of any LibTorch optimizer, relative to the learning
/// rates it has at construction. Call `step()` after each step of the optimizer:
///
///     ddc::WarmupScheduler scheduler(optimizer, {.warmup = 100, .total = 10000});
class WarmupScheduler : public torch::optim::LRScheduler {
 public:
  WarmupScheduler(torch::optim::Optimizer& optimizer, Schedule schedule);

  /// Steps taken so far, to be stored with a checkpoint, and its counterpart for resuming: sets the
  /// learning rates that belong to that step. The base learning rates are those at construction.
  int64_t current_step() const { return static_cast<int64_t>(step_count_); }
  void resume(int64_t step);

 protected:
  std::vector<double> get_lrs() override;

 private:
  void apply_(int64_t step);

  torch::optim::Optimizer& target_;
  Schedule schedule_;
  std::vector<double> base_lrs_;
};

}  // namespace ddc
