#include "placement/deferred.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "coordinates/section.h"
#include "coordinates/sweeps.h"

namespace ddc {
namespace {

/// Which dot of an axis is whose.
constexpr size_t kOfShift = 0;
constexpr size_t kOfExchange = 1;
/// Logs of moves that are rounding.
constexpr double kRoundingOfFloat = 1e-6;
/// How far rounding may take a gain from +-1.
constexpr double kOfOne = 1e-6;

std::vector<int64_t> channels_of(const ddc::Leg& leg, size_t size) {
  auto result = leg.channel_of;
  if (result.empty()) {
    result.resize(size);
    std::iota(result.begin(), result.end(), 0);
  }
  return result;
}

bool is_whole(const std::vector<int64_t>& channel_of) {
  return std::ranges::all_of(channel_of, [](int64_t c) { return c == 0; });
}

double factor_of(const std::vector<double>& factors, size_t i) {
  return factors.empty() ? 1 : factors[i];
}

void multiply_(std::vector<double>& factors, const std::vector<double>& by) {
  if (factors.empty()) factors.assign(by.size(), 1);
  for (size_t i = 0; i < by.size(); ++i) factors[i] *= by[i];
}

std::vector<double> inverses(std::vector<double> values) {
  for (auto& value : values) value = 1 / value;
  return values;
}

double dot_of(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

}  // namespace

// ---- What can be taken ------------------------------------------------------------------------------

size_t Deferred::entry_of(const Plan& plan, size_t t) {
  const auto [found, is_new] = index_.emplace(t, entries_.size());
  if (is_new) {
    entries_.push_back(
        {.tensor = t, .weights = plan.tensors[t].tensor, .offset = plan.tensors[t].offset});
  }
  return found->second;
}

bool Deferred::take_scale(const Plan& plan, size_t k) {
  const auto& gauge = plan.gauges[k];
  if (gauge.self_coupled) return false;
  Scale scale{k, {}, gauge.is_folded(), section_weight(gauge), smallest_norm(plan, gauge)};
  if (scale.folded && plan.tensors[gauge.legs.front().tensor].tensor.dim() != 1) return false;
  for (size_t l = 0; l < gauge.legs.size(); ++l) {
    const auto& leg = gauge.legs[l];
    const auto& side = leg.exponent > 0 ? gauge.plus : gauge.minus;
    const auto& tensor = plan.tensors[leg.tensor];
    if (tensor.tensor.dim() < 1 || tensor.tensor.dim() > 2) return false;
    if (!scale.folded && std::abs(leg.exponent) != side.exponent) return false;
    if (tensor.offset != 0 && tensor.tensor.dim() > 1) return false;
    const auto axis = static_cast<size_t>(leg.map.axis());
    const size_t entry = entry_of(plan, leg.tensor);
    entries_[entry].scaled[axis] = true;
    scale.legs.push_back(
        {entry, axis, leg.exponent, channels_of(gauge.gauge.legs[l], entries_[entry].size(axis))});
  }
  scales_.push_back(std::move(scale));
  return true;
}

bool Deferred::take_shift(const Plan& plan, size_t k) {
  const auto& gauge = plan.gauges[k];
  if (gauge.inverse_gram.defined()) return false;
  Shift shift{k, {}};
  for (size_t l = 0; l < gauge.legs.size(); ++l) {
    const auto& leg = gauge.legs[l];
    const auto& own = gauge.gauge.legs[l];
    const auto& tensor = plan.tensors[leg.tensor].tensor;
    if (plan.tensors[leg.tensor].offset != 0 || tensor.dim() < 1 || tensor.dim() > 2) return false;
    const bool one_vector = gauge.legs.size() == 1 && tensor.dim() == 1;
    const bool as_row = tensor.dim() == 1 && own.axis < 0;
    if (!one_vector && !as_row && tensor.dim() != 2) return false;
    const auto axis = as_row ? size_t{0} : static_cast<size_t>(own.axis);
    auto channel_of = channels_of(own, as_row ? 1 : static_cast<size_t>(tensor.size(own.axis)));
    if (!one_vector && !is_whole(channel_of)) return false;
    if (leg.gain && (gauge.legs.size() > 1 || one_vector)) return false;
    // What the bias beside it takes up: nothing, where the norm's shift is emptied.
    const auto is_emptied = [&](const Drain& drain) {
      return std::ranges::any_of(exchanges_, [&](const Exchange& exchange) {
        return entries_[exchange.source].tensor == drain.source;
      });
    };
    for (const auto& drain : plan.drains) {
      if (leg.bias && drain.matrix == leg.tensor && drain.sink == *leg.bias && !is_emptied(drain)) {
        return false;
      }
    }
    const size_t entry = entry_of(plan, leg.tensor);
    if (leg.gain) shift.gain = entry_of(plan, *leg.gain);
    shift.of_vector = one_vector;
    // A mean over rows is one number per column.
    const size_t pending = 1 - axis;
    if (!one_vector) {
      if (entries_[entry].shifted[pending]) return false;
      entries_[entry].shifted[pending] = true;
    }
    shift.legs.push_back({entry, axis, leg.exponent, std::move(channel_of)});
  }
  shifts_.push_back(std::move(shift));
  return true;
}

bool Deferred::take_exchange(const Plan& plan, size_t k) {
  const auto& gauge = plan.gauges[k];
  const auto& first = gauge.legs.front();
  const auto& source = plan.tensors[first.tensor];
  if (source.tensor.dim() != 1 || source.offset != 0 || first.exponent != 1) return false;
  auto channel_of =
      channels_of(gauge.gauge.legs.front(), static_cast<size_t>(source.tensor.size(0)));
  std::vector<int64_t> count(static_cast<size_t>(gauge.gauge.channels));
  for (const int64_t c : channel_of) {
    if (c >= 0 && ++count[static_cast<size_t>(c)] > 1) return false;
  }
  const bool chained = std::ranges::any_of(
      plan.drains, [&](const Drain& drain) { return drain.sink == first.tensor; });
  if (chained) {
    chained_.push_back(k);
    return true;
  }
  Exchange exchange{k, entry_of(plan, first.tensor), {}, std::move(channel_of)};
  for (size_t l = 1; l < gauge.legs.size(); ++l) {
    const auto& leg = gauge.legs[l];
    const auto axis = static_cast<size_t>(leg.map.axis());
    const auto& tensor = plan.tensors[leg.tensor].tensor;
    const size_t entry = entry_of(plan, leg.tensor);
    auto channels = channels_of(gauge.gauge.legs[l], entries_[entry].size(axis));
    if (!leg.bias) {
      if (tensor.dim() != 1) return false;
      exchange.sinks.push_back({std::nullopt, 0, entry, std::move(channels)});
      continue;
    }
    const auto& bias = plan.tensors[*leg.bias].tensor;
    if (tensor.dim() != 2 || bias.dim() != 1 || plan.tensors[leg.tensor].offset != 0) return false;
    const auto is_same = [&](const Exchange& other) {
      return std::ranges::any_of(other.sinks, [&](const Exchange::Sink& sink) {
        return sink.matrix == entry && sink.axis == axis;
      });
    };
    if (std::ranges::any_of(exchanges_, is_same) || is_same(exchange)) return false;
    exchange.sinks.push_back({entry, axis, entry_of(plan, *leg.bias), std::move(channels)});
  }
  exchanges_.push_back(std::move(exchange));
  return true;
}

bool Deferred::take_planes(const Plan& plan, size_t k) {
  const auto& gauge = plan.gauges[k];
  if (gauge.gauge.action != Action::rotation || gauge.gauge.block != 2 || gauge.gauge.fixes_ones) {
    return false;
  }
  Planes planes{k,
                std::vector<std::vector<Planes::Pair>>(static_cast<size_t>(gauge.gauge.blocks()))};
  std::map<size_t, std::vector<std::array<int64_t, 2>>> items;
  for (size_t l = 0; l < gauge.legs.size(); ++l) {
    const auto& leg = gauge.legs[l];
    const auto& tensor = plan.tensors[leg.tensor];
    const auto& own = gauge.gauge.legs[l];
    if (own.axis != 0 || tensor.tensor.dim() > 2 || leg.gain || leg.exponent != 1 ||
        tensor.offset != 0) {
      return false;
    }
    const size_t entry = entry_of(plan, leg.tensor);
    auto& of_tensor = items[entry];
    if (entries_[entry].turned) return false;
    const auto channel_of = channels_of(own, entries_[entry].size(0));
    std::vector<std::vector<int64_t>> members(static_cast<size_t>(gauge.gauge.channels));
    for (size_t i = 0; i < channel_of.size(); ++i) {
      if (channel_of[i] >= 0)
        members[static_cast<size_t>(channel_of[i])].push_back(static_cast<int64_t>(i));
    }
    for (size_t plane = 0; plane < planes.pairs.size(); ++plane) {
      const auto& first = members[2 * plane];
      const auto& second = members[2 * plane + 1];
      for (size_t copy = 0; copy < first.size(); ++copy) {
        planes.pairs[plane].push_back({entry, of_tensor.size()});
        of_tensor.push_back({first[copy], second[copy]});
      }
    }
  }
  for (auto& [e, pairs] : items) {
    auto& entry = entries_[e];
    std::vector<bool> taken(entry.size(0));
    for (const auto& [first, second] : pairs) {
      for (const int64_t i : {first, second}) {
        if (taken[static_cast<size_t>(i)]) return false;
        taken[static_cast<size_t>(i)] = true;
      }
    }
    for (size_t i = 0; i < taken.size(); ++i) {
      if (!taken[i]) pairs.push_back({static_cast<int64_t>(i), -1});
    }
    entry.edges.items = std::move(pairs);
    entry.turned = true;
  }
  planes_.push_back(std::move(planes));
  return true;
}

void Deferred::find_coupling() {
  for (auto& scale : scales_) {
    if (scale.folded) continue;
    for (const auto& other : scales_) {
      if (other.folded || &other == &scale) continue;
      for (const auto& leg : scale.legs) {
        for (const auto& by : other.legs) {
          scale.coupled |=
              leg.entry == by.entry && entries_[leg.entry].is_matrix() && leg.axis != by.axis;
        }
      }
    }
  }
}

bool Deferred::can_measure(const Plan& plan, const std::vector<size_t>& gauges) const {
  const auto is_folded = [&](size_t gain) {
    return std::ranges::any_of(gauges, [&](size_t k) {
      const auto& gauge = plan.gauges[k];
      return gauge.is_scale() && gauge.is_folded() &&
             gauge.legs.front().tensor == entries_[gain].tensor;
    });
  };
  if (!std::ranges::all_of(gains_, is_folded)) return false;
  for (const auto& scale : scales_) {
    if (scale.folded) continue;
    for (const auto& leg : scale.legs) {
      const auto& entry = entries_[leg.entry];
      // Squares of a row need the row's mean, which its sums tell; they do not tell a mean of columns.
      if (entry.is_matrix() && entry.shifted[1 - leg.axis]) return false;
    }
  }
  return true;
}

bool Deferred::have_one_rhythm(const Plan& plan, const std::vector<size_t>& gauges) {
  std::set<int64_t> rhythms;
  for (const size_t k : gauges) {
    if (!plan.gauges[k].gauge.mixes()) rhythms.insert(plan.gauges[k].treatment.every.value_or(1));
  }
  return rhythms.size() <= 1;
}

std::optional<Deferred> Deferred::make(const Plan& plan, const std::vector<size_t>& gauges,
                                       const std::vector<size_t>& exchanges, bool planes) {
  Deferred result;
  bool complete = have_one_rhythm(plan, gauges);
  for (const size_t k : gauges) {
    if (plan.gauges[k].is_scale() && !result.take_scale(plan, k)) return std::nullopt;
  }
  for (const size_t k : exchanges) complete = complete && result.take_exchange(plan, k);
  for (const size_t k : gauges) {
    if (plan.gauges[k].gauge.action == Action::shift)
      complete = complete && result.take_shift(plan, k);
  }
  for (const size_t k : gauges) {
    if (planes && complete && plan.gauges[k].treatment.every.value_or(1) == 1)
      result.take_planes(plan, k);
  }
  if (result.scales_.empty() && result.shifts_.empty() && result.planes_.empty() &&
      result.exchanges_.empty()) {
    return std::nullopt;
  }
  for (const auto& [t, index] : std::map<size_t, size_t>(result.index_)) {
    const auto& through = plan.tensors[t].through;
    if (!through) continue;
    const size_t gain = result.entry_of(plan, through->gain);
    result.entries_[index].gain = gain;
    result.entries_[index].gain_axis = static_cast<size_t>(through->axis);
    result.gains_.insert(gain);
  }
  for (const auto& shift : result.shifts_) {
    if (shift.gain) result.gains_.insert(*shift.gain);
  }
  result.find_coupling();
  result.complete_ = complete && result.can_measure(plan, gauges);
  result.can_step_ =
      result.complete_ && std::ranges::all_of(result.shifts_, [](const Shift& shift) {
        return !shift.gain || shift.is_made_in_pass();
      });
  return result;
}

bool Deferred::turns(size_t k) const {
  return complete_ &&
         std::ranges::any_of(planes_, [&](const Planes& each) { return each.gauge == k; });
}

std::vector<size_t> Deferred::tensors() const {
  std::vector<size_t> result;
  for (const auto& entry : entries_) result.push_back(entry.tensor);
  return result;
}

int64_t Deferred::size() const {
  int64_t result = 0;
  for (const auto& entry : entries_) result += entry.weights.numel();
  return result;
}

bool Deferred::fits() const {
  return std::ranges::all_of(entries_,
                             [](const Entry& e) { return kernels::takes_edges(e.weights); });
}

bool Deferred::gains_are_one() const {
  return std::ranges::all_of(gains_, [&](size_t gain) {
    return std::ranges::all_of(values(entries_[gain]),
                               [](double x) { return std::abs(std::abs(x) - 1) < kOfOne; });
  });
}

// ---- Vectors -----------------------------------------------------------------------------------------

std::vector<double> Deferred::values(const Entry& vector) {
  const auto count = static_cast<size_t>(vector.weights.numel());
  std::vector<double> result(count);
  if (vector.weights.scalar_type() == at::kFloat) {
    const auto* data = vector.weights.const_data_ptr<float>();
    std::copy(data, data + count, result.begin());
  } else {
    const auto* data = vector.weights.const_data_ptr<double>();
    std::copy(data, data + count, result.begin());
  }
  for (auto& value : result) value += vector.offset;
  return result;
}

void Deferred::write_(Entry& vector, const std::vector<double>& values) {
  if (vector.weights.scalar_type() == at::kFloat) {
    auto* data = vector.weights.mutable_data_ptr<float>();
    for (size_t i = 0; i < values.size(); ++i)
      data[i] = static_cast<float>(values[i] - vector.offset);
  } else {
    auto* data = vector.weights.mutable_data_ptr<double>();
    for (size_t i = 0; i < values.size(); ++i) data[i] = values[i] - vector.offset;
  }
  vector.weights.unsafeGetTensorImpl()->bump_version();
}

std::vector<double> Deferred::moved(const Entry& vector, std::vector<double> values) {
  const auto& edges = vector.edges;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!edges.column_shift.empty()) values[i] -= edges.column_shift[i];
    values[i] *= factor_of(edges.rows, i);
  }
  for (size_t i = 0; i < edges.turns.size(); ++i) {
    const auto [first, second] = edges.items[i];
    if (second < 0) continue;
    const auto [cosine, sine] = edges.turns[i];
    const double x0 = values[static_cast<size_t>(first)];
    const double x1 = values[static_cast<size_t>(second)];
    values[static_cast<size_t>(first)] = cosine * x0 - sine * x1;
    values[static_cast<size_t>(second)] = sine * x0 + cosine * x1;
  }
  return values;
}

