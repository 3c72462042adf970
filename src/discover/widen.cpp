#include "widen.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

#include "gauge/leg_maps.h"
#include "stacks.h"

// A channel map in terms that do not depend on the sizes. An axis consists of cells (heads) of equal size; a
// cell takes part in a match or not, and within it indices go to the channels of the match by a pattern.
// What the sizes of cells and matches become is not known: all that fits is for the gate to try.

namespace ddc {
namespace {

/// How the indices of a cell go to the channels of its match.
enum class Within { first, rest, constant, half_scale, half_torus, pair_scale };
constexpr std::array kPatterns{Within::first,      Within::rest,       Within::constant,
                               Within::half_scale, Within::half_torus, Within::pair_scale};

struct Pattern {
  Within within = Within::first;
  /// How many coordinates are turned, or, of `rest`, are not acted on.
  int64_t turned = 0;
};

int64_t channel_of(const Pattern& pattern, int64_t i) {
  const int64_t half = std::max<int64_t>(1, pattern.turned / 2);
  if (pattern.within == Within::constant) return 0;
  if (pattern.within == Within::rest) return i < pattern.turned ? -1 : i - pattern.turned;
  if (i >= pattern.turned) return -1;
  switch (pattern.within) {
    case Within::half_scale:
      return i % half;
    case Within::half_torus:
      return 2 * (i % half) + i / half;
    case Within::pair_scale:
      return i / 2;
    default:
      return i;
  }
}

std::vector<int64_t> pattern_of(const Pattern& pattern, int64_t size) {
  std::vector<int64_t> result;
  for (int64_t i = 0; i < size; ++i) result.push_back(channel_of(pattern, i));
  return result;
}

std::optional<Pattern> recognised(const std::vector<int64_t>& cell) {
  const auto size = static_cast<int64_t>(cell.size());
  for (const auto within : kPatterns) {
    for (int64_t turned = size; turned > 0; --turned) {
      const Pattern pattern{within, turned};
      if (pattern_of(pattern, size) == cell) return pattern;
    }
  }
  return {};
}

/// Which cells take part in which match: -1 for none.
using Cells = std::vector<int64_t>;

/// A leg of the narrow gauge, taken apart.
struct NarrowLeg {
  /// The indices of the axis, here and in the wide model: all of them, of a stack.
  int64_t size = 0;
  int64_t wide = 0;
  /// All indices go to this channel.
  std::optional<int64_t> constant;
  Cells cells;
};

std::vector<int64_t> full_map(const Leg& leg, int64_t size) {
  auto map = leg.channel_of;
  if (map.empty()) {
    map.resize(size);
    std::iota(map.begin(), map.end(), 0);
  }
  return map;
}

/// The size of the cells: of heads where it is known, or what all stretches are multiples of.
int64_t cell_size(const Gauge& gauge, const std::vector<NarrowLeg>& legs) {
  for (const auto& leg : gauge.legs) {
    if (leg.head_size > 0) return leg.head_size;
  }
  if (gauge.block > 2) return gauge.block;
  int64_t size = 0;
  for (size_t k = 0; k < legs.size(); ++k) {
    if (legs[k].constant) continue;
    const auto map = full_map(gauge.legs[k], legs[k].size);
    size = std::gcd(size, legs[k].size);
    for (int64_t i = 1; i < legs[k].size; ++i) {
      const bool goes_on =
          map[i] < 0 ? map[i - 1] < 0 : map[i - 1] >= 0 && map[i] == map[i - 1] + 1;
      if (!goes_on) size = std::gcd(size, i);
    }
  }
  return size;
}

/// The cells of a wide axis, if those of the narrow one are laid out in a way that scales.
std::vector<Cells> widened(const Cells& narrow, int64_t matches, int64_t count,
                           int64_t wide_matches) {
  const auto few = static_cast<int64_t>(narrow.size());
  std::vector<Cells> result;
  const auto add = [&](Cells cells) {
    if (std::find(result.begin(), result.end(), cells) == result.end()) {
      result.push_back(std::move(cells));
    }
  };
  // One match after the other, each with the same cells of as many: heads, alone or in groups, or with their
  // queries, keys and values side by side.
  if (few % matches == 0 && count % wide_matches == 0) {
    const int64_t period = few / matches;
    const int64_t wide = count / wide_matches;
    bool regular = wide % period == 0;
    for (int64_t p = 0; p < few; ++p) {
      const bool active = narrow[p % period] >= 0;
      regular = regular && narrow[p] == (active ? p / period : -1);
    }
    if (regular) {
      Cells cells;
      for (int64_t p = 0; p < count; ++p) {
        cells.push_back(narrow[p % wide * period / wide] >= 0 ? p / wide : -1);
      }
      add(std::move(cells));
    }
  }
  // One stretch of the axis, as in a fused projection: it scales with the axis, or it is counted in matches
  // from the end (keys and values behind more queries).
  const auto first = std::find_if(narrow.begin(), narrow.end(), [](int64_t q) { return q >= 0; });
  const int64_t begin = first - narrow.begin();
  int64_t end = few;
  while (end > begin && narrow[end - 1] < 0) --end;
  if (end == begin || (end - begin) % matches != 0) return result;
  for (int64_t p = begin; p < end; ++p) {
    if (narrow[p] != (p - begin) / ((end - begin) / matches)) return result;
  }
  const auto stretch = [&](int64_t from, int64_t to) {
    if (from < 0 || to > count || from >= to || (to - from) % wide_matches != 0) return;
    Cells cells(count, -1);
    for (int64_t p = from; p < to; ++p) cells[p] = (p - from) / ((to - from) / wide_matches);
    add(std::move(cells));
  };
  if (begin * count % few == 0 && end * count % few == 0) {
    stretch(begin * count / few, end * count / few);
  }
  const auto from_end = [&](int64_t p) {
    return p == 0 ? 0 : count - (few - p) / matches * wide_matches;
  };
  if ((begin == 0 || (few - begin) % matches == 0) && (few - end) % matches == 0) {
    stretch(from_end(begin), from_end(end));
  }
  return result;
}

/// What the pattern becomes in cells of another size: what is turned grows with it, or stays.
std::vector<Pattern> widened(const Pattern& narrow, int64_t size, int64_t wide) {
  std::vector<Pattern> result;
  for (const int64_t turned : {narrow.turned * wide / size, narrow.turned}) {
    const bool fits =
        turned > 0 && turned <= wide && (result.empty() || result[0].turned != turned);
    if (fits) result.push_back({narrow.within, turned});
  }
  return result;
}

/// All that a gauge may be at other sizes of its axes.
std::vector<Gauge> choices_of(const Gauge& gauge,
                              const std::map<std::string, std::vector<int64_t>>& narrow,
                              const Parameters& wide) {
  std::vector<NarrowLeg> legs;
  for (const auto& leg : gauge.legs) {
    const auto& tensor = wide[leg.tensor].tensor;
    const auto& shape = narrow.at(leg.tensor);
    if (static_cast<int64_t>(shape.size()) != tensor.dim()) return {};
    auto& part = legs.emplace_back();
    part.size = (leg.axis < 0 ? 1 : shape[leg.axis]) * (leg.stacked ? shape[0] : 1);
    part.wide = size_along(leg, tensor) * copies_of(leg, tensor);
    const auto map = full_map(leg, part.size);
    const bool same = std::all_of(map.begin(), map.end(), [&](int64_t c) { return c == map[0]; });
    if (same && (part.size > 1 || gauge.channels == 1)) part.constant = map[0];
  }
  std::vector<Gauge> result;
  const auto add = [&](Gauge choice) {
    try {
      validate(choice, wide);
    } catch (const c10::Error&) {
      return;
    }
    if (std::find(result.begin(), result.end(), choice) == result.end()) {
      result.push_back(std::move(choice));
    }
  };
  const auto is_constant = [](const NarrowLeg& leg) { return leg.constant.has_value(); };
  if (std::all_of(legs.begin(), legs.end(), is_constant)) {
    auto choice = gauge;
    for (size_t k = 0; k < legs.size(); ++k) {
      if (!gauge.legs[k].channel_of.empty()) {
        choice.legs[k].channel_of.assign(legs[k].wide, *legs[k].constant);
      }
    }
    add(std::move(choice));
    return result;
  }
  if (std::any_of(legs.begin(), legs.end(), is_constant)) return {};

  const int64_t size = cell_size(gauge, legs);
  std::set<int64_t> bases;
  std::optional<std::vector<int64_t>> cell;
  for (size_t k = 0; k < legs.size(); ++k) {
    if (legs[k].size % size != 0) return {};
    const auto map = full_map(gauge.legs[k], legs[k].size);
    for (int64_t first = 0; first < legs[k].size; first += size) {
      std::vector<int64_t> part(map.begin() + first, map.begin() + first + size);
      int64_t base = -1;
      for (const int64_t c : part) base = c >= 0 && (base < 0 || c < base) ? c : base;
      legs[k].cells.push_back(base);
      if (base < 0) continue;
      bases.insert(base);
      for (auto& c : part) c = c < 0 ? -1 : c - base;
      if (cell && *cell != part) return {};
      cell = std::move(part);
    }
  }
  const auto pattern = recognised(*cell);
  const auto matches = std::ssize(bases);
  if (!pattern || gauge.channels % matches != 0) return {};
  const int64_t channels = gauge.channels / matches;
  for (auto& leg : legs) {
    for (auto& base : leg.cells) {
      if (base % channels != 0 && base >= 0) return {};
      base = base < 0 ? -1 : base / channels;
    }
  }

  int64_t common = 0;
  for (const auto& leg : legs) common = std::gcd(common, leg.wide);
  std::vector<int64_t> sizes;
  if (size == 1) sizes.push_back(1);
  for (int64_t n = common; n > 0; --n) {
    if (common % n == 0) sizes.push_back(n);
  }
  for (const int64_t n : sizes) {
    std::set<int64_t> numbers;
    for (const auto& leg : legs) {
      const auto cells = std::ssize(leg.cells);
      if (leg.wide / n * matches % cells == 0) numbers.insert(leg.wide / n * matches / cells);
    }
    for (const int64_t number : numbers) {
      if (number == 0) continue;
      for (const auto& within : widened(*pattern, size, n)) {
        const auto part = pattern_of(within, n);
        const int64_t per_match = *std::max_element(part.begin(), part.end()) + 1;
        if (per_match <= 0) continue;
        auto choice = gauge;
        choice.channels = per_match * number;
        if (gauge.mixes() && gauge.block == channels) choice.block = per_match;
        std::vector<std::vector<Cells>> layouts;
        for (const auto& leg : legs) {
          layouts.push_back(widened(leg.cells, matches, leg.wide / n, number));
        }
        size_t least = 2;
        size_t most = 0;
        for (const auto& layout : layouts) {
          least = std::min(least, layout.size());
          most = std::max(most, layout.size());
        }
        if (least == 0) continue;
        for (size_t layout = 0; layout < most; ++layout) {
          for (size_t k = 0; k < legs.size(); ++k) {
            const auto& cells = layouts[k][std::min(layout, layouts[k].size() - 1)];
            std::vector<int64_t> map;
            bool identity = legs[k].wide == choice.channels;
            for (const int64_t match : cells) {
              for (const int64_t c : part) {
                map.push_back(match < 0 || c < 0 ? -1 : match * per_match + c);
                identity = identity && map.back() == std::ssize(map) - 1;
              }
            }
            if (identity) map.clear();
            choice.legs[k].channel_of = std::move(map);
            if (gauge.legs[k].head_size > 0) choice.legs[k].head_size = n;
          }
          add(choice);
        }
      }
    }
  }
  // The largest group first: what holds for heads holds for parts of them.
  std::stable_sort(result.begin(), result.end(), [&](const Gauge& a, const Gauge& b) {
    return dimension(a, wide) > dimension(b, wide);
  });
  return result;
}

}  // namespace

std::vector<Choices> widened(const SymmetryGroup& narrow, const Parameters& wide,
                             std::vector<std::string>& notes) {
  const Stacks stacks(wide, narrow.parameters);
  std::map<std::string, std::vector<int64_t>> in_twin;
  for (const auto& entry : narrow.parameters.entries) in_twin[entry.name] = entry.shape;
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& [name, tensor] : wide) {
    const auto found = in_twin.find(stacks.in_twin(name));
    if (found != in_twin.end()) shapes[name] = found->second;
  }
  std::vector<Gauge> known;
  for (const auto& found : narrow.findings) {
    auto gauge = stacks.from_twin(found.gauge);
    const bool there = std::all_of(gauge.legs.begin(), gauge.legs.end(), [&](const Leg& leg) {
      const auto is = [&](const std::string& name) {
        return name.empty() || shapes.count(name) > 0;
      };
      return is(leg.tensor) && is(leg.through.gain) && is(leg.through.shift) &&
             is(leg.through.bias);
    });
    if (there) {
      known.push_back(std::move(gauge));
    } else {
      notes.push_back("'" + found.gauge.name + "' has tensors that the model does not have");
    }
  }
  // Gauges of one kind on tensors of the same shapes, here and in the twin, have the same choices.
  using Shapes =
      std::vector<std::tuple<int64_t, double, std::vector<int64_t>, std::vector<int64_t>>>;
  std::map<std::tuple<std::string, int64_t, int64_t, Shapes>, size_t> index;
  std::vector<Choices> result;
  for (auto& proposal : stacks.by_analogy(known)) {
    if (proposal.guess) continue;
    const auto& gauge = proposal.gauge;
    auto choices = choices_of(gauge, shapes, wide);
    if (choices.empty()) {
      notes.push_back("'" + gauge.name + "' cannot be said at other sizes");
      continue;
    }
    Shapes legs;
    for (const auto& leg : gauge.legs) {
      legs.emplace_back(leg.axis, leg.exponent, shapes.at(leg.tensor),
                        wide[leg.tensor].tensor.sizes().vec());
    }
    const auto [place, added] = index.try_emplace(
        {gauge.kind, gauge.channels, gauge.block, std::move(legs)}, result.size());
    if (added) result.push_back({gauge.name, {}});
    auto& all = result[place->second].gauges;
    if (all.empty() || all.front().size() == choices.size()) all.push_back(std::move(choices));
  }
  return result;
}

}  // namespace ddc
