#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "relations.h"
#include "search.h"

namespace ddc {
namespace {

/// Tensors with more rows are only looked at as a whole.
constexpr int64_t most_rows = 64;
constexpr int64_t most_batches = 160;

/// Rows of a table, or a vector as a whole.
struct Addend {
  size_t slot;
  /// The row; -1: the sum of all, or the vector.
  int64_t row = -1;
};

/// The axis along which a table has its rows: the first but for those of size one in front.
int64_t row_axis(const at::Tensor& tensor) {
  int64_t axis = 0;
  while (axis + 2 < tensor.dim() && tensor.size(axis) == 1) ++axis;
  return axis;
}

/// What several tensors are added to each other by: a constant may go from one to another.
struct Exchange {
  std::map<size_t, std::map<int64_t, double>> rows_of_slot;
};

std::vector<Addend> addends(const Search& search, int64_t length, const std::set<size_t>& shifted) {
  std::vector<Addend> result;
  for (size_t k = 0; k < search.probe.slots().size(); ++k) {
    const auto& slot = search.slot(k);
    const auto& tensor = search.tensor_of(k).tensor;
    if (slot.stacked || slot.axis != row_axis(tensor) || search.is_null(slot.tensor)) continue;
    if (search.is_vector(k)) {
      if (slot.size == length && search.probe.is_small(slot.tensor)) result.push_back({k});
      continue;
    }
    if (shifted.count(k) > 0) continue;
    if (tensor.numel() / slot.size != length || !search.is_free(k, 0, slot.size)) continue;
    if (slot.size > most_rows || !search.probe.is_small(slot.tensor)) {
      result.push_back({k});
      continue;
    }
    for (int64_t row = 0; row < slot.size; ++row) result.push_back({k, row});
  }
  return result;
}

at::Tensor values_of(const Search& search, const Addend& addend, int64_t length) {
  const size_t tensor = search.slot(addend.slot).tensor;
  if (addend.row < 0 && !search.is_vector(addend.slot)) {
    return search.probe.shift_charge(addend.slot);
  }
  const auto gradient =
      search.probe.small_gradient(tensor).narrow(0, 0, search.probe.shift_batches());
  return addend.row < 0 ? gradient : gradient.narrow(1, addend.row * length, length);
}

/// Relations that share a tensor are classes of one gauge: a gauge has one leg per tensor.
std::vector<std::vector<Exchange>> grouped(const std::vector<Exchange>& exchanges) {
  std::vector<std::vector<Exchange>> groups;
  for (const auto& exchange : exchanges) {
    std::vector<Exchange> group{exchange};
    for (auto other = groups.begin(); other != groups.end();) {
      const bool shares = std::any_of(other->begin(), other->end(), [&](const Exchange& member) {
        return std::any_of(
            member.rows_of_slot.begin(), member.rows_of_slot.end(),
            [&](const auto& entry) { return exchange.rows_of_slot.count(entry.first) > 0; });
      });
      if (shares) {
        group.insert(group.end(), other->begin(), other->end());
        other = groups.erase(other);
      } else {
        ++other;
      }
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

/// The sign with which each tensor takes part, one for all classes: the signs of a class as a whole mean
/// nothing, and are turned to those of the classes before it.
std::map<size_t, double> signs_of(std::vector<Exchange> classes) {
  std::map<size_t, double> sign;
  while (!classes.empty()) {
    auto next = std::find_if(classes.begin(), classes.end(), [&](const Exchange& exchange) {
      return std::any_of(exchange.rows_of_slot.begin(), exchange.rows_of_slot.end(),
                         [&](const auto& entry) { return sign.count(entry.first) > 0; });
    });
    if (next == classes.end()) next = classes.begin();
    double turn = 1;
    for (const auto& [slot, rows] : next->rows_of_slot) {
      if (sign.count(slot) > 0) turn = sign[slot] * rows.begin()->second;
    }
    for (const auto& [slot, rows] : next->rows_of_slot) {
      sign.emplace(slot, turn * rows.begin()->second);
    }
    classes.erase(next);
  }
  return sign;
}

/// The channel map of a slot in the exchange with this number; that of a vector, which is one row.
std::vector<int64_t> channels_of(const Search& search, size_t slot, const Exchange& exchange,
                                 int64_t number) {
  std::vector<int64_t> result(search.is_vector(slot) ? 1 : search.slot(slot).size, -1);
  for (const auto& [row, coefficient] : exchange.rows_of_slot.at(slot)) {
    if (row >= 0) {
      result[row] = number;
    } else {
      std::fill(result.begin(), result.end(), number);
    }
  }
  return result;
}

/// Rows of tables, and vectors that are rows by themselves; several classes of them. A tensor has one
/// leg, or, if it has rows in several classes (what is added up of three tables), one for each.
Gauge row_exchange(const Search& search, const std::vector<Exchange>& classes,
                   const std::map<size_t, std::vector<int64_t>>& unseen) {
  Gauge gauge;
  gauge.kind = "embedding exchange";
  gauge.action = Action::shift;
  gauge.channels = static_cast<int64_t>(classes.size());
  const auto sign = signs_of(classes);
  for (const auto& [slot, value] : sign) {
    std::vector<std::vector<int64_t>> maps;
    for (size_t c = 0; c < classes.size(); ++c) {
      if (classes[c].rows_of_slot.count(slot) == 0) continue;
      maps.push_back(channels_of(search, slot, classes[c], static_cast<int64_t>(c)));
    }
    auto all = maps.front();
    bool apart = true;
    for (size_t m = 1; m < maps.size(); ++m) {
      for (size_t i = 0; i < all.size(); ++i) {
        apart = apart && (all[i] < 0 || maps[m][i] < 0);
        all[i] = std::max(all[i], maps[m][i]);
      }
    }
    const auto shown = [](const std::vector<int64_t>& map) {
      return std::count_if(map.begin(), map.end(), [](int64_t c) { return c >= 0; });
    };
    // Rows that no batch has shown follow the others.
    for (auto& map : maps) {
      if (unseen.count(slot) == 0 || shown(map) < shown(all)) continue;
      const auto number = *std::max_element(map.begin(), map.end());
      for (const int64_t row : unseen.at(slot)) map[row] = number;
    }
    if (apart && maps.size() > 1) maps = {all};
    for (auto& map : maps) {
      gauge.legs.push_back({.tensor = search.tensor_of(slot).name,
                            .axis = search.is_vector(slot) ? -1 : search.slot(slot).axis,
                            .exponent = value,
                            .channel_of = std::move(map)});
    }
  }
  // Others are in line with the first.
  const auto dim = [&](const Leg& leg) { return search.probe.params()[leg.tensor].tensor.dim(); };
  std::stable_sort(gauge.legs.begin(), gauge.legs.end(),
                   [&](const Leg& a, const Leg& b) { return dim(a) > dim(b); });
  return gauge;
}

/// In how many equal groups a vector's gradient has no sum: behind it a norm takes out the mean of each.
int64_t groups_of(const Search& search, size_t slot, double zero) {
  const auto& here = search.slot(slot);
  if (!search.is_vector(slot) || !search.probe.is_small(here.tensor)) return 1;
  const auto gradient = search.probe.small_gradient(here.tensor);
  for (int64_t groups = here.size / 2; groups > 1; --groups) {
    if (here.size % groups != 0) continue;
    const auto sums = gradient.view({gradient.size(0), groups, -1}).sum(2);
    if (root_mean_square(sums) <= zero) return groups;
  }
  return 1;
}

/// Parts of two vectors that are added to the same: of the biases of a GRU those of the gates.
void find_part_exchanges(Search& search) {
  std::vector<size_t> vectors;
  for (size_t k = 0; k < search.probe.slots().size(); ++k) {
    const size_t t = search.slot(k).tensor;
    if (search.is_vector(k) && !search.is_null(t) && search.probe.is_small(t)) vectors.push_back(k);
  }
  for (size_t i = 0; i < vectors.size(); ++i) {
    for (size_t j = i + 1; j < vectors.size(); ++j) {
      const auto& a = search.slot(vectors[i]);
      const auto& b = search.slot(vectors[j]);
      if (a.size != b.size || !search.are_near(a.tensor, b.tensor)) continue;
      const auto of_a = search.probe.small_gradient(a.tensor);
      const auto of_b = search.probe.small_gradient(b.tensor);
      const double zero = search.probe.zero() * of_a.abs().max().item<double>();
      const auto same = ((of_a - of_b).abs() <= zero).all(0) & (of_a.abs() > zero).any(0);
      const auto count = same.sum().item<int64_t>();
      if (count == 0 || count == a.size) continue;
      Gauge gauge;
      gauge.kind = "bias exchange";
      gauge.action = Action::shift;
      gauge.name = search.tensor_of(vectors[i]).name + ":exchange";
      std::vector<int64_t> channel_of(a.size, -1);
      for (int64_t c = 0; c < a.size; ++c) {
        if (same[c].item<bool>()) channel_of[c] = gauge.channels++;
      }
      gauge.legs = {
          {.tensor = search.tensor_of(vectors[i]).name, .channel_of = channel_of},
          {.tensor = search.tensor_of(vectors[j]).name, .exponent = -1, .channel_of = channel_of}};
      search.add_if_conserved(std::move(gauge));
    }
  }
}

Gauge vector_exchange(const Search& search, const Exchange& exchange) {
  Gauge gauge;
  gauge.kind = "bias exchange";
  gauge.action = Action::shift;
  for (const auto& [slot, rows] : exchange.rows_of_slot) {
    gauge.channels = search.slot(slot).size;
    gauge.legs.push_back({.tensor = search.tensor_of(slot).name, .exponent = rows.begin()->second});
  }
  return gauge;
}

}  // namespace

void Search::find_shifts() {
  std::set<size_t> shifted;
  for (size_t k = 0; k < probe.slots().size(); ++k) {
    const auto& here = slot(k);
    const auto& tensor = tensor_of(k);
    if (here.stacked) continue;
    Gauge gauge;
    gauge.action = Action::shift;
    if (is_null(here.tensor)) {
      if (here.axis > 0) continue;
      gauge.name = tensor.name + ":null";
      gauge.kind = "null shift";
      gauge.channels = here.size;
      gauge.legs = {{.tensor = tensor.name}};
      gauges.push_back(std::move(gauge));
      continue;
    }
    const double scale = probe.shift_scale(k);
    const double zero_sum = probe.zero() * scale;
    if (here.size < 2 || scale == 0) continue;
    if (root_mean_square(probe.shift_charge(k)) > zero_sum) continue;
    shifted.insert(k);
    gauge.name = tensor.name + ":shift";
    gauge.kind = "shift";
    gauge.channels = groups_of(*this, k, zero_sum);
    std::vector<int64_t> channel_of;
    for (int64_t i = 0; i < here.size; ++i) {
      channel_of.push_back(i * gauge.channels / here.size);
    }
    gauge.legs = {{.tensor = tensor.name, .axis = here.axis, .channel_of = std::move(channel_of)}};
    gauges.push_back(std::move(gauge));
  }
  std::set<int64_t> lengths;
  for (size_t k = 0; k < probe.slots().size(); ++k) {
    const auto& tensor = tensor_of(k).tensor;
    if (slot(k).axis == row_axis(tensor))
      lengths.insert(tensor.dim() == 1 ? slot(k).size : tensor.numel() / slot(k).size);
  }
  for (const int64_t length : lengths) {
    const auto columns = addends(*this, length, shifted);
    if (columns.size() < 2 || length < 2) continue;
    const auto wanted =
        static_cast<int64_t>(2 * std::min<size_t>(columns.size(), 700)) / length + 3;
    if (wanted > most_batches) continue;
    probe.draw(wanted);
    if (probe.shift_batches() < wanted) continue;
    std::vector<at::Tensor> values;
    std::vector<size_t> position;
    std::map<size_t, std::vector<int64_t>> unseen;
    for (const auto& addend : columns) {
      values.push_back(values_of(*this, addend, length).flatten());
      position.push_back(slot(addend.slot).tensor);
      if (addend.row >= 0 && !values.back().any().item<bool>()) {
        unseen[addend.slot].push_back(addend.row);
      }
    }
    RelationOptions options;
    options.tolerance = probe.zero();
    std::vector<Exchange> of_rows;
    for (const auto& relation : sparse_relations(at::stack(values, 1), position, options)) {
      Exchange exchange;
      bool rows = false;
      bool units = true;
      for (size_t k = 0; k < relation.columns.size(); ++k) {
        const auto& addend = columns[relation.columns[k]];
        rows = rows || !is_vector(addend.slot);
        const double coefficient = relation.coefficients[k];
        units = units && std::abs(std::abs(coefficient) - 1) < coefficient_tolerance(probe.zero());
        exchange.rows_of_slot[addend.slot][addend.row] = coefficient > 0 ? 1 : -1;
      }
      if (!units || exchange.rows_of_slot.size() < 2) continue;
      // What comes first in the table gains.
      const double sign = exchange.rows_of_slot.begin()->second.begin()->second;
      for (auto& [slot_here, coefficients] : exchange.rows_of_slot) {
        for (auto& [row, coefficient] : coefficients) coefficient *= sign;
      }
      if (rows) {
        of_rows.push_back(std::move(exchange));
      } else {
        auto gauge = vector_exchange(*this, exchange);
        gauge.name = gauge.legs.front().tensor + ":exchange";
        add_if_conserved(std::move(gauge));
      }
    }
    for (const auto& classes : grouped(of_rows)) {
      auto gauge = row_exchange(*this, classes, unseen);
      gauge.name = gauge.legs.front().tensor + ":exchange";
      add_if_conserved(std::move(gauge));
    }
  }
  find_part_exchanges(*this);
}

}  // namespace ddc
