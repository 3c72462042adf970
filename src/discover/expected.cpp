#include <ATen/ATen.h>

#include <algorithm>
#include <cctype>
#include <numeric>
#include <set>

#include "search.h"

namespace ddc {
namespace {

/// Tensors further apart than this in the table are not taken for neighbours.
constexpr size_t neighbourhood = 8;

/// Queries and keys whose heads have a group, but not all of GL.
void add_heads(const Search& search, std::vector<Gauge>& result) {
  for (const auto& match : search.scales) {
    if (match.view.rotary == 0) continue;
    const bool mixes = std::all_of(
        match.matches.front().begin(), match.matches.front().end(),
        [](const Piece& piece) { return std::abs(piece.exponent) == 1 && piece.offset == 0; });
    const bool matrices =
        std::any_of(match.matches.front().begin(), match.matches.front().end(),
                    [&](const Piece& piece) { return !search.is_vector(piece.slot); });
    if (!mixes || !matrices) continue;
    auto gauge = with_channels(search, match, Action::linear, match.view.size, match.view.size,
                               [](int64_t i) { return i; });
    gauge.kind = "QK linear";
    gauge.name = gauge.legs.front().tensor + ":qk_linear:whole_heads";
    result.push_back(std::move(gauge));
  }
  // Two readers of one norm that nothing explains along their rows, cut into heads as the values are.
  for (const auto& gain : search.gains) {
    std::vector<size_t> rows;
    for (const auto& reader : gain.readers) {
      if (search.probe.params()[reader.weight].tensor.dim() != 2) continue;
      const size_t k = search.slot_of(reader.weight, 1 - reader.axis);
      const int64_t size = search.slot(k).size;
      const bool heads = !search.head_sizes.empty() && size % search.head_sizes.front() == 0;
      if (heads && search.is_free(k, 0, size)) rows.push_back(k);
    }
    if (rows.size() != 2 || search.slot(rows[0]).size % search.slot(rows[1]).size != 0) continue;
    Gauge gauge;
    gauge.kind = "QK linear";
    gauge.name = search.tensor_of(rows[0]).name + ":qk_linear";
    gauge.action = Action::linear;
    gauge.block = search.head_sizes.front();
    gauge.channels = search.slot(rows[1]).size;
    const int64_t shared = search.slot(rows[0]).size / gauge.channels;
    Leg query{.tensor = search.tensor_of(rows[0]).name, .axis = search.slot(rows[0]).axis};
    for (int64_t i = 0; i < search.slot(rows[0]).size; ++i) {
      query.channel_of.push_back(i / gauge.block / shared * gauge.block + i % gauge.block);
    }
    gauge.legs = {query,
                  {.tensor = search.tensor_of(rows[1]).name,
                   .axis = search.slot(rows[1]).axis,
                   .exponent = -1}};
    result.push_back(std::move(gauge));
  }
  for (const auto& gauge : search.gauges) {
    // Heads behind a norm of their own can be rotated and not rescaled.
    if (gauge.action != Action::rotation || gauge.kind == "residual rotation") continue;
    const bool scales =
        std::any_of(search.gauges.begin(), search.gauges.end(), [&](const Gauge& other) {
          return (other.action == Action::scale || other.action == Action::linear) &&
                 std::any_of(other.legs.begin(), other.legs.end(), [&](const Leg& leg) {
                   return leg.tensor == gauge.legs.front().tensor &&
                          leg.axis == gauge.legs.front().axis;
                 });
        });
    if (scales || gauge.legs.size() != 2) continue;
    auto scale = gauge;
    scale.kind = "QK scale";
    scale.name = gauge.legs.front().tensor + ":qk_scale";
    scale.action = Action::scale;
    scale.channels = gauge.blocks();
    scale.block = 1;
    for (auto& leg : scale.legs) {
      if (leg.channel_of.empty()) {
        leg.channel_of.resize(gauge.channels);
        std::iota(leg.channel_of.begin(), leg.channel_of.end(), 0);
      }
      for (auto& c : leg.channel_of) c = c < 0 ? -1 : c / gauge.block;
    }
    scale.legs.back().exponent = -1;
    result.push_back(std::move(scale));
  }
}

/// A layer whose units take part in nothing, and the next one that reads as many.
void add_rescales(const Search& search, std::vector<Gauge>& result) {
  std::set<int64_t> stream;
  for (const auto& gain : search.gains) {
    stream.insert(search.probe.params()[gain.gain].tensor.size(0));
  }
  for (size_t k = 0; k < search.probe.slots().size(); ++k) {
    const auto& in = search.slot(k);
    if (in.stacked || search.is_vector(k) || in.size < 2 || !search.is_free(k, 0, in.size))
      continue;
    if (stream.count(in.size) > 0 || search.tensor_of(k).tensor.dim() < 2) continue;
    for (size_t j = k + 1; j < search.probe.slots().size(); ++j) {
      const auto& out = search.slot(j);
      if (out.tensor == in.tensor || out.size != in.size || out.axis != 1 - in.axis) continue;
      if (out.stacked || search.is_vector(j) || out.tensor > in.tensor + neighbourhood) continue;
      Gauge gauge;
      gauge.kind = "relu rescale";
      gauge.name = search.tensor_of(k).name + ":rescale";
      gauge.channels = in.size;
      gauge.legs = {{.tensor = search.tensor_of(k).name, .axis = in.axis}};
      for (size_t t = in.tensor + 1; t < out.tensor; ++t) {
        const auto& bias = search.probe.parameter(t);
        if (bias.tensor.dim() != 1 || bias.tensor.size(0) != in.size) continue;
        gauge.legs.push_back({.tensor = bias.name});
        break;
      }
      gauge.legs.push_back({.tensor = search.tensor_of(j).name, .axis = out.axis, .exponent = -1});
      result.push_back(std::move(gauge));
      break;
    }
  }
}

void add_logit_shifts(const Search& search, int64_t classes, std::vector<Gauge>& result) {
  if (classes < 2) return;
  for (size_t k = search.probe.slots().size(); k-- > 0;) {
    const auto& slot = search.slot(k);
    if (slot.size != classes || search.tensor_of(k).tensor.dim() > 2) continue;
    const auto& name = search.tensor_of(k).name;
    const bool found =
        std::any_of(search.gauges.begin(), search.gauges.end(), [&](const Gauge& gauge) {
          return gauge.action == Action::shift && gauge.legs.size() == 1 &&
                 gauge.legs.front().tensor == name && gauge.legs.front().axis == slot.axis;
        });
    if (found || !search.is_free(k, 0, slot.size)) continue;
    Gauge gauge;
    gauge.kind = search.is_vector(k) ? "CE bias shift" : "CE row shift";
    gauge.name = name + ":shift";
    gauge.action = Action::shift;
    gauge.channels = 1;
    gauge.legs = {
        {.tensor = name, .axis = slot.axis, .channel_of = channel_maps::whole(slot.size)}};
    result.push_back(std::move(gauge));
  }
}

/// Routers, which have a row for every expert of a stack: a softmax does not see what all their logits have in common.
void add_router_shifts(const Search& search, std::vector<Gauge>& result) {
  std::set<int64_t> experts;
  for (const auto& slot : search.probe.slots()) {
    if (slot.stacked) experts.insert(search.probe.parameter(slot.tensor).tensor.size(0));
  }
  for (size_t k = 0; k < search.probe.slots().size(); ++k) {
    const auto& slot = search.slot(k);
    const auto& [name, tensor] = search.tensor_of(k);
    if (slot.stacked || slot.axis != 0 || tensor.dim() != 2) continue;
    if (experts.count(slot.size) == 0) continue;
    const bool found = std::ranges::any_of(search.gauges, [&](const Gauge& gauge) {
      return gauge.action == Action::shift &&
             std::ranges::any_of(gauge.legs, [&](const Leg& leg) { return leg.tensor == name; });
    });
    if (found || !search.is_free(k, 0, slot.size)) continue;
    Gauge gauge{.name = name + ":router_shift", .kind = "router shift", .action = Action::shift};
    gauge.channels = 1;
    gauge.legs = {{.tensor = name, .channel_of = channel_maps::whole(slot.size)}};
    result.push_back(std::move(gauge));
  }
}

/// A gain whose readers are known or, of the last norm, those of the logits.
void add_norm_scales(const Search& search, int64_t classes, std::vector<Gauge>& result) {
  const auto add = [&](const Gain& gain) {
    Gauge gauge;
    gauge.kind = "norm scale";
    gauge.name = gain.gain + ":scale";
    gauge.channels = search.probe.params()[gain.gain].tensor.size(0);
    gauge.legs = {{.tensor = gain.gain, .offset = gain.offset}};
    if (!gain.shift.empty()) gauge.legs.push_back({.tensor = gain.shift});
    for (const auto& reader : gain.readers) {
      gauge.legs.push_back({.tensor = reader.weight, .axis = reader.axis, .exponent = -1});
    }
    result.push_back(std::move(gauge));
  };
  std::set<std::string> known;
  for (const auto& gain : search.gains) {
    known.insert(gain.gain);
    if (gain.seen_by_others) add(gain);
  }
  for (size_t v = search.probe.slots().size(); v-- > 0;) {
    const auto& vector = search.tensor_of(v);
    const int64_t size = search.slot(v).size;
    if (!search.is_vector(v) || known.count(vector.name) > 0) continue;
    if (!search.is_free(v, 0, size) || search.is_null(search.slot(v).tensor)) continue;
    if (search.distance_from_one(v) > 0.5) continue;
    for (size_t k = 0; k < search.probe.slots().size(); ++k) {
      const auto& reader = search.tensor_of(k);
      if (reader.tensor.dim() != 2 || search.slot(k).size != size) continue;
      const int64_t axis = search.slot(k).axis;
      if (reader.tensor.size(1 - axis) != classes || !search.is_free(k, 0, size)) continue;
      add({.gain = vector.name, .readers = {{reader.name, axis, {}}}});
      return;
    }
  }
}

void add_stream_rotation(const Search& search, std::vector<Gauge>& result) {
  const bool found =
      std::any_of(search.gauges.begin(), search.gauges.end(),
                  [](const Gauge& gauge) { return gauge.kind == "residual rotation"; });
  if (found || search.gains.empty()) return;
  const int64_t size = search.probe.params()[search.gains.front().gain].tensor.size(0);
  const auto legs = legs_of_stream(search, size);
  if (size < 3 || legs.size() < 2) return;
  std::vector<size_t> all;
  std::set<std::pair<std::string, int64_t>> seen;
  for (size_t k = 0; k < legs.size(); ++k) {
    const auto& leg = legs[k].legs.front();
    if (seen.insert({leg.tensor, leg.axis}).second) all.push_back(k);
  }
  auto gauge = stream_rotation(legs, all);
  gauge.fixes_ones = true;
  result.push_back(std::move(gauge));
}

/// The name with its numbers left out: the same for the layers of a stack.
std::string pattern_of(const Gauge& gauge) {
  std::string pattern = gauge.kind;
  for (const char c : gauge.name) {
    if (std::isdigit(static_cast<unsigned char>(c)) == 0) pattern.push_back(c);
  }
  return pattern;
}

}  // namespace

std::vector<Gauge> Search::expected(int64_t classes) const {
  std::vector<Gauge> all;
  add_heads(*this, all);
  add_rescales(*this, all);
  add_logit_shifts(*this, classes, all);
  add_router_shifts(*this, all);
  add_norm_scales(*this, classes, all);
  add_stream_rotation(*this, all);
  std::vector<Gauge> result;
  std::set<std::string> seen;
  for (auto& gauge : all) {
    if (seen.insert(pattern_of(gauge)).second) result.push_back(std::move(gauge));
  }
  return result;
}

}  // namespace ddc
