#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
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
  if (nearest == 0) return {};
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

std::vector<Column> columns_of(const Search& search, const Cut& cut) {
  std::vector<Column> columns;
  const int64_t n = cut.view.size;
  for (size_t k = 0; k < search.probe.slots().size(); ++k) {
    const auto& slot = search.slot(k);
    if (slot.size % n != 0 || search.is_null(slot.tensor)) continue;
    const int64_t count = slot.size / n;
    if (count > cut.most_pieces && !cut.whole_axes) continue;
    if (count <= cut.most_pieces) {
      for (int64_t j = 0; j < count; ++j) {
        if (search.is_free(k, j * n, n)) columns.push_back({{.slot = k, .first = j * n}});
      }
    }
    if (!cut.whole_axes || !search.is_free(k, 0, slot.size)) continue;
    if (count > 1) columns.push_back({{.slot = k, .first = 0, .run = count}});
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
  for (const auto& relation : relations) {
    auto pieces = pieces_of(search, relation, columns, cut.view.size);
    if (!pieces) continue;
    orient_(search, *pieces);
    const auto signature = signature_of(*pieces);
    // Whole axes, and the parts of fused ones, take part once each.
    const bool repeated = std::adjacent_find(signature.begin(), signature.end()) != signature.end();
    if (cut.whole_axes ? repeated : !has_single(signature)) continue;
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

void Search::find_scales() {
  std::set<int64_t> lengths;
  for (const auto& slot : probe.slots()) {
    if (slot.size > 1) lengths.insert(slot.size);
  }
  for (const int64_t n : descending(lengths)) find_at(*this, {.view = {.size = n}});
}

/// Rows of a tensor whose length the network forgets by itself, as under weight normalisation.
void Search::find_lone_scales() {
  std::vector<Gauge> candidates;
  for (size_t k = 0; k < probe.slots().size(); ++k) {
    const auto& here = slot(k);
    const auto& tensor = tensor_of(k);
    if (tensor.tensor.dim() < 2 || here.size < 2 || is_null(here.tensor)) continue;
    if (tensor.tensor.numel() == here.size || !is_free(k, 0, here.size)) continue;
    // The sum of terms with random signs would be so large.
    const double terms =
        static_cast<double>(tensor.tensor.numel()) / static_cast<double>(here.size);
    const double charge = std::sqrt(probe.scale_charge(k).square().mean().item<double>());
    if (charge > 1e-3 * probe.influence(here.tensor) * std::sqrt(terms)) continue;
    Gauge gauge;
    gauge.name = tensor.name + ":length";
    gauge.kind = "length";
    gauge.action = Action::scale;
    gauge.channels = here.size;
    gauge.legs = {{.tensor = tensor.name, .axis = here.axis}};
    candidates.push_back(std::move(gauge));
  }
  const auto charges = probe.relative_charges(candidates);
  for (size_t k = 0; k < candidates.size(); ++k) {
    if (charges[k] <= probe.zero()) gauges.push_back(std::move(candidates[k]));
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
