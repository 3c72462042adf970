#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "gauge/leg_maps.h"
#include "relations.h"
#include "search.h"

namespace ddc {

using channel_maps::Pairing;

namespace {

bool can_mix(const Search& search, const ScaleMatch& match) {
  bool plus = false;
  bool minus = false;
  for (const auto& piece : match.matches.front()) {
    if (std::abs(piece.exponent) != 1 || piece.offset != 0 || piece.run != 1) return false;
    if (search.slot(piece.slot).stacked) return false;
    if (search.is_vector(piece.slot)) continue;
    (piece.exponent > 0 ? plus : minus) = true;
  }
  return plus && minus && match.view.size > 1;
}

/// Which coordinates of a match mix with which, if those with the first one are typical.
struct Mixing {
  int64_t block = 1;
  /// Coordinates of one block follow each other at this distance.
  int64_t stride = 1;
};

Mixing mixing_of(const at::Tensor& row, double size, double epsilon) {
  // `row` holds what the charge of the whole matrix group has in the first row and column.
  const int64_t n = row.numel();
  const auto sorted = std::get<0>(row.sort());
  const double typical = sorted[n - 1 - (n - 1) / 4].item<double>();
  // One entry of a large matrix is a small part of its norm: only rounding is smaller still.
  const bool all_small = typical <= 20 * epsilon * size;
  // What rounding leaves of an entry that vanishes, beside those that do not. Where all are small (heads
  // that attend alike hardly tell their values apart) only a clear step tells a block.
  const double share = all_small ? 0.1 : epsilon < 1e-10 ? 1e-6 : 1e-2;
  const auto rms = [](const at::Tensor& entries) {
    return std::sqrt(entries.square().mean().item<double>());
  };
  for (int64_t block = n / 2; block >= 2; --block) {
    if (n % block != 0) continue;
    for (const bool contiguous : {true, false}) {
      // [blocks, block], the first row being the block of the first coordinate.
      const auto blocks =
          contiguous ? row.view({n / block, block}) : row.view({block, n / block}).t();
      if (rms(blocks[0]) <= share * rms(blocks.slice(0, 1))) {
        return {block, contiguous ? 1 : n / block};
      }
    }
  }
  if (all_small) return {n, 1};
  return {};
}

/// Charge of a matrix group of one block, in part: the squares of its first row plus those of its first column,
/// and the size of its terms. The whole charge would take the cube of an MLP's width.
struct FirstEntries {
  at::Tensor squares;
  double size = 0;
};

FirstEntries first_entries(const Gauge& gauge, const Parameters& params,
                           const Parameters& gradients) {
  const at::NoGradGuard no_grad;
  auto row = at::zeros({gauge.block}, at::kDouble);
  auto column = at::zeros({gauge.block}, at::kDouble);
  FirstEntries result;
  for (const auto& leg : gauge.legs) {
    const auto taken = [&](const Parameters& table) {
      const auto tensor = table[leg.tensor].tensor.detach();
      return block_map_of(gauge, leg, tensor).take(tensor).select(0, 0).to(at::kDouble);
    };
    const auto weight = taken(params);
    const auto gradient = taken(gradients);
    const auto by_gradient = weight.mv(gradient[0]).cpu();
    const auto by_weight = gradient.mv(weight[0]).cpu();
    row += leg.exponent > 0 ? by_gradient : -by_weight;
    column += leg.exponent > 0 ? by_weight : -by_gradient;
    result.size += weight.norm().item<double>() * gradient.norm().item<double>();
  }
  result.squares = row.square() + column.square();
  return result;
}

}  // namespace

Gauge with_channels(const Search& search, const ScaleMatch& match, Action action, int64_t block,
                    int64_t per_match, const std::function<int64_t(int64_t)>& channel) {
  ScaleMatch plain = match;
  plain.view = {.size = match.view.size};
  Gauge gauge = scale_gauge(search, plain);
  const int64_t size = match.view.size;
  for (auto& leg : gauge.legs) {
    if (leg.channel_of.empty()) {
      leg.channel_of.resize(gauge.channels);
      std::iota(leg.channel_of.begin(), leg.channel_of.end(), 0);
    }
    for (auto& c : leg.channel_of) {
      if (c < 0) continue;
      const int64_t within = channel(c % size);
      c = within < 0 ? -1 : c / size * per_match + within;
    }
    if (action == Action::rotation) leg.exponent = 1;
  }
  gauge.action = action;
  gauge.block = block;
  gauge.channels = per_match * static_cast<int64_t>(match.matches.size());
  return gauge;
}

namespace {

/// Says that axes consist of heads, of those that do.
void cut_heads_(const Search& search, const ScaleMatch& match, int64_t size, Gauge& gauge) {
  for (auto& leg : gauge.legs) {
    const size_t slot = search.slot_of(leg.tensor, leg.axis);
    const bool tiled = std::ranges::all_of(match.matches, [&](const auto& pieces) {
      return std::ranges::all_of(pieces, [&](const Piece& piece) {
        return piece.slot != slot || piece.first % match.view.size == 0;
      });
    });
    if (tiled && search.slot(slot).size % size == 0) leg.head_size = size;
  }
}

}  // namespace

void Search::find_blocks() {
  std::vector<size_t> which;
  std::vector<Gauge> whole;
  for (size_t k = blocks_done_; k < scales.size(); ++k) {
    if (scales[k].view.rotary > 0 || !can_mix(*this, scales[k])) continue;
    const int64_t n = scales[k].view.size;
    which.push_back(k);
    whole.push_back(
        with_channels(*this, scales[k], Action::linear, n, n, [](int64_t i) { return i; }));
    whole.back().name = "all of it";
  }
  std::vector<at::Tensor> rows(whole.size());
  std::vector<double> sizes(whole.size(), 0);
  const int64_t batches = whole.empty() ? 0 : probe.charge_batches();
  probe.each_batch(batches, [&](const Parameters& gradients) {
    for (size_t k = 0; k < whole.size(); ++k) {
      const auto found = first_entries(whole[k], probe.params(), gradients);
      rows[k] = rows[k].defined() ? rows[k] + found.squares : found.squares;
      sizes[k] = std::max(sizes[k], found.size);
    }
  });
  std::vector<Gauge> candidates;
  std::vector<size_t> candidate_of;
  std::set<size_t> mixed;
  for (size_t k = 0; k < whole.size(); ++k) {
    const auto mixing = mixing_of(rows[k].sqrt(), sizes[k], probe.epsilon());
    if (mixing.block < 2) continue;
    const auto& match = scales[which[k]];
    const int64_t n = match.view.size;
    auto gauge = with_channels(*this, match, Action::linear, mixing.block, n, [=](int64_t i) {
      return mixing.stride == 1 ? i : i % mixing.stride * mixing.block + i / mixing.stride;
    });
    gauge.name = tensor_of(match.matches.front().front().slot).name + ":linear";
    candidates.push_back(std::move(gauge));
    candidate_of.push_back(which[k]);
  }
  const auto charges = probe.relative_charges(candidates);
  for (size_t k = 0; k < candidates.size(); ++k) {
    if (charges[k] > probe.zero()) continue;
    const auto block = candidates[k].block;
    cut_heads_(*this, scales[candidate_of[k]], block, candidates[k]);
    if (std::find(head_sizes.begin(), head_sizes.end(), block) == head_sizes.end()) {
      head_sizes.push_back(block);
    }
    gauges.push_back(candidates[k]);
    mixed.insert(candidate_of[k]);
  }
  for (size_t k = blocks_done_; k < scales.size(); ++k) {
    if (scales[k].view.rotary > 0 || mixed.count(k) > 0) continue;
    auto gauge = scale_gauge(*this, scales[k]);
    gauge.name = gauge.legs.front().tensor + ":scale";
    gauges.push_back(std::move(gauge));
  }
  blocks_done_ = scales.size();
}

namespace {

/// A part of a vector, if the loss is blind to it.
std::optional<Gauge> null_part(const Search& search, size_t slot,
                               const std::vector<int64_t>& indices) {
  const auto& tensor = search.tensor_of(slot);
  if (indices.empty() || !search.is_vector(slot)) return {};
  if (!search.probe.is_small(search.slot(slot).tensor)) return {};
  const auto gradient = search.probe.small_gradient(search.slot(slot).tensor);
  const auto part = gradient.index_select(1, at::tensor(indices, at::kLong)).abs().max();
  if (part.item<double>() > 100 * search.probe.epsilon() * gradient.abs().max().item<double>()) {
    return {};
  }
  Gauge gauge;
  gauge.name = tensor.name + ":null";
  gauge.kind = "null shift";
  gauge.action = Action::shift;
  gauge.legs = {{.tensor = tensor.name}};
  auto& channel = gauge.legs[0].channel_of;
  channel.assign(search.slot(slot).size, -1);
  for (const int64_t i : indices) channel[i] = gauge.channels++;
  return gauge;
}

/// The part of a bias that rotary embedding leaves alone, if the loss is blind to it: a key's.
std::optional<Gauge> null_pass_through(const Search& search, const ScaleMatch& match, size_t slot) {
  std::vector<int64_t> indices;
  for (const auto& pieces : match.matches) {
    for (const auto& piece : pieces) {
      if (piece.slot != slot || piece.exponent > 0) continue;
      for (int64_t i = match.view.rotary; i < match.view.size; ++i) {
        indices.push_back(piece.first + i);
      }
    }
  }
  return null_part(search, slot, indices);
}

}  // namespace

void Search::find_plane_gauges() {
  std::vector<Gauge> candidates;
  for (const auto& match : scales) {
    const auto& view = match.view;
    if (view.rotary == 0) continue;
    const auto& first = tensor_of(match.matches.front().front().slot).name;
    const auto add = [&](Gauge gauge, const char* suffix) {
      gauge.name = first + ":" + suffix;
      if (can_mix(*this, match)) cut_heads_(*this, match, view.size, gauge);
      candidates.push_back(std::move(gauge));
    };
    add(with_channels(*this, match, Action::scale, 1, view.planes(),
                      [&](int64_t i) { return i < view.rotary ? view.channel(i) : -1; }),
        "qk_scale");
    if (!can_mix(*this, match)) {
      // Gains of normalised queries and keys: nothing turns, and what passes through has a factor each.
      if (view.rotary < view.size) {
        add(with_channels(*this, match, Action::scale, 1, view.size - view.rotary,
                          [&](int64_t i) { return i < view.rotary ? -1 : i - view.rotary; }),
            "pass_through");
      }
      continue;
    }
    add(with_channels(
            *this, match, Action::rotation, 2, view.rotary,
            [&](int64_t i) { return i < view.rotary ? 2 * view.channel(i) + view.side(i) : -1; }),
        "qk_torus");
    if (view.rotary < view.size) {
      std::set<size_t> slots;
      for (const auto& piece : match.matches.front()) slots.insert(piece.slot);
      for (const size_t k : slots) {
        if (auto null = null_pass_through(*this, match, k)) candidates.push_back(*null);
      }
      const int64_t rest = view.size - view.rotary;
      add(with_channels(*this, match, Action::linear, rest, rest,
                        [&](int64_t i) { return i < view.rotary ? -1 : i - view.rotary; }),
          "qk_linear");
    }
  }
  const auto charges = probe.relative_charges(candidates);
  for (size_t k = 0; k < candidates.size(); ++k) {
    // What is null is its own charge and its own scale.
    if (candidates[k].kind == "null shift" || charges[k] <= probe.zero()) {
      gauges.push_back(std::move(candidates[k]));
    }
  }
}

namespace {

/// Rotations of the pieces of free axes with pieces of this size: those that hold without a scale,
/// behind a norm of each head.
struct Pieces {
  std::vector<size_t> slots;
  std::vector<Gauge> gauges;  ///< one leg each
};

/// Whether the sums over pieces vanish, more or less: a norm has forgotten the scale of each, but for
/// its eps.
bool forgets_scale(const Search& search, size_t slot, int64_t size) {
  const auto charge = search.probe.scale_charge(slot);
  const auto pieces = charge.view({charge.size(0), -1, size});
  return (pieces.sum(2).norm() < 0.5 * pieces.norm()).item<bool>();
}

Pieces free_pieces(const Search& search, int64_t size) {
  Pieces pieces;
  for (size_t k = 0; k < search.probe.slots().size(); ++k) {
    const auto& slot = search.slot(k);
    if (slot.stacked || slot.size % size != 0 || search.is_vector(k)) continue;
    if (search.is_null(slot.tensor)) continue;
    if (!search.is_free(k, 0, slot.size)) continue;
    if (search.probe.is_large() && !forgets_scale(search, k, size)) continue;
    Gauge gauge;
    gauge.name = "pieces";
    gauge.action = Action::rotation;
    gauge.block = size;
    gauge.channels = slot.size;
    gauge.legs = {{.tensor = search.tensor_of(k).name, .axis = slot.axis}};
    pieces.slots.push_back(k);
    pieces.gauges.push_back(std::move(gauge));
  }
  return pieces;
}

/// The entries of a skew matrix that a view looks at: all, or those of the planes.
at::Tensor looked_at(const at::Tensor& skew, const View& view) {
  const int64_t n = view.size;
  std::vector<int64_t> entries;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = i + 1; j < n; ++j) {
      const bool turned = i < view.rotary || j < view.rotary;
      if (!turned || (j < view.rotary && view.channel(i) == view.channel(j))) {
        entries.push_back(i * n + j);
      }
    }
  }
  return skew.flatten(1).index_select(1, at::tensor(entries, at::kLong));
}