std::vector<double> Deferred::current(const Entry& vector) { return moved(vector, values(vector)); }

at::Tensor Deferred::moved_gradient(const Entry& entry, const at::Tensor& gradient) {
  Entry inverse{.tensor = entry.tensor, .weights = gradient.detach().contiguous().clone()};
  inverse.edges.items = entry.edges.items;
  inverse.edges.turns = entry.edges.turns;
  inverse.edges.rows = inverses(entry.edges.rows);
  inverse.edges.columns = inverses(entry.edges.columns);
  if (entry.is_matrix()) {
    kernels::run({{inverse.weights, {}, {}, kernels::MoveConstants{}, &inverse.edges}});
  } else {
    write_(inverse, moved(inverse, values(inverse)));
  }
  return inverse.weights;
}

at::Tensor Deferred::moved_gradient(size_t t) const {
  const auto& entry = entries_[index_.at(t)];
  const auto& gradient = entry.weights.grad();
  return entry.is_pending() && gradient.defined() ? moved_gradient(entry, gradient) : at::Tensor();
}

bool Deferred::Entry::is_pending() const {
  return !edges.rows.empty() || !edges.columns.empty() || !edges.row_shift.empty() ||
         !edges.column_shift.empty() || !edges.turns.empty();
}

void Deferred::forget_(Entry& entry) {
  for (auto* values :
       {&entry.edges.rows, &entry.edges.columns, &entry.edges.row_shift, &entry.edges.row_pattern,
        &entry.edges.column_shift, &entry.edges.column_pattern, &entry.edges.out_rows,
        &entry.edges.out_columns, &entry.edges.centre_pattern, &entry.measured[0],
        &entry.measured[1], &entry.means[0], &entry.means[1]}) {
    values->clear();
  }
  entry.edges.turns.clear();
}

