#include "relations.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

namespace ddc {
namespace {

/// What is below this share of its row is no part of it.
constexpr double link = 1e-4;
/// What is sure of a column, as a share of the smallest that counts.
constexpr double doubt = 1e-2;

/// Columns take part in a relation with very different sizes (a bias beside a weight that reads inputs of
/// 0 to 255). Unit columns with coefficients below this are rounding.
double least_coefficient(double tolerance) { return std::sqrt(tolerance); }

/// Up to where an entry of a row of a basis of the null space, or of its projector, is rounding.
double zero_of_row(double norm, double tolerance) {
  return std::max(doubt * least_coefficient(tolerance), link * norm);
}

at::Tensor row_norms(const at::Tensor& basis) { return basis.norm(2, {1}).contiguous(); }

/// Components of more are not searched for their smallest relations.
constexpr size_t most_bundles = 24;

/// Sets of columns that the projector ties together.
std::vector<std::vector<size_t>> components_of(const at::Tensor& projector, double tolerance) {
  const auto size = static_cast<size_t>(projector.size(0));
  const auto* p = projector.const_data_ptr<double>();
  std::vector<size_t> root(size);
  std::iota(root.begin(), root.end(), 0);
  const auto find = [&](size_t i) {
    while (root[i] != i) i = root[i] = root[root[i]];
    return i;
  };
  // The norm of a row of the basis is the root of the projector's diagonal.
  std::vector<double> norm;
  for (size_t i = 0; i < size; ++i) norm.push_back(std::sqrt(std::max(p[i * size + i], 0.0)));
  const double least = least_coefficient(tolerance);
  for (size_t i = 0; i < size; ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (norm[i] <= least || norm[j] <= least) continue;
      const double zero =
          std::max(doubt * least * std::max(norm[i], norm[j]), link * norm[i] * norm[j]);
      if (std::abs(p[i * size + j]) > zero) root[find(i)] = find(j);
    }
  }
  std::vector<std::vector<size_t>> members(size);
  for (size_t i = 0; i < size; ++i) {
    if (norm[i] > least) members[find(i)].push_back(i);
  }
  std::vector<std::vector<size_t>> result;
  for (auto& set : members) {
    if (!set.empty()) result.push_back(std::move(set));
  }
  return result;
}

at::Tensor index_of(const std::vector<size_t>& columns) {
  return at::tensor(std::vector<int64_t>(columns.begin(), columns.end()), at::kLong);
}

/// The vector of the null space that vanishes outside of `support`, if there is exactly one.
at::Tensor with_support(const at::Tensor& basis, const std::vector<size_t>& support,
                        double tolerance) {
  // Rows as multiples of what is rounding in them.
  const auto zero = (link * row_norms(basis)).clamp_min(zero_of_row(0, tolerance));
  auto outside = basis * (link / zero).unsqueeze(1);
  outside.index_fill_(0, index_of(support), 0);
  const auto [u, sigma, v] = at::linalg_svd(outside, /*full_matrices=*/true);
  const int64_t dimension = basis.size(1);
  const auto* s = sigma.const_data_ptr<double>();
  if (s[dimension - 1] > link || (dimension > 1 && s[dimension - 2] <= link)) return {};
  return basis.matmul(v[dimension - 1]);
}

/// Columns whose coefficients have the same ratio in all relations (the rows of a table): they take part
/// together or not at all.
std::vector<std::vector<size_t>> bundles_of(const at::Tensor& basis, double tolerance) {
  const auto norms = row_norms(basis);
  const auto rows = basis / norms.unsqueeze(1);
  const auto zero = [&](int64_t i) {
    const double norm = norms.const_data_ptr<double>()[i];
    return zero_of_row(norm, tolerance) / norm;
  };
  std::vector<std::vector<size_t>> bundles;
  for (int64_t i = 0; i < rows.size(0); ++i) {
    const auto found = std::find_if(bundles.begin(), bundles.end(), [&](const auto& bundle) {
      const auto& first = rows[static_cast<int64_t>(bundle.front())];
      const auto turn = (first * rows[i]).sum().sign();
      const double same = zero(i) + zero(static_cast<int64_t>(bundle.front()));
      return ((first * turn - rows[i]).norm() < same).template item<bool>();
    });
    if (found == bundles.end()) {
      bundles.push_back({static_cast<size_t>(i)});
    } else {
      found->push_back(static_cast<size_t>(i));
    }
  }
  return bundles;
}

/// Relations of the fewest bundles that span a null space of more than one dimension.
std::vector<at::Tensor> smallest_supports(const at::Tensor& basis, double tolerance) {
  const auto bundles = bundles_of(basis, tolerance);
  const auto size = bundles.size();
  std::vector<at::Tensor> found;
  if (size > most_bundles) return found;
  for (size_t count = 2; count <= size; ++count) {
    std::vector<bool> chosen(size, false);
    std::fill(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(count), true);
    int64_t tries = 0;
    do {
      std::vector<size_t> support;
      for (size_t i = 0; i < size; ++i) {
        if (chosen[i]) support.insert(support.end(), bundles[i].begin(), bundles[i].end());
      }
      const auto vector = with_support(basis, support, tolerance);
      if (!vector.defined()) continue;
      auto all = found;
      all.push_back(vector / vector.norm());
      const auto sigma = at::linalg_svdvals(at::stack(all));
      if (sigma.min().item<double>() < link) continue;
      found = all;
      if (static_cast<int64_t>(found.size()) == basis.size(1)) return found;
    } while (++tries < 20000 && std::prev_permutation(chosen.begin(), chosen.end()));
  }
  return found;
}

/// Relations among unit columns, in terms of their numbers there.
std::vector<Relation> relations_among(const at::Tensor& columns, const at::Tensor& norms,
                                      const std::vector<size_t>& members, double tolerance) {
  std::vector<Relation> result;
  if (members.size() < 2 || columns.size(0) < static_cast<int64_t>(members.size())) return result;
  const auto index = index_of(members);
  const auto basis = null_basis(columns.index_select(1, index), tolerance);
  if (basis.size(1) == 0) return result;
  const auto projector = basis.matmul(basis.t()).contiguous();
  for (const auto& component : components_of(projector, tolerance)) {
    const auto part = projector.index_select(0, index_of(component));
    const auto [u, sigma, v] = at::linalg_svd(part, /*full_matrices=*/false);
    const int64_t dimension = (sigma > 0.5).sum().item<int64_t>();
    const auto local = u.narrow(1, 0, dimension).contiguous();
    const auto vectors = dimension == 1 ? std::vector<at::Tensor>{local.select(1, 0)}
                                        : smallest_supports(local, tolerance);
    const auto size_of_row = row_norms(local);
    for (const auto& vector : vectors) {
      const auto coefficients =
          (vector / norms.index_select(0, index.index_select(0, index_of(component)))).contiguous();
      const auto unit = vector.contiguous();
      Relation relation;
      double smallest = 0;
      for (size_t k = 0; k < component.size(); ++k) {
        const double zero = zero_of_row(size_of_row.const_data_ptr<double>()[k], tolerance);
        if (std::abs(unit.const_data_ptr<double>()[k]) < zero) continue;
        const double coefficient = coefficients.const_data_ptr<double>()[k];
        relation.columns.push_back(members[component[k]]);
        relation.coefficients.push_back(coefficient);
        if (smallest == 0 || std::abs(coefficient) < std::abs(smallest)) smallest = coefficient;
      }
      for (double& coefficient : relation.coefficients) coefficient /= smallest;
      result.push_back(std::move(relation));
    }
  }
  return result;
}

}  // namespace

