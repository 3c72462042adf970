#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <set>

#include "cut.h"
#include "relations.h"

namespace ddc {

using channel_maps::Pairing;

namespace {

/// Sizes that heads can have: what divides an axis that has no part in a gauge yet.
std::vector<int64_t> divisors_of_free_axes(const Search& search) {
  std::set<int64_t> sizes;
  for (size_t k = 0; k < search.probe.slots().size(); ++k) {
    const int64_t size = search.slot(k).size;
    if (search.slot(k).stacked || search.is_vector(k) || !search.is_free(k, 0, size)) continue;
    for (int64_t n = 2; n < size; ++n) {
      if (size % n == 0) sizes.insert(n);
    }
  }
  return descending(std::move(sizes));
}

/// Exponents per tensor.
at::Tensor exponents_of(const Search& search, const ScaleMatch& match) {
  auto vector = at::zeros({static_cast<int64_t>(search.probe.params().size())}, at::kDouble);
  std::set<std::pair<size_t, double>> seen;
  for (const auto& piece : match.matches.front()) {
    const auto tensor = search.slot(piece.slot).tensor;
    if (!seen.insert({tensor, piece.exponent}).second) continue;
    vector[static_cast<int64_t>(tensor)] += piece.exponent;
  }
  return vector;
}

/// All that writes to a residual stream that turns: norms forget its scale, but for their eps, which
/// float32 may not see here.
at::Tensor stream_scale(const Search& search) {
  auto vector = at::zeros({static_cast<int64_t>(search.probe.params().size())}, at::kDouble);
  for (const auto& gauge : search.gauges) {
    if (gauge.kind != "residual rotation") continue;
    for (const auto& leg : gauge.legs) {
      if (!leg.through.empty()) continue;
      vector[static_cast<int64_t>(search.slot(search.slot_of(leg.tensor, leg.axis)).tensor)] = 1;
    }
  }
  return vector;
}

/// Whether some tensors' scales are related in a way that no scale so far explains. The inner products
/// of tensors and gradients obey every relation that channels or heads do, in sum; not seen so are
/// relations between parts of one tensor.
bool has_unexplained_relation(Search& search) {
  auto& probe = search.probe;
  const auto tensors = static_cast<int64_t>(probe.params().size());
  const int64_t window = std::min<int64_t>(tensors, window_of_heads);
  probe.draw(2 * window);
  const auto totals = probe.totals();
  const auto norms = totals.norm(2, {0});
  for (int64_t start = 0; start < tensors; start += std::max<int64_t>(1, window / 2)) {
    const int64_t size = std::min(window, tensors - start);
    const auto unit =
        totals.narrow(1, start, size) / norms.narrow(0, start, size).clamp_min(1e-300);
    const auto basis = null_basis(unit, probe.zero());
    std::vector<at::Tensor> known;
    const auto add_known = [&](const at::Tensor& vector) {
      const auto inside = vector.narrow(0, start, size);
      const double norm = inside.norm().item<double>();
      if (norm == 0 || norm < vector.norm().item<double>()) return;
      known.push_back(inside * norms.narrow(0, start, size));
    };
    for (const auto& match : search.scales) add_known(exponents_of(search, match));
    // Scales of a stream have no such relation if some layers of the model are left out.
    if (search.stacks.empty()) add_known(stream_scale(search));
    const int64_t explained =
        known.empty() ? 0 : at::linalg_matrix_rank(at::stack(known), 1e-6).item<int64_t>();
    if (basis.size(1) > explained) return true;
  }
  return false;
}

}  // namespace

void Search::find_heads() {
  // The largest that holds is the size of a head, whatever the hints say.
  std::set<int64_t> all(head_sizes.begin(), head_sizes.end());
  all.insert(hints.head_sizes.begin(), hints.head_sizes.end());
  for (const int64_t n : divisors_of_free_axes(*this)) all.insert(n);
  const auto sizes = descending(std::move(all));
  const auto has = [](const std::vector<int64_t>& list, int64_t n) {
    return std::find(list.begin(), list.end(), n) != list.end();
  };
  const auto is_known = [&](int64_t n) { return has(head_sizes, n); };
  const auto cut = [&](const View& view, bool look_only) {
    return Cut{.view = view,
               .most_pieces = std::numeric_limits<int64_t>::max(),
               .whole_axes = false,
               .look_only = look_only,
               .hinted = has(hints.head_sizes, view.size)};
  };
  const auto try_view = [&](const View& view) {
    const bool found = find_at(*this, cut(view, false));
    if (found && !is_known(view.size)) head_sizes.push_back(view.size);
    return found;
  };
  const auto try_planes = [&](int64_t n) {
    for (int64_t rotary = n - n % 2; rotary > 2; rotary -= 2) {
      if (try_view({n, Pairing::half_split, rotary})) break;
    }
    // Interleaved planes are the same whatever their number; the fewer, the more coordinates are known
    // to pass through.
    if (!find_at(*this, cut({n, Pairing::interleaved, n - n % 2}, /*look_only=*/true))) return;
    for (int64_t rotary = 2; rotary <= n; rotary += 2) {
      if (try_view({n, Pairing::interleaved, rotary})) return;
    }
  };
  // Sums over the two coordinates of a plane also vanish where each of them does, and where heads are
  // taken together. So planes are looked for in what is left of heads whose size is known; and of those
  // whose size is not known once all sizes have been tried.
  std::set<int64_t> tried;
  std::set<int64_t> planes_tried;
  for (const int64_t n : sizes) {
    if (n < 2 || !tried.insert(n).second) continue;
    try_view({.size = n});
    if (!is_known(n)) continue;
    planes_tried.insert(n);
    try_planes(n);
  }
  if (!has_unexplained_relation(*this)) return;
  for (const int64_t n : sizes) {
    if (n > 1 && planes_tried.insert(n).second) try_planes(n);
  }
}

}  // namespace ddc