// ---- A step ------------------------------------------------------------------------------------------

void Deferred::open_() {
  for (auto& entry : entries_) {
    if (entry.is_matrix()) continue;
    entry.gradient = entry.weights.grad();
    if (entry.is_pending()) {
      entry.gradient = moved_gradient(entry, entry.gradient);
      write_(entry, current(entry));
      forget_(entry);
    }
    if (entry.turned) entry.before = values(entry);
  }
}

kernels::Edges* Deferred::edges(size_t t) {
  auto& entry = entries_[index_.at(t)];
  return entry.is_matrix() ? &entry.edges : nullptr;
}

at::Tensor Deferred::gradient(size_t t) const { return entries_[index_.at(t)].gradient; }

void Deferred::want_(const IsDue& is_due, bool in_step) {
  for (auto& entry : entries_) gather_nothing_(entry.edges);
  for (const auto& scale : scales_) {
    if (scale.folded || !is_due(scale.gauge)) continue;
    for (const auto& leg : scale.legs) {
      auto& edges = entries_[leg.entry].edges;
      (leg.axis == 0 ? edges.wants_row_squares : edges.wants_column_squares) = true;
    }
  }
  for (const auto& shift : shifts_) {
    if (!is_due(shift.gauge) || shift.of_vector) continue;
    for (const auto& leg : shift.legs) {
      auto& entry = entries_[leg.entry];
      if (!entry.is_matrix()) continue;
      auto& dots = leg.axis == 0 ? entry.edges.column_dots : entry.edges.row_dots;
      dots[kOfShift].weights = shift.gain ? current(entries_[*shift.gain])
                                          : std::vector<double>(entry.size(leg.axis), 1);
      if (in_step && shift.is_made_in_pass()) {
        entry.edges.centre_pattern = inverses(dots[kOfShift].weights);
      }
    }
  }
  for (const auto& planes : planes_) {
    if (!is_due(planes.gauge)) continue;
    for (const auto& pairs : planes.pairs) {
      for (const auto& pair : pairs) {
        auto& entry = entries_[pair.entry];
        entry.edges.wants_overlaps = entry.is_matrix();
      }
    }
  }
}