double coefficient_tolerance(double zero) { return std::max(1e-3, 100 * zero); }

at::Tensor null_basis(const at::Tensor& columns, double tolerance) {
  const auto triangle = std::get<1>(at::linalg_qr(columns, "r"));
  const auto [u, sigma, v] = at::linalg_svd(triangle, /*full_matrices=*/false);
  const int64_t rank = (sigma > tolerance).sum().item<int64_t>();
  return v.narrow(0, rank, v.size(0) - rank).t();
}

std::vector<Relation> sparse_relations(const at::Tensor& columns,
                                       const std::vector<size_t>& position,
                                       const RelationOptions& options) {
  const auto norms = columns.norm(2, {0}).contiguous();
  const auto unit = columns / norms.clamp_min(1e-300);
  std::vector<size_t> order;
  for (size_t k = 0; k < position.size(); ++k) {
    if (norms.const_data_ptr<double>()[k] > 0) order.push_back(k);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return position[a] < position[b]; });
  std::vector<Relation> result;
  std::set<std::vector<size_t>> known;
  const auto add = [&](const std::vector<size_t>& members) {
    for (auto& relation : relations_among(unit, norms, members, options.tolerance)) {
      if (known.insert(relation.columns).second) result.push_back(std::move(relation));
    }
  };
  if (order.empty()) return result;
  const size_t first = position[order.front()];
  const size_t last = position[order.back()];
  const bool enough_rows = columns.size(0) * 2 >= static_cast<int64_t>(order.size()) * 3;
  if ((order.size() <= options.few / 4 && enough_rows) || last - first < options.window) {
    add(order);
    return result;
  }
  // Each window overlaps the next one by half, so what fits into half of one is in one.
  for (size_t start = first; start <= last; start += options.window / 2) {
    std::vector<size_t> members;
    for (const size_t k : order) {
      if (position[k] >= start && position[k] < start + options.window) members.push_back(k);
    }
    add(members);
  }
  // What no window explains may belong together over longer distances.
  std::set<size_t> explained;
  for (const auto& relation : result) {
    explained.insert(relation.columns.begin(), relation.columns.end());
  }
  std::vector<size_t> rest;
  for (const size_t k : order) {
    if (explained.count(k) == 0) rest.push_back(k);
  }
  if (rest.size() <= options.few && columns.size(0) > static_cast<int64_t>(rest.size())) add(rest);
  return result;
}

}  // namespace ddc
