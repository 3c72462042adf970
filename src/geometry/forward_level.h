#pragma once

#include <torch/csrc/autograd/forward_grad.h>

#include <cstdint>

namespace ddc {

/// A level of forward differentiation. All derivatives of the level are gone with it.
class ForwardLevel {
 public:
  ForwardLevel() : index_(torch::autograd::ForwardADLevel::get_next_idx()) {}
  ForwardLevel(const ForwardLevel&) = delete;
  ForwardLevel& operator=(const ForwardLevel&) = delete;
  ~ForwardLevel() { torch::autograd::ForwardADLevel::release_idx(index_); }
  uint64_t index() const { return index_; }

 private:
  uint64_t index_;
};

}  // namespace ddc