void Deferred::fold_(const std::vector<GaugeState>& states, const IsDue& is_due) {
  // Vectors that are emptied, as they are before gains are folded.
  std::map<size_t, std::vector<double>> given;
  for (const auto& exchange : exchanges_) {
    if (!is_due(exchange.gauge)) continue;
    auto& source = entries_[exchange.source];
    auto left = values(source);
    auto& by_channel = given[exchange.gauge];
    for (size_t i = 0; i < left.size(); ++i) {
      const int64_t c = exchange.channel_of[i];
      if (c < 0) continue;
      if (by_channel.size() <= static_cast<size_t>(c))
        by_channel.resize(static_cast<size_t>(c) + 1);
      by_channel[static_cast<size_t>(c)] = std::exchange(left[i], 0);
    }
    write_(source, left);
  }
  for (auto& scale : scales_) {
    if (scale.folded && is_due(scale.gauge)) collect_(scale, states[scale.gauge], true);
  }
  want_(is_due, /*in_step=*/true);
  for (const auto& exchange : exchanges_) {
    if (!is_due(exchange.gauge)) continue;
    const auto& by_channel = given[exchange.gauge];
    for (const auto& sink : exchange.sinks) {
      std::vector<double> along(sink.channel_of.size());
      for (size_t i = 0; i < along.size(); ++i) {
        const auto c = static_cast<size_t>(sink.channel_of[i]);
        if (sink.channel_of[i] >= 0 && c < by_channel.size()) along[i] = by_channel[c];
      }
      if (!sink.matrix) {
        auto sum = values(entries_[sink.bias]);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += along[i];
        write_(entries_[sink.bias], sum);
        continue;
      }
      // Sums are gathered of what has been folded.
      auto& edges = entries_[*sink.matrix].edges;
      const auto& folded = sink.axis == 0 ? edges.out_rows : edges.out_columns;
      for (size_t i = 0; i < along.size(); ++i) along[i] /= factor_of(folded, i);
      auto& dots = sink.axis == 0 ? edges.column_dots : edges.row_dots;
      dots[kOfExchange].weights = std::move(along);
    }
  }
}

