#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace ddc {

/// Disjoint sets over 0..n-1. A set is known by its least member.
class UnionFind {
 public:
  explicit UnionFind(size_t n) : parent_(n) { std::iota(parent_.begin(), parent_.end(), 0); }
  size_t find(size_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void join(size_t a, size_t b) {
    parent_[std::max(find(a), find(b))] = std::min(find(a), find(b));
  }

 private:
  std::vector<size_t> parent_;
};

}  // namespace ddc
