#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "cut.h"
#include "relations.h"

namespace ddc {

using channel_maps::Pairing;

int64_t View::channel(int64_t i) const {
  if (i >= rotary) return i - planes();
  return pairing == Pairing::half_split ? i % planes() : i / 2;
}

int64_t View::side(int64_t i) const {
  return pairing == Pairing::half_split ? i / planes() : i % 2;
}

namespace {

/// Like window_of_heads, for whole axes, which are fewer columns.
constexpr size_t window_of_axes = 48;
/// More batches than this are not drawn. Heads so small that they would need it have to be hinted at.
constexpr int64_t most_batches = 160;
constexpr int64_t most_batches_of_large = 24;
constexpr int64_t most_batches_of_small = 400;

struct Column {
  Piece piece;
  /// The gradient itself instead of its product with the weight: a multiple of it beside the product
  /// says that the group acts on tensor + offset.
  bool gradient = false;
};

at::Tensor values_of(const Search& search, const View& view, const Column& column) {
  const auto& piece = column.piece;
  const auto all = column.gradient ? search.probe.small_gradient(search.slot(piece.slot).tensor)
                                   : search.probe.scale_charge(piece.slot);
  const int64_t batches = all.size(0);
  const auto part = all.narrow(1, piece.first, view.size * piece.run)
                        .view({batches, view.size, piece.run})
                        .sum(2);
  if (view.rotary == 0) return part;
  std::vector<int64_t> channel;
  for (int64_t i = 0; i < view.size; ++i) channel.push_back(view.channel(i));
  return at::zeros({batches, view.channels()}, at::kDouble)
      .index_add(1, at::tensor(channel, at::kLong), part);
}

/// The nearest multiple of one half, if it is near.
std::optional<double> as_exponent(double value, double zero) {
  const double nearest = std::round(2 * value) / 2;
  // Gauges have no larger ones: that of a relation that is none.
  if (nearest == 0 || std::abs(nearest) > 64) return {};
  if (std::abs(value - nearest) > coefficient_tolerance(zero) * std::abs(nearest)) return {};
  return nearest;
}

/// Whether two pieces, of so many channels, have indices in common: what has a single large entry looks as
/// if each of its axes did what the other does.
bool overlap(const std::vector<Piece>& pieces, int64_t size) {
  for (size_t a = 0; a < pieces.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      if (pieces[a].slot == pieces[b].slot &&
          pieces[a].first < pieces[b].first + size * pieces[b].run &&
          pieces[b].first < pieces[a].first + size * pieces[a].run) {
        return true;
      }
    }
  }
  return false;
}

/// The pieces of a relation, if its coefficients can be those of a group of so many channels.
std::optional<std::vector<Piece>> pieces_of(const Search& search, const Relation& relation,
                                            const std::vector<Column>& columns, int64_t size) {
  double smallest = 0;
  std::map<size_t, double> of_gradient;
  for (size_t k = 0; k < relation.columns.size(); ++k) {
    const auto& column = columns[relation.columns[k]];
    const double value = relation.coefficients[k];
    if (column.gradient) {
      of_gradient[column.piece.slot] = value;
    } else if (smallest == 0 || std::abs(value) < std::abs(smallest)) {
      smallest = value;
    }
  }
  if (smallest == 0) return {};
  std::vector<Piece> pieces;
  for (size_t k = 0; k < relation.columns.size(); ++k) {
    const auto& column = columns[relation.columns[k]];
    if (column.gradient) continue;
    auto piece = column.piece;
    const auto exponent = as_exponent(relation.coefficients[k] / smallest, search.probe.zero());
    if (!exponent) return {};
    piece.exponent = *exponent;
    if (const auto found = of_gradient.find(piece.slot); found != of_gradient.end()) {
      const auto offset =
          as_exponent(found->second / relation.coefficients[k], search.probe.zero());
      if (!offset) return {};
      piece.offset = *offset;
      of_gradient.erase(found);
    }
    pieces.push_back(piece);
  }
  // A convolution that is flattened is read in runs by the layer behind it; runs on both sides are
  // rotary planes.
  const bool only_runs =
      std::all_of(pieces.begin(), pieces.end(), [](const Piece& piece) { return piece.run > 1; });
  if (!of_gradient.empty() || pieces.size() < 2 || only_runs || overlap(pieces, size)) return {};
  return pieces;
}

/// Turns the sign of a relation to how people write it: the gain, or else the layer that comes first,
/// has positive exponents.
void orient_(const Search& search, std::vector<Piece>& pieces) {
  // What speaks for a side being the first: it has only vectors; it has vectors at all (biases); its
  // axes are rows; it comes first in the table.
  const auto rank = [&](double sign) {
    bool only_vectors = true;
    bool vectors = false;
    int64_t rows = 0;
    std::pair<size_t, int64_t> first{search.probe.slots().size(), 0};
    for (const auto& piece : pieces) {
      if (piece.exponent * sign < 0) continue;
      const bool vector = search.is_vector(piece.slot);
      only_vectors = only_vectors && vector;
      vectors = vectors || vector;
      if (!vector && search.slot(piece.slot).axis == 0) ++rows;
      first = std::min(first, {piece.slot, piece.first});
    }
    return std::tuple(!only_vectors, !vectors, -rows, first);
  };
  const bool has_both = std::any_of(pieces.begin(), pieces.end(),
                                    [](const Piece& piece) { return piece.exponent < 0; }) &&
                        std::any_of(pieces.begin(), pieces.end(),
                                    [](const Piece& piece) { return piece.exponent > 0; });
  const double sign =
      !has_both ? (pieces.front().exponent > 0 ? 1 : -1) : (rank(1) <= rank(-1) ? 1 : -1);
  for (auto& piece : pieces) piece.exponent *= sign;
  // Weights before their biases: the first leg gives a gauge its name, and a gain its unit.
  std::stable_sort(pieces.begin(), pieces.end(), [&](const Piece& a, const Piece& b) {
    return std::tuple(a.exponent < 0, search.is_vector(a.slot)) <
           std::tuple(b.exponent < 0, search.is_vector(b.slot));
  });
}

/// Which slots take part, how, and how often: equal for the heads of one layer.
using Signature = std::vector<std::tuple<size_t, double, double, int64_t>>;
Signature signature_of(const std::vector<Piece>& pieces) {
  Signature signature;
  for (const auto& piece : pieces) {
    signature.push_back({piece.slot, piece.exponent, piece.offset, piece.run});
  }
  std::sort(signature.begin(), signature.end());
  return signature;
}

/// Whether some slot takes part once: what several heads share. If all are there several times the
/// pieces are too small: halves of heads, whose coordinates are paired.
bool has_single(const Signature& signature) {
  return std::any_of(signature.begin(), signature.end(), [&](const auto& entry) {
    return std::count(signature.begin(), signature.end(), entry) == 1;
  });
}

/// Where pieces of a size may begin. What does not divide an axis is looked for at its end (the B and C of a state
/// space), and at the ends of equal parts of it (heads of which a part has no rotary embedding).
std::vector<int64_t> starts_of(int64_t axis, int64_t size, bool anywhere) {
  std::set<int64_t> starts;
  if (axis % size == 0) {
    for (int64_t first = 0; first < axis; first += size) starts.insert(first);
  } else if (anywhere) {
    for (int64_t first = axis - size; first >= 0; first -= size) starts.insert(first);
  }
  for (int64_t parts = 1; anywhere && axis / parts > size; ++parts) {
    const int64_t part = axis / parts;
    if (axis % parts != 0 || part % size == 0) continue;
    for (int64_t j = 0; j < parts; ++j) {
      starts.insert(j * part);
      starts.insert((j + 1) * part - size);
    }
  }
  return {starts.begin(), starts.end()};
}

/// Whether the relation of pieces holds at a place beside them as well.
bool goes_on(const Search& search, const std::vector<Piece>& pieces, int64_t place) {
  at::Tensor sum;
  at::Tensor size;
  for (const auto& piece : pieces) {
    const int64_t index = piece.first + place;
    if (index < 0 || index >= search.slot(piece.slot).size) return false;
    const auto charge = search.probe.scale_charge(piece.slot).select(1, index) * piece.exponent;
    sum = sum.defined() ? sum + charge : charge;
    size = size.defined() ? size + charge.abs() : charge.abs();
  }
  return sum.abs().max().item<double>() <= search.probe.zero() * size.max().item<double>();
}

std::vector<Column> columns_of(const Search& search, const Cut& cut) {
  std::vector<Column> columns;
  const int64_t n = cut.view.size;
  for (size_t k = 0; k < search.probe.slots().size(); ++k) {
    const auto& slot = search.slot(k);
    if (slot.stacked != cut.stacks) continue;
    const bool anywhere = !cut.whole_axes && !cut.stacks && !search.probe.is_large();
    if (slot.size < n || search.is_null(slot.tensor)) continue;
    if (slot.size % n != 0 && !anywhere) continue;
    const int64_t count = slot.size / n;
    if (count > cut.most_pieces && !cut.whole_axes) continue;
    if (count <= cut.most_pieces) {
      for (const int64_t first : starts_of(slot.size, n, anywhere)) {
        if (search.is_free(k, first, n)) columns.push_back({{.slot = k, .first = first}});
      }
    }
    if (slot.size % n != 0 || !search.is_free(k, 0, slot.size)) continue;
    if (cut.whole_axes && count > 1) columns.push_back({{.slot = k, .first = 0, .run = count}});
    if (count == 1 && search.is_vector(k) && search.probe.is_small(slot.tensor)) {
      columns.push_back({{.slot = k, .first = 0}, /*gradient=*/true});
    }
  }
  return columns;
}

/// The largest number of columns in a window.
size_t most_in_window(const std::vector<size_t>& position, size_t window) {
  size_t most = 0;
  for (size_t first = 0, last = 0; last < position.size(); ++last) {
    while (position[last] - position[first] >= window) ++first;
    most = std::max(most, last - first + 1);
  }
  return most;
}

}  // namespace