bool find_rotations_at(Search& search, const Pieces& pieces,
                       const std::vector<std::vector<at::Tensor>>& charges, const View& view) {
  std::vector<at::Tensor> columns;
  std::vector<Piece> piece_of;
  std::vector<size_t> position;
  for (size_t k = 0; k < pieces.slots.size(); ++k) {
    std::vector<at::Tensor> per_batch;
    for (const auto& charge : charges[k]) per_batch.push_back(looked_at(charge, view));
    const auto all = at::cat(per_batch, 1);  // [pieces, batches * entries]
    for (int64_t j = 0; j < all.size(0); ++j) {
      if (!search.is_free(pieces.slots[k], j * view.size, view.size)) continue;
      columns.push_back(all[j]);
      piece_of.push_back({.slot = pieces.slots[k], .first = j * view.size});
      position.push_back(search.slot(pieces.slots[k]).tensor);
    }
  }
  if (columns.size() < 2 || columns.front().numel() < static_cast<int64_t>(columns.size())) {
    return false;
  }
  RelationOptions options;
  options.tolerance = search.probe.zero();
  std::map<std::set<size_t>, ScaleMatch> matches;
  for (const auto& relation : sparse_relations(at::stack(columns, 1), position, options)) {
    std::vector<Piece> found;
    std::set<size_t> slots;
    for (size_t k = 0; k < relation.columns.size(); ++k) {
      if (std::abs(relation.coefficients[k] - relation.coefficients[0]) >
          coefficient_tolerance(search.probe.zero())) {
        found.clear();
        break;
      }
      found.push_back(piece_of[relation.columns[k]]);
      slots.insert(found.back().slot);
    }
    if (found.size() < 2) continue;
    auto& match = matches[slots];
    match.view = view;
    match.matches.push_back(std::move(found));
  }
  bool any = false;
  for (auto& [slots, match] : matches) {
    const int64_t turned = view.rotary;
    auto gauge = turned == 0
                     ? with_channels(search, match, Action::rotation, view.size, view.size,
                                     [](int64_t i) { return i; })
                     : with_channels(search, match, Action::rotation, 2, turned, [&](int64_t i) {
                         return i < turned ? 2 * view.channel(i) + view.side(i) : -1;
                       });
    gauge.name = gauge.legs.front().tensor + (turned == 0 ? ":qk_rotation" : ":qk_torus");
    for (auto& leg : gauge.legs) leg.head_size = view.size;
    if (!search.add_if_conserved(std::move(gauge))) continue;
    any = true;
    for (const auto& match_pieces : match.matches) {
      for (const auto& piece : match_pieces) search.mark(piece.slot, piece.first, view.size);
    }
  }
  return any;
}

}  // namespace

