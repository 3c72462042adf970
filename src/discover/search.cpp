#include "search.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace ddc {

Search::Search(Probe& probe_, const Parameters& everything_, const Stacks& stacks_, Hints hints_)
    : probe(probe_), everything(everything_), stacks(stacks_), hints(std::move(hints_)) {
  for (const auto& slot : probe.slots()) used.emplace_back(slot.size, false);
  probe.draw(4);
  std::vector<double> sizes;
  for (size_t k = 0; k < probe.params().size(); ++k) sizes.push_back(probe.influence(k));
  auto sorted = sizes;
  std::sort(sorted.begin(), sorted.end());
  // Rounding of a sum that cancels, beside what losses usually depend on.
  const double rounding = 100 * probe.epsilon() * sorted[sorted.size() / 2];
  for (const double size : sizes) null_.push_back(size <= rounding);
}

double Search::distance_from_one(size_t k) const {
  return std::abs(tensor_of(k).tensor.detach().mean().item<double>() - 1);
}

bool Search::is_free(size_t k, int64_t first, int64_t count) const {
  return std::none_of(used[k].begin() + first, used[k].begin() + first + count,
                      [](bool value) { return value; });
}

void Search::mark(size_t k, int64_t first, int64_t count) {
  std::fill(used[k].begin() + first, used[k].begin() + first + count, true);
}

size_t Search::slot_of(const std::string& tensor, int64_t axis) const {
  for (size_t k = 0; k < probe.slots().size(); ++k) {
    if (slot(k).axis == axis && !slot(k).stacked && tensor_of(k).name == tensor) return k;
  }
  TORCH_CHECK(false, "discover: no parameter '", tensor, "' with an axis ", axis);
}

bool Search::add_if_conserved(Gauge gauge) {
  if (probe.relative_charges({gauge}).front() > probe.zero()) return false;
  gauges.push_back(std::move(gauge));
  return true;
}

}  // namespace ddc