bool find_at(Search& search, const Cut& cut) {
  const auto columns = columns_of(search, cut);
  std::vector<size_t> position;
  for (const auto& column : columns) position.push_back(search.slot(column.piece.slot).tensor);
  if (columns.size() < 2) return false;
  RelationOptions options;
  options.tolerance = search.probe.zero();
  options.window = cut.whole_axes ? window_of_axes : window_of_heads;
  // Each column has as many rows per batch as there are channels; without more rows than columns
  // everything is related.
  const auto in_window = static_cast<int64_t>(most_in_window(position, options.window));
  const auto wanted = 2 * in_window / cut.view.channels() + 3;
  const int64_t most = search.probe.is_small()                  ? most_batches_of_small
                       : search.probe.is_large() && !cut.hinted ? most_batches_of_large
                                                                : most_batches;
  if (wanted > most) return false;
  search.probe.draw(wanted);
  std::vector<at::Tensor> values;
  for (const auto& column : columns) {
    values.push_back(values_of(search, cut.view, column).flatten());
  }
  const auto relations = sparse_relations(at::stack(values, 1), position, options);
  std::map<Signature, std::vector<std::vector<Piece>>> of_signature;
  std::vector<Signature> order;
  std::map<size_t, std::set<int64_t>> taken;
  for (const auto& relation : relations) {
    auto pieces = pieces_of(search, relation, columns, cut.view.size);
    if (!pieces) continue;
    orient_(search, *pieces);
    // A piece that begins anywhere is all of what is related, and not a part of a longer one.
    const bool anywhere = std::ranges::any_of(
        *pieces, [&](const Piece& piece) { return piece.first % cut.view.size != 0; });
    if (anywhere && (goes_on(search, *pieces, cut.view.size) || goes_on(search, *pieces, -1))) {
      continue;
    }
    // Each coordinate is in one piece.
    const bool crosses = std::ranges::any_of(*pieces, [&](const Piece& piece) {
      return std::ranges::any_of(taken[piece.slot], [&](int64_t first) {
        return first != piece.first && std::abs(first - piece.first) < cut.view.size;
      });
    });
    if (crosses) continue;
    const auto signature = signature_of(*pieces);
    // Whole axes, and the parts of fused ones, take part once each.
    const bool repeated = std::adjacent_find(signature.begin(), signature.end()) != signature.end();
    if (cut.whole_axes ? repeated : !has_single(signature)) continue;
    for (const auto& piece : *pieces) {
      if (piece.run == 1) taken[piece.slot].insert(piece.first);
    }
    if (of_signature.count(signature) == 0) order.push_back(signature);
    of_signature[signature].push_back(*pieces);
  }
  if (cut.look_only) return !order.empty();
  for (const auto& signature : order) {
    auto& matches = of_signature[signature];
    std::sort(matches.begin(), matches.end(),
              [](const auto& a, const auto& b) { return a.front().first < b.front().first; });
    for (const auto& pieces : matches) {
      for (const auto& piece : pieces) {
        search.mark(piece.slot, piece.first, cut.view.size * piece.run);
      }
    }
    search.scales.push_back({cut.view, std::move(matches)});
  }
  return !order.empty();
}