namespace {

/// Where queries and keys are rows of one tensor, the queries' part of its bias tells which tensor that
/// is: the keys' part beside it, which is null.
std::vector<Leg> null_parts_of_bias(const Search& search, const Gauge& gauge,
                                    std::vector<Gauge>& nulls) {
  std::vector<Leg> result;
  const auto size = [&](const Leg& leg) {
    return search.slot(search.slot_of(leg.tensor, leg.axis)).size;
  };
  const auto is_vector = [&](const Leg& leg) {
    return search.is_vector(search.slot_of(leg.tensor, leg.axis));
  };
  for (const auto& weight : gauge.legs) {
    if (is_vector(weight) || weight.channel_of.empty()) continue;
    for (const auto& bias : gauge.legs) {
      if (!is_vector(bias) || size(bias) != size(weight)) continue;
      const auto of_tensor = [&](const std::string& name, const Leg& part) {
        return std::any_of(gauge.legs.begin(), gauge.legs.end(), [&](const Leg& leg) {
          return leg.tensor == name && leg.channel_of == part.channel_of;
        });
      };
      if (!of_tensor(weight.tensor, bias) || of_tensor(bias.tensor, weight)) continue;
      std::vector<int64_t> indices;
      for (int64_t i = 0; i < size(weight); ++i) {
        if (weight.channel_of[i] >= 0) indices.push_back(i);
      }
      auto null = null_part(search, search.slot_of(bias.tensor, 0), indices);
      if (!null) continue;
      nulls.push_back(std::move(*null));
      result.push_back(weight);
      result.back().tensor = bias.tensor;
      result.back().axis = 0;
    }
  }
  return result;
}

}  // namespace

