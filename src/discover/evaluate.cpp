#include "ddc/discover/evaluate.h"

#include <ATen/ATen.h>

#include <mutex>

namespace ddc {
namespace {

/// Seeds torch's default generator, and brings it back to where it was.
class Seeded {
 public:
  explicit Seeded(uint64_t seed) {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    state_ = generator_.get_state();
    generator_.set_current_seed(seed);
  }
  ~Seeded() {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(state_);
  }
  Seeded(const Seeded&) = delete;
  Seeded& operator=(const Seeded&) = delete;

 private:
  at::Generator generator_ = at::globalContext().defaultGenerator(at::Device(at::kCPU));
  at::Tensor state_;
};

}  // namespace

Evaluate reseeded(std::function<Evaluation()> evaluate) {
  TORCH_CHECK(evaluate, "reseeded: the function to evaluate is empty");
  return [evaluate = std::move(evaluate)](uint64_t batch) {
    const Seeded seeded(batch);
    return evaluate();
  };
}

}  // namespace ddc
