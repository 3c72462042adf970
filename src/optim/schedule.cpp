#include "ddc/optim/schedule.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <numbers>

namespace ddc {

double Schedule::fraction(int64_t step) const {
  if (step < warmup) return static_cast<double>(step + 1) / static_cast<double>(warmup + 1);
  if (step >= total) return final_fraction;
  const double done = static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
  const double left =
      shape == Shape::cosine ? 0.5 * (1 + std::cos(std::numbers::pi * done)) : 1 - done;
  return final_fraction + (1 - final_fraction) * left;
}

WarmupScheduler::WarmupScheduler(torch::optim::Optimizer& optimizer, Schedule schedule)
    : LRScheduler(optimizer),
      target_(optimizer),
      schedule_(schedule),
      base_lrs_(get_current_lrs()) {
  TORCH_CHECK(schedule.warmup >= 0, "schedule: warmup must be >= 0, got ", schedule.warmup);
  TORCH_CHECK(schedule.total > schedule.warmup, "schedule: total must be > warmup (",
              schedule.warmup, "), got ", schedule.total);
  TORCH_CHECK(schedule.final_fraction >= 0 && schedule.final_fraction <= 1,
              "schedule: final_fraction must be in [0, 1], got ", schedule.final_fraction);
  apply_(0);
}

std::vector<double> WarmupScheduler::get_lrs() {
  // The base class counts the step after it has asked for the learning rates.
  std::vector<double> lrs;
  for (const double base : base_lrs_) {
    lrs.push_back(base * schedule_.fraction(current_step() + 1));
  }
  return lrs;
}

void WarmupScheduler::resume(int64_t step) {
  TORCH_CHECK(step >= 0, "schedule: cannot resume at step ", step);
  step_count_ = static_cast<unsigned>(step);
  apply_(step);
}

void WarmupScheduler::apply_(int64_t step) {
  for (size_t g = 0; g < base_lrs_.size(); ++g) {
    target_.param_groups()[g].options().set_lr(base_lrs_[g] * schedule_.fraction(step));
  }
}

}  // namespace ddc