void Deferred::close_(const std::vector<GaugeState>& states, const IsDue& is_due,
                      const std::function<void(size_t)>& empty_) {
  for (auto& entry : entries_) {
    forget_(entry);
    entry.overlaps = std::move(entry.edges.overlaps);
    entry.gradient.reset();
  }
  for (const auto& exchange : exchanges_) {
    if (!is_due(exchange.gauge)) continue;
    for (const auto& sink : exchange.sinks) {
      if (!sink.matrix) continue;
      const auto& edges = entries_[*sink.matrix].edges;
      const auto& sums = (sink.axis == 0 ? edges.column_dots : edges.row_dots)[kOfExchange].sums;
      auto bias = values(entries_[sink.bias]);
      for (size_t i = 0; i < bias.size(); ++i) bias[i] += sums[i];
      write_(entries_[sink.bias], bias);
    }
  }
  for (const size_t k : chained_) {
    if (is_due(k)) empty_(k);
  }
  shift_(is_due, /*in_step=*/true);
  balance_(states, is_due);
  turn_(is_due);
}

void Deferred::measure_(const std::vector<GaugeState>& states, const IsDue& is_due, Pass& pass) {
  for (auto& entry : entries_) forget_(entry);
  for (auto& scale : scales_) {
    if (scale.folded && is_due(scale.gauge)) collect_(scale, states[scale.gauge], false);
  }
  want_(is_due, /*in_step=*/false);
  for (auto& entry : entries_) {
    if (wants_sums_(entry)) {
      pass.push_back({entry.weights, {}, {}, kernels::MoveConstants{.store = false}, &entry.edges});
    }
  }
}

void Deferred::find_(const std::vector<GaugeState>& states, const IsDue& is_due) {
  shift_(is_due, /*in_step=*/false);
  balance_(states, is_due);
}

double Deferred::collect_(const std::vector<size_t>& gauges,
                          const std::vector<GaugeState>& states) {
  double largest = 0;
  for (auto& scale : scales_) {
    if (std::ranges::count(gauges, scale.gauge) == 0) continue;
    if (!scale.folded) {
      want_([&](size_t k) { return k == scale.gauge; }, /*in_step=*/false);
      std::vector<size_t> own;
      for (const auto& leg : scale.legs) own.push_back(leg.entry);
      measure_(own);
    }
    largest = std::max(largest, collect_(scale, states[scale.gauge], false));
  }
  return largest;
}

// ---- Moves that bring gauges back to the section -------------------------------------------------------

bool Deferred::wants_sums_(Entry& entry) {
  if (!entry.is_matrix()) return false;
  entry.measured = {entry.edges.rows, entry.edges.columns};
  entry.means = {};
  const auto wanted = [](const kernels::Edges::Dot& dot) { return !dot.weights.empty(); };
  return entry.edges.wants_row_squares || entry.edges.wants_column_squares ||
         std::ranges::any_of(entry.edges.row_dots, wanted) ||
         std::ranges::any_of(entry.edges.column_dots, wanted);
}