namespace {

/// One scale for every unit of every expert. What scales so has none for the units of all experts together.
void find_stacked_scales(Search& search) {
  std::set<int64_t> lengths;
  for (const auto& slot : search.probe.slots()) {
    const auto& tensor = search.probe.parameter(slot.tensor).tensor;
    if (slot.stacked && tensor.size(slot.axis) > 1) lengths.insert(tensor.size(slot.axis));
  }
  const size_t before = search.scales.size();
  for (const int64_t n : descending(lengths)) {
    find_at(search, {.view = {.size = n},
                     .most_pieces = std::numeric_limits<int64_t>::max(),
                     .whole_axes = false,
                     .stacks = true});
  }
  for (size_t k = before; k < search.scales.size(); ++k) {
    for (const auto& piece : search.scales[k].matches.front()) {
      const auto& slot = search.slot(piece.slot);
      const auto& tensor = search.tensor_of(piece.slot);
      const int64_t size = tensor.tensor.size(slot.axis);
      // Where in its matrix the piece is.
      search.mark(search.slot_of(tensor.name, slot.axis), piece.first % size,
                  search.scales[k].view.size);
    }
  }
}

}  // namespace

void Search::find_scales() {
  find_stacked_scales(*this);
  std::set<int64_t> lengths;
  for (const auto& slot : probe.slots()) {
    if (slot.size > 1 && !slot.stacked) lengths.insert(slot.size);
  }
  for (const int64_t n : descending(lengths)) find_at(*this, {.view = {.size = n}});
}