void Search::add_null_biases() {
  // A key's bias is null by itself, so charges do not say that it turns with its weight. But a gauge
  // that acts through the norm before it moves it by what the weight reads, and together they are a
  // group only if it does.
  std::vector<Gauge> nulls;
  for (auto& gauge : gauges) {
    if (!gauge.mixes() || gauge.kind == "residual rotation") continue;
    auto biases = null_parts_of_bias(*this, gauge, nulls);
    for (const auto& leg : gauge.legs) {
      for (const auto& gain : gains) {
        for (const auto& reader : gain.readers) {
          if (reader.weight != leg.tensor || reader.axis == leg.axis || reader.bias.empty())
            continue;
          if (!is_null(slot(slot_of(reader.bias, 0)).tensor)) continue;
          biases.push_back(leg);
          biases.back().tensor = reader.bias;
          biases.back().axis = 0;
        }
      }
    }
    gauge.legs.insert(gauge.legs.end(), biases.begin(), biases.end());
  }
  gauges.insert(gauges.end(), nulls.begin(), nulls.end());
}

void Search::find_rotations() {
  std::set<int64_t> tried;
  // Heads, and spaces that several layers write to and whose scale is forgotten (CLIP's).
  auto sizes = head_sizes;
  std::map<int64_t, int64_t> forgetting;
  for (size_t k = 0; k < probe.slots().size(); ++k) {
    const auto& here = slot(k);
    if (is_vector(k) || here.stacked || here.size < 2 || !is_free(k, 0, here.size)) continue;
    if (is_null(here.tensor) || !forgets_scale(*this, k, here.size)) continue;
    if (++forgetting[here.size] == 2) sizes.push_back(here.size);
  }
  for (const int64_t n : sizes) {
    if (n < 2 || !tried.insert(n).second) continue;
    const auto pieces = free_pieces(*this, n);
    if (pieces.slots.size() < 2) continue;
    size_t count = 0;
    for (const size_t k : pieces.slots) count += static_cast<size_t>(slot(k).size / n);
    const auto batches = std::min<int64_t>(
        24, std::max<int64_t>(probe.charge_batches(), 4 * static_cast<int64_t>(count) / n + 1));
    std::vector<std::vector<at::Tensor>> charges(pieces.slots.size());
    probe.each_charge(pieces.gauges, batches,
                      [&](size_t k, const Charge& charge) { charges[k].push_back(charge.value); });
    if (find_rotations_at(*this, pieces, charges, {.size = n})) continue;
    for (const auto pairing : {Pairing::half_split, Pairing::interleaved}) {
      for (int64_t rotary = n - n % 2; rotary >= 2; rotary -= 2) {
        if (find_rotations_at(*this, pieces, charges, {n, pairing, rotary})) break;
      }
    }
  }
}

}  // namespace ddc