void Deferred::measure_(const std::vector<size_t>& entries) {
  Pass pass;
  std::map<size_t, kernels::Edges> seen;
  for (const size_t e : std::set<size_t>(entries.begin(), entries.end())) {
    auto& entry = entries_[e];
    if (!wants_sums_(entry)) continue;
    auto* edges = &entry.edges;
    if (!complete_ && entry.gain) {
      // Gains that are not folded count in what is seen through them.
      edges = &seen.emplace(e, entry.edges).first->second;
      multiply_(entry.gain_axis == 0 ? edges->rows : edges->columns,
                current(entries_[*entry.gain]));
    }
    pass.push_back({entry.weights, {}, {}, kernels::MoveConstants{.store = false}, edges});
  }
  kernels::run(pass);
  for (auto& [e, edges] : seen) {
    entries_[e].edges.row_squares = std::move(edges.row_squares);
    entries_[e].edges.column_squares = std::move(edges.column_squares);
  }
}

std::vector<double> Deferred::squares(const Leg& leg) const {
  const auto& entry = entries_[leg.entry];
  if (!entry.is_matrix()) {
    auto x = current(entry);
    const auto gain = entry.gain && !complete_ ? current(entries_[*entry.gain])
                                               : std::vector<double>(x.size(), 1);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= x[i] * gain[i] * gain[i];
    return x;
  }
  const bool rows = leg.axis == 0;
  auto result = rows ? entry.edges.row_squares : entry.edges.column_squares;
  // A mean that was found after the sums were gathered: |x - m p|^2.
  const auto& means = entry.means[leg.axis];
  const auto& dots = (rows ? entry.edges.row_dots : entry.edges.column_dots)[kOfShift];
  if (!means.empty()) {
    const double length = dot_of(dots.weights, dots.weights);
    for (size_t i = 0; i < result.size(); ++i) {
      result[i] += means[i] * (means[i] * length - 2 * dots.sums[i]);
    }
  }
  const auto& now = entry.factors(leg.axis);
  const auto& then = entry.measured[leg.axis];
  for (size_t i = 0; i < result.size(); ++i) {
    const double ratio = factor_of(now, i) / factor_of(then, i);
    result[i] *= ratio * ratio;
  }
  return result;
}

double Deferred::collect_(Scale& scale, const GaugeState& state, bool on_the_way_out) {
  const auto* target = state.target.const_data_ptr<double>();
  const auto channels = static_cast<size_t>(state.target.numel());
  const double least = scale.smallest * scale.smallest;
  std::vector<double> plus(channels);
  std::vector<double> minus(channels);
  bool has_plus = false;
  bool has_minus = false;
  for (const auto& leg : scale.legs) {
    auto& sums = leg.exponent > 0 ? plus : minus;
    const auto own = squares(leg);
    for (size_t i = 0; i < own.size(); ++i) {
      if (leg.channel_of[i] >= 0) sums[static_cast<size_t>(leg.channel_of[i])] += own[i];
    }
    (leg.exponent > 0 ? has_plus : has_minus) = true;
    if (scale.folded) break;
  }
  std::vector<double> log_moves(channels);
  double largest = 0;
  for (size_t c = 0; c < channels; ++c) {
    if ((has_plus && !(plus[c] > least)) || (has_minus && !(minus[c] > least))) continue;
    const double section =
        0.5 * ((has_plus ? std::log(plus[c]) : 0) - (has_minus ? std::log(minus[c]) : 0));
    log_moves[c] = (target[c] - section) / scale.weight;
    largest = std::max(largest, std::abs(log_moves[c]));
  }
  // Legs have one of few exponents; powers are taken once per channel.
  std::map<double, std::vector<double>> powers;
  for (const auto& leg : scale.legs) {
    auto& entry = entries_[leg.entry];
    auto& power = powers[leg.exponent];
    if (power.empty()) {
      power.resize(channels);
      for (size_t c = 0; c < channels; ++c) power[c] = std::exp(log_moves[c] * leg.exponent);
    }
    std::vector<double> factors(leg.channel_of.size(), 1.0);
    for (size_t i = 0; i < factors.size(); ++i) {
      if (leg.channel_of[i] >= 0) factors[i] = power[static_cast<size_t>(leg.channel_of[i])];
    }
    if (!on_the_way_out) {
      multiply_(entry.factors(leg.axis), factors);
    } else if (entry.is_matrix()) {
      multiply_(leg.axis == 0 ? entry.edges.out_rows : entry.edges.out_columns, factors);
    } else {
      auto x = values(entry);
      for (size_t i = 0; i < x.size(); ++i) x[i] *= factors[i];
      write_(entry, x);
    }
  }
  return largest;
}