/// Rows of a tensor whose length the network forgets by itself, as under weight normalisation; or the tensor's, where
/// what it makes is normalised.
void Search::find_lone_scales() {
  std::vector<Gauge> candidates;
  for (size_t k = 0; k < probe.slots().size(); ++k) {
    const auto& here = slot(k);
    const auto& tensor = tensor_of(k);
    if (tensor.tensor.dim() < 2 || here.size < 2 || is_null(here.tensor)) continue;
    if (here.stacked) continue;
    if (tensor.tensor.numel() == here.size || !is_free(k, 0, here.size)) continue;
    // The sum of terms with random signs would be so large.
    const double terms =
        static_cast<double>(tensor.tensor.numel()) / static_cast<double>(here.size);
    const double charge = root_mean_square(probe.scale_charge(k));
    if (charge > 1e-3 * probe.influence(here.tensor) * std::sqrt(terms)) continue;
    Gauge gauge;
    gauge.name = tensor.name + ":length";
    gauge.kind = "length";
    gauge.action = Action::scale;
    gauge.channels = here.size;
    gauge.legs = {{.tensor = tensor.name, .axis = here.axis}};
    candidates.push_back(std::move(gauge));
  }
  std::set<std::string> known;
  const auto keep = [&] {
    const auto charges = probe.relative_charges(candidates);
    for (size_t k = 0; k < candidates.size(); ++k) {
      if (charges[k] > probe.zero()) continue;
      known.insert(candidates[k].legs.front().tensor);
      gauges.push_back(std::move(candidates[k]));
    }
    candidates.clear();
  };
  keep();
  const auto totals = probe.totals();
  for (size_t t = 0; t < probe.params().size(); ++t) {
    const auto& [name, tensor] = probe.parameter(t);
    if (tensor.dim() < 2 || is_null(t) || known.count(name) > 0) continue;
    const double charge = root_mean_square(totals.select(1, static_cast<int64_t>(t)));
    const double terms = std::sqrt(static_cast<double>(tensor.numel()));
    if (charge > 1e-3 * probe.influence(t) * terms) continue;
    Gauge gauge;
    gauge.name = name + ":length";
    gauge.kind = "length";
    gauge.action = Action::scale;
    gauge.channels = 1;
    gauge.legs = {{.tensor = name, .channel_of = channel_maps::whole(tensor.size(0))}};
    candidates.push_back(std::move(gauge));
  }
  keep();
}

