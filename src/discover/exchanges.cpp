#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "relations.h"
#include "search.h"

namespace ddc {
namespace {

Gauge exchange(const Leg& source, const Leg& reader, const std::string& bias, int64_t channels) {
  Gauge gauge;
  gauge.name = source.tensor + ":exchange";
  gauge.action = Action::exchange;
  gauge.channels = channels;
  gauge.legs = {{.tensor = source.tensor, .axis = 0, .channel_of = source.channel_of},
                {.tensor = reader.tensor,
                 .axis = reader.axis,
                 .channel_of = reader.channel_of,
                 .through = {.bias = bias}}};
  return gauge;
}

/// A bias in front of a linear map, through the channels of the map's group: that of the values, which
/// attention averages.
void find_value_exchanges(Search& search) {
  std::vector<Gauge> candidates;
  std::vector<std::string> group;
  const auto& params = search.probe.params();
  for (const auto& gauge : search.gauges) {
    if (gauge.action != Action::linear) continue;
    const Leg* bias = nullptr;
    const Leg* reader = nullptr;
    int64_t readers = 0;
    for (const auto& leg : gauge.legs) {
      const auto dim = params[leg.tensor].tensor.dim();
      if (leg.exponent > 0 && dim == 1) bias = &leg;
      if (leg.exponent < 0 && dim == 2) {
        reader = &leg;
        ++readers;
      }
    }
    if (bias == nullptr || readers != 1) continue;
    const int64_t size = params[reader->tensor].tensor.size(1 - reader->axis);
    for (size_t t = 0; t < params.size(); ++t) {
      const auto& vector = search.probe.parameter(t);
      if (vector.tensor.dim() != 1 || vector.tensor.size(0) != size || search.is_null(t)) continue;
      if (vector.name == bias->tensor) continue;
      candidates.push_back(exchange(*bias, *reader, vector.name, gauge.channels));
      candidates.back().kind = "value bias exchange";
      group.push_back(gauge.name);
    }
  }
  const auto charges = search.probe.relative_charges(candidates);
  std::set<std::string> done;
  for (size_t k = 0; k < candidates.size(); ++k) {
    if (charges[k] > search.probe.zero() || !done.insert(group[k]).second) continue;
    search.gauges.push_back(std::move(candidates[k]));
  }
}

/// Matrices that a bias may stand behind: those near it in the table; if none there fits, all that do (an
/// embedding that makes the logits as well).
std::vector<size_t> readers_before(const Search& search, size_t bias) {
  std::vector<size_t> near;
  std::vector<size_t> all;
  const int64_t size = search.probe.parameter(bias).tensor.size(0);
  for (size_t k = 0; k < search.probe.slots().size(); ++k) {
    const auto& slot = search.slot(k);
    const auto& weight = search.tensor_of(k).tensor;
    if (weight.dim() != 2 || weight.size(1 - slot.axis) != size) continue;
    all.push_back(k);
    if (search.are_near(slot.tensor, bias)) near.push_back(k);
  }
  return near.empty() ? all : near;
}

/// The sum of all rows in float64; a copy of an embedding in float64 would be a large part of a model.
at::Tensor sum_of_rows(const at::Tensor& table) {
  const int64_t rows = std::max<int64_t>(1, (1 << 20) / std::max<int64_t>(table.size(1), 1));
  auto sum = at::zeros({table.size(1)}, table.options().dtype(at::kDouble));
  for (int64_t start = 0; start < table.size(0); start += rows) {
    sum += table.narrow(0, start, std::min(rows, table.size(0) - start)).to(at::kDouble).sum(0);
  }
  return sum;
}

/// What all rows of a table have in common may as well be in the biases of the layers that read it; and, where a
/// residual stream goes on from the table, in the bias that is added next. The gradients of all these are related.
void find_table_exchanges(Search& search, int64_t size) {
  const auto& probe = search.probe;
  std::vector<size_t> tables;
  std::vector<size_t> vectors;
  std::vector<std::pair<size_t, size_t>> readers;  // slot, bias
  for (size_t k = 0; k < probe.slots().size(); ++k) {
    const auto& slot = search.slot(k);
    const auto& tensor = search.tensor_of(k).tensor;
    if (search.is_null(slot.tensor) || slot.stacked || slot.size != size) continue;
    if (tensor.dim() == 1 && probe.is_small(slot.tensor)) vectors.push_back(slot.tensor);
    if (tensor.dim() != 2) continue;
    if (slot.axis == 1) tables.push_back(slot.tensor);
    for (size_t t = 0; t < probe.params().size(); ++t) {
      const auto& bias = probe.parameter(t).tensor;
      if (bias.dim() != 1 || bias.size(0) != tensor.size(1 - slot.axis)) continue;
      if (!search.is_null(t) && probe.is_small(t) && search.are_near(slot.tensor, t)) {
        readers.emplace_back(k, t);
      }
    }
  }
  if (tables.empty() || readers.empty()) return;
  std::vector<size_t> position = tables;
  position.insert(position.end(), vectors.begin(), vectors.end());
  for (const auto& [slot, bias] : readers) position.push_back(bias);
  constexpr size_t most_columns = 200;
  if (position.size() > most_columns) return;
  const auto batches = 2 * static_cast<int64_t>(position.size()) / size + 3;
  std::vector<std::vector<at::Tensor>> values(position.size());
  probe.each_batch(batches, [&](const Parameters& gradients) {
    const at::NoGradGuard no_grad;
    const auto gradient = [&](size_t t) {
      return gradients[probe.parameter(t).name].tensor.to(at::kDouble);
    };
    size_t column = 0;
    for (const size_t t : tables) {
      values[column++].push_back(sum_of_rows(gradients[probe.parameter(t).name].tensor));
    }
    for (const size_t t : vectors) values[column++].push_back(gradient(t));
    for (const auto& [slot, bias] : readers) {
      const auto weight = search.tensor_of(slot).tensor.detach().to(at::kDouble);
      values[column++].push_back(
          at::tensordot(weight, gradient(bias), {1 - search.slot(slot).axis}, {0}));
    }
  });
  std::vector<at::Tensor> columns;
  columns.reserve(values.size());
  for (const auto& value : values) columns.push_back(at::cat(value));
  // Tables that are added to each other have one column: each has an exchange of its own.
  std::map<size_t, std::vector<std::string>> alike;
  for (size_t a = 0; a < tables.size(); ++a) {
    size_t first = 0;
    while (first < a && (columns[first] - columns[a]).norm().item<double>() >
                            probe.zero() * columns[a].norm().item<double>()) {
      ++first;
    }
    alike[first].push_back(probe.parameter(tables[a]).name);
    if (first < a) columns[a].zero_();
  }
  RelationOptions options;
  options.tolerance = probe.zero();
  // One of two biases that are added to the same is enough.
  std::set<size_t> done;
  for (const auto& relation : sparse_relations(at::stack(columns, 1), position, options)) {
    Gauge gauge;
    gauge.kind = "embedding exchange";
    gauge.action = Action::exchange;
    gauge.channels = size;
    // What the table gains, all others lose: the gradients of a sum. A second table would make it an exchange of rows.
    double sign = 0;
    size_t table = 0;
    int64_t of_tables = 0;
    for (size_t i = 0; i < relation.columns.size(); ++i) {
      if (relation.columns[i] >= tables.size()) continue;
      sign = relation.coefficients[i];
      table = relation.columns[i];
      ++of_tables;
    }
    if (of_tables != 1 || done.count(table) > 0) continue;
    gauge.legs = {{.axis = 1}};
    bool reads = false;
    bool lose = true;
    for (size_t i = 0; i < relation.columns.size(); ++i) {
      const size_t column = relation.columns[i];
      const double coefficient = relation.coefficients[i];
      if (column == table) continue;
      lose = lose && std::abs(coefficient / sign + 1) < coefficient_tolerance(probe.zero());
      if (column < tables.size() + vectors.size()) {
        gauge.legs.push_back({.tensor = probe.parameter(vectors[column - tables.size()]).name});
      } else {
        const auto& [slot, bias] = readers[column - tables.size() - vectors.size()];
        reads = true;
        gauge.legs.push_back({.tensor = search.tensor_of(slot).name,
                              .axis = search.slot(slot).axis,
                              .through = {.bias = probe.parameter(bias).name}});
      }
    }
    if (!reads || !lose) continue;
    const auto& names = alike.at(table);
    // An exchange of rows between these tables is what their exchanges with the biases make together.
    const auto between_them = [&](const Gauge& other) {
      return other.action == Action::shift && other.channels == 1 &&
             std::ranges::all_of(other.legs, [&](const Leg& leg) {
               return leg.axis == 0 && std::ranges::count(names, leg.tensor) > 0;
             });
    };
    for (const auto& name : names) {
      gauge.legs.front().tensor = name;
      gauge.name = name + ":exchange";
      if (search.add_if_conserved(gauge)) done.insert(table);
    }
    if (done.count(table) > 0) std::erase_if(search.gauges, between_them);
  }
}

/// Any other vector that one matrix reads as it is: the shift of a norm whose reader is tied, and so
/// has no gauge of its own.
void find_single_exchanges(Search& search) {
  const auto& probe = search.probe;
  const auto& params = probe.params();
  std::set<std::string> sources;
  for (const auto& gauge : search.gauges) {
    if (gauge.action == Action::exchange) sources.insert(gauge.legs.front().tensor);
  }
  std::vector<size_t> vectors;
  for (size_t t = 0; t < params.size(); ++t) {
    if (probe.parameter(t).tensor.dim() == 1 && !search.is_null(t) && probe.is_small(t)) {
      vectors.push_back(t);
    }
  }
  // (source, slot of the reader, bias) -> the largest difference, beside the largest gradient.
  std::map<std::tuple<size_t, size_t, size_t>, std::pair<double, double>> tried;
  probe.each_batch(probe.charge_batches(), [&](const Parameters& gradients) {
    const at::NoGradGuard no_grad;
    const auto gradient = [&](size_t t) {
      return gradients[probe.parameter(t).name].tensor.to(at::kDouble);
    };
    for (const size_t b : vectors) {
      for (const size_t k : readers_before(search, b)) {
        const auto& slot = search.slot(k);
        // In its own type: a copy of an embedding in float64 is a large part of a model.
        const auto weight = search.tensor_of(k).tensor.detach();
        const auto pulled =
            at::tensordot(weight, gradient(b).to(weight.scalar_type()), {1 - slot.axis}, {0})
                .to(at::kDouble);
        for (const size_t v : vectors) {
          if (v == b || probe.parameter(v).tensor.size(0) != slot.size) continue;
          if (!search.are_near(v, b) || sources.count(probe.parameter(v).name) > 0) continue;
          const auto here = gradient(v);
          auto& [difference, size] = tried[{v, k, b}];
          difference = std::max(difference, (here - pulled).abs().max().item<double>());
          size = std::max(size, here.abs().max().item<double>());
        }
      }
    }
  });
  for (const auto& [key, measured] : tried) {
    const auto [v, k, b] = key;
    if (measured.first > 10 * probe.zero() * measured.second) continue;
    const auto& source = probe.parameter(v);
    if (!sources.insert(source.name).second) continue;
    auto gauge = exchange({.tensor = source.name},
                          {.tensor = search.tensor_of(k).name, .axis = search.slot(k).axis},
                          probe.parameter(b).name, source.tensor.size(0));
    gauge.kind = "norm shift exchange";
    search.gauges.push_back(std::move(gauge));
  }
}

}  // namespace

void Search::find_exchanges() {
  find_value_exchanges(*this);
  find_single_exchanges(*this);
  std::set<int64_t> sizes;
  for (const auto& slot : probe.slots()) {
    if (slot.size > 1 && !slot.stacked) sizes.insert(slot.size);
  }
  for (const int64_t size : sizes) find_table_exchanges(*this, size);
}

}  // namespace ddc