/// Means are found in turns, each of what those before it leave: x - m p^T - q s^T.
void Deferred::shift_(const IsDue& is_due, bool in_step) {
  struct Means {
    std::vector<double> row, row_pattern, column, column_pattern;
  };
  std::map<size_t, Means> found;
  for (const auto& shift : shifts_) {
    if (!is_due(shift.gauge) || (in_step && shift.is_made_in_pass())) continue;
    if (shift.of_vector) {
      const auto& leg = shift.legs.front();
      auto x = values(entries_[leg.entry]);
      std::map<int64_t, std::pair<double, int64_t>> mean;
      for (size_t i = 0; i < x.size(); ++i) {
        mean[leg.channel_of[i]].first += x[i];
        ++mean[leg.channel_of[i]].second;
      }
      for (size_t i = 0; i < x.size(); ++i) {
        const auto& [sum, count] = mean[leg.channel_of[i]];
        if (leg.channel_of[i] >= 0) x[i] -= sum / static_cast<double>(count);
      }
      write_(entries_[leg.entry], x);
      continue;
    }
    std::vector<double> mean;
    double weight = 0;
    for (const auto& leg : shift.legs) {
      const auto& entry = entries_[leg.entry];
      const auto& own = found[leg.entry];
      std::vector<double> sums;
      double count = 1;
      if (!entry.is_matrix()) {
        sums = current(entry);
      } else {
        const auto& dots = leg.axis == 0 ? entry.edges.column_dots : entry.edges.row_dots;
        sums = dots[kOfShift].sums;
        const auto& gain = dots[kOfShift].weights;
        const auto& across = leg.axis == 0 ? own.row : own.column;
        const auto& pattern = leg.axis == 0 ? own.row_pattern : own.column_pattern;
        count = static_cast<double>(gain.size());
        if (!across.empty()) {
          const double total = dot_of(gain, across);
          for (size_t i = 0; i < sums.size(); ++i) sums[i] -= pattern[i] * total;
        }
      }
      mean.resize(sums.size());
      for (size_t i = 0; i < sums.size(); ++i) mean[i] += leg.exponent * sums[i];
      weight += leg.exponent * leg.exponent * count;
    }
    for (auto& value : mean) value /= weight;
    for (const auto& leg : shift.legs) {
      auto& own = found[leg.entry];
      auto change = mean;
      for (auto& value : change) value *= leg.exponent;
      auto pattern = shift.gain ? inverses(current(entries_[*shift.gain]))
                                : std::vector<double>(leg.channel_of.size(), 1);
      (leg.axis == 0 ? own.column : own.row) = std::move(change);
      (leg.axis == 0 ? own.column_pattern : own.row_pattern) = std::move(pattern);
    }
  }
  // Weights are shifted before they are multiplied.
  for (auto& [e, means] : found) {
    auto& edges = entries_[e].edges;
    const auto undo = [](std::vector<double>& values, const std::vector<double>& factors) {
      for (size_t i = 0; i < values.size(); ++i) values[i] /= factor_of(factors, i);
    };
    if (!entries_[e].is_matrix()) {
      undo(means.column, edges.rows);
      edges.column_shift = std::move(means.column);
      continue;
    }
    entries_[e].means = {means.row, means.column};
    undo(means.row, edges.rows);
    undo(means.row_pattern, edges.columns);
    undo(means.column, edges.columns);
    undo(means.column_pattern, edges.rows);
    edges.row_shift = std::move(means.row);
    edges.row_pattern = std::move(means.row_pattern);
    edges.column_shift = std::move(means.column);
    edges.column_pattern = std::move(means.column_pattern);
  }
}

void Deferred::balance_(const std::vector<GaugeState>& states, const IsDue& is_due) {
  std::vector<size_t> coupled;
  bool is_double = true;
  for (auto& scale : scales_) {
    if (scale.folded || !is_due(scale.gauge)) continue;
    if (scale.coupled) {
      coupled.push_back(scale.gauge);
    } else {
      collect_(scale, states[scale.gauge], false);
    }
    for (const auto& leg : scale.legs) {
      is_double = is_double && entries_[leg.entry].weights.scalar_type() == at::kDouble;
    }
  }
  const double rounding = is_double ? sweeps::kTolerance : kRoundingOfFloat;
  for (int sweep = 0; sweep < sweeps::kMostPerStep && !coupled.empty(); ++sweep) {
    if (collect_(coupled, states) <= rounding) break;
  }
}

void Deferred::turn_(const IsDue& is_due) {
  for (const auto& planes : planes_) {
    if (!is_due(planes.gauge)) continue;
    for (const auto& pairs : planes.pairs) {
      for (const auto& [e, item] : pairs) {
        auto& edges = entries_[e].edges;
        edges.turns.resize(edges.items.size(), {1, 0});
      }
    }
    for (const auto& pairs : planes.pairs) {
      double cosine = 0;
      double sine = 0;
      for (const auto& [e, item] : pairs) {
        const auto& entry = entries_[e];
        const auto first = static_cast<size_t>(entry.edges.items[item][0]);
        const auto second = static_cast<size_t>(entry.edges.items[item][1]);
        std::array<double, 2> own{};
        if (entry.is_matrix()) {
          own = entry.overlaps[item];
        } else {
          const auto now = values(entry);
          own = {entry.before[first] * now[first] + entry.before[second] * now[second],
                 entry.before[second] * now[first] - entry.before[first] * now[second]};
        }
        // The sums were gathered before the rows were multiplied.
        const double factor = factor_of(entry.edges.rows, first);
        cosine += factor * own[0];
        sine += factor * own[1];
      }
      const double length = std::hypot(cosine, sine);
      if (!(length > 0)) continue;
      for (const auto& [e, item] : pairs) {
        entries_[e].edges.turns[item] = {cosine / length, sine / length};
      }
    }
  }
}

// ---- Pending moves -------------------------------------------------------------------------------------