/// Tensors as a whole of which one makes up for the other, and nothing smaller does: factors before and behind
/// a matrix that is frozen.
void Search::find_pairs_of_scales() {
  std::vector<size_t> slots;
  std::vector<size_t> position;
  for (size_t k = 0; k < probe.slots().size(); ++k) {
    const auto& here = slot(k);
    if (here.axis > 0 || is_null(here.tensor)) continue;
    bool free = true;
    for (size_t j = 0; j < probe.slots().size(); ++j) {
      free = free && (slot(j).tensor != here.tensor || is_free(j, 0, slot(j).size));
    }
    if (!free) continue;
    slots.push_back(k);
    position.push_back(here.tensor);
  }
  if (slots.size() < 2) return;
  probe.draw(2 * static_cast<int64_t>(std::min(slots.size(), window_of_heads)) + 3);
  std::vector<at::Tensor> columns;
  for (const size_t k : slots) columns.push_back(probe.scale_charge(k).sum(1));
  RelationOptions options;
  options.tolerance = probe.zero();
  options.window = window_of_heads;
  for (const auto& relation : sparse_relations(at::stack(columns, 1), position, options)) {
    if (relation.columns.size() != 2) continue;
    Gauge gauge;
    gauge.kind = "pair scale";
    gauge.action = Action::scale;
    gauge.channels = 1;
    for (size_t i = 0; i < 2; ++i) {
      const size_t k = slots[relation.columns[i]];
      const auto exponent = as_exponent(
          relation.coefficients[i] * (relation.coefficients[0] > 0 ? 1 : -1), probe.zero());
      if (!exponent) break;
      gauge.legs.push_back({.tensor = tensor_of(k).name,
                            .exponent = *exponent,
                            .channel_of = channel_maps::whole(slot(k).size)});
    }
    if (gauge.legs.size() < 2) continue;
    gauge.name = gauge.legs.front().tensor + ":pair";
    add_if_conserved(std::move(gauge));
  }
}

Gauge scale_gauge(const Search& search, const ScaleMatch& match) {
  Gauge gauge;
  gauge.action = Action::scale;
  const int64_t per_match = match.view.channels();
  gauge.channels = per_match * static_cast<int64_t>(match.matches.size());
  for (const auto& first : match.matches.front()) {
    const auto same = [&](const Leg& leg) {
      return leg.tensor == search.tensor_of(first.slot).name &&
             leg.axis == search.slot(first.slot).axis && leg.exponent == first.exponent;
    };
    if (std::any_of(gauge.legs.begin(), gauge.legs.end(), same)) continue;
    Leg leg;
    leg.tensor = search.tensor_of(first.slot).name;
    leg.axis = search.slot(first.slot).axis;
    leg.exponent = first.exponent;
    leg.offset = first.offset;
    leg.stacked = search.slot(first.slot).stacked;
    leg.channel_of.assign(search.slot(first.slot).size, -1);
    for (size_t q = 0; q < match.matches.size(); ++q) {
      for (const auto& piece : match.matches[q]) {
        if (piece.slot != first.slot || piece.exponent != first.exponent) continue;
        for (int64_t i = 0; i < match.view.size * piece.run; ++i) {
          leg.channel_of[piece.first + i] =
              static_cast<int64_t>(q) * per_match + match.view.channel(i / piece.run);
        }
      }
    }
    gauge.legs.push_back(std::move(leg));
  }
  for (auto& leg : gauge.legs) {
    bool identity = static_cast<int64_t>(leg.channel_of.size()) == gauge.channels;
    for (size_t i = 0; identity && i < leg.channel_of.size(); ++i) {
      identity = leg.channel_of[i] == static_cast<int64_t>(i);
    }
    if (identity) leg.channel_of.clear();
  }
  return gauge;
}

}  // namespace ddc