void Deferred::gather_nothing_(kernels::Edges& edges) {
  edges.wants_row_squares = edges.wants_column_squares = edges.wants_overlaps = false;
  edges.centre_pattern.clear();
  for (auto* dots : {&edges.row_dots, &edges.column_dots}) {
    for (auto& dot : *dots) dot.weights.clear();
  }
}

void Deferred::settle_(bool gradients) {
  Pass pass;
  settle_(gradients, pass);
  kernels::run(pass);
  forget_moves_();
}

void Deferred::forget_moves_() {
  for (auto& entry : entries_) forget_(entry);
}

void Deferred::settle_(bool gradients, Pass& pass) {
  for (auto& entry : entries_) {
    if (!entry.is_pending()) continue;
    auto& gradient = entry.weights.mutable_grad();
    if (gradients && gradient.defined()) gradient.copy_(moved_gradient(entry, gradient));
    gather_nothing_(entry.edges);
    if (entry.is_matrix()) {
      pass.push_back({entry.weights, {}, {}, kernels::MoveConstants{}, &entry.edges});
    } else {
      write_(entry, current(entry));
    }
  }
}

at::Tensor Deferred::settled(size_t t) const {
  const auto& entry = entries_[index_.at(t)];
  if (!entry.is_pending()) return entry.weights.detach();
  Entry copy{.tensor = t, .weights = entry.weights.detach().clone(), .offset = entry.offset};
  copy.edges = entry.edges;
  gather_nothing_(copy.edges);
  if (entry.is_matrix()) {
    kernels::run({{copy.weights, {}, {}, kernels::MoveConstants{}, &copy.edges}});
  } else {
    write_(copy, current(entry));
  }
  return copy.weights;
}

std::vector<Deferred::Part> Deferred::parts_of(Entry& entry) {
  auto& edges = entry.edges;
  const size_t rows = entry.size(0);
  const size_t columns = entry.is_matrix() ? entry.size(1) : rows;
  std::vector<Part> parts;
  if (entry.scaled[0]) parts.push_back({&edges.rows, rows, 1});
  if (entry.scaled[1]) parts.push_back({&edges.columns, columns, 1});
  if (entry.shifted[0]) {
    parts.push_back({&edges.row_shift, rows, 0});
    parts.push_back({&edges.row_pattern, columns, 1});
  }
  if (entry.shifted[1]) {
    parts.push_back({&edges.column_shift, columns, 0});
    if (entry.is_matrix()) parts.push_back({&edges.column_pattern, rows, 1});
  }
  return parts;
}

void Deferred::make_published_() {
  for (auto& entry : entries_) {
    size_t size = entry.turned ? 2 * entry.edges.items.size() : 0;
    for (const auto& part : parts_of(entry)) size += part.size;
    if (size > 0) published_[entry.tensor] = at::zeros({static_cast<int64_t>(size)}, at::kDouble);
  }
  publish_();
}

void Deferred::publish_() {
  for (auto& entry : entries_) {
    const auto found = published_.find(entry.tensor);
    if (found == published_.end()) continue;
    auto* to = found->second.mutable_data_ptr<double>();
    for (const auto& [values, size, nothing] : parts_of(entry)) {
      if (values->empty()) {
        std::fill(to, to + size, nothing);
      } else {
        std::ranges::copy(*values, to);
      }
      to += size;
    }
    if (!entry.turned) continue;
    for (size_t i = 0; i < entry.edges.items.size(); ++i) {
      const auto turn =
          entry.edges.turns.empty() ? std::array<double, 2>{1, 0} : entry.edges.turns[i];
      to = std::ranges::copy(turn, to).out;
    }
  }
}

void Deferred::forget_() {
  forget_moves_();
  publish_();
}

bool Deferred::is_finite() {
  const auto is_finite = [](double value) { return std::isfinite(value); };
  return std::ranges::all_of(entries_, [&](Entry& entry) {
    return std::ranges::all_of(parts_of(entry), [&](const Part& part) {
      return std::ranges::all_of(*part.values, is_finite);
    });
  });
}

void Deferred::resume_() {
  for (auto& entry : entries_) {
    forget_(entry);
    const auto found = published_.find(entry.tensor);
    if (found == published_.end()) continue;
    const auto* from = found->second.const_data_ptr<double>();
    bool shifted = false;
    for (const auto& [values, size, nothing] : parts_of(entry)) {
      const double none = nothing;
      const bool is_pattern =
          values == &entry.edges.row_pattern || values == &entry.edges.column_pattern;
      const bool is_there =
          is_pattern ? shifted
                     : std::any_of(from, from + size, [&](double x) { return x != none; });
      if (is_there) values->assign(from, from + size);
      shifted = is_there;
      from += size;
    }
    if (!entry.turned) continue;
    const size_t items = entry.edges.items.size();
    for (size_t i = 0; i < items; ++i) {
      if (from[2 * i + 1] != 0 || from[2 * i] != 1) entry.edges.turns.resize(items, {1, 0});
    }
    for (size_t i = 0; i < entry.edges.turns.size(); ++i)
      entry.edges.turns[i] = {from[2 * i], from[2 * i + 1]};
  }
}

}  // namespace ddc
