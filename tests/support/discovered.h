#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ddc/discover/discover.h"
#include "ddc/gauge/action.h"
#include "ddc/testbeds/testbed.h"

// What discovery should find, beside what it finds.

namespace ddc::tests {

using testbeds::evaluation_of;

/// A gauge without what is a convention: how channels, blocks and the coordinates within a block are
/// numbered, the order of the legs, and which side has positive exponents. What is left of it are sets:
/// a gauge is made of blocks, a block of coordinates, a coordinate of indices of legs.
struct Canonical {
  using Coordinate = std::set<std::string>;
  using Block = std::set<Coordinate>;

  /// All but the blocks, in words.
  std::string what;
  std::multiset<Block> blocks;

  auto operator<=>(const Canonical&) const = default;
};

/// Tensors every entry of which may be moved at will: a bias of keys, which softmax does not see.
inline std::set<std::string> null_tensors(const std::vector<Gauge>& gauges,
                                          const Parameters& params) {
  std::set<std::string> result;
  for (const auto& gauge : gauges) {
    if (gauge.action != Action::shift || gauge.legs.size() > 1) continue;
    const auto& name = gauge.legs.front().tensor;
    if (dimension(gauge, params) == params[name].tensor.numel()) result.insert(name);
  }
  return result;
}

inline std::string describe(const Leg& leg, double exponent, const Parameters& params) {
  std::ostringstream out;
  out << leg.tensor << " axis " << leg.axis << " exponent " << exponent;
  if (leg.offset != 0) out << " offset " << leg.offset;
  if (!leg.through.empty()) {
    out << " through '" << leg.through.gain << "' + " << leg.through.gain_offset << ", '"
        << leg.through.shift << "', '" << leg.through.bias << "'";
  }
  // Where bases cut matrices; vectors are not cut.
  if (params[leg.tensor].tensor.dim() > 1) out << " heads of " << leg.head_size;
  return out.str();
}

inline Canonical canonical(const Gauge& gauge, const Parameters& params) {
  const auto first =
      std::min_element(gauge.legs.begin(), gauge.legs.end(), [](const Leg& a, const Leg& b) {
        return std::tie(a.tensor, a.axis, a.channel_of) < std::tie(b.tensor, b.axis, b.channel_of);
      });
  const double sign = first->exponent < 0 ? -1 : 1;
  std::set<std::string> legs;
  std::map<int64_t, std::map<int64_t, Canonical::Coordinate>> blocks;
  for (const auto& leg : gauge.legs) {
    const auto description = describe(leg, sign * leg.exponent, params);
    legs.insert(description);
    for (int64_t i = 0; i < params[leg.tensor].tensor.size(leg.axis); ++i) {
      const auto channel = leg.channel_of.empty() ? i : leg.channel_of[static_cast<size_t>(i)];
      if (channel < 0) continue;
      blocks[channel / gauge.block][channel % gauge.block].insert(description + " [" +
                                                                  std::to_string(i) + "]");
    }
  }
  std::ostringstream what;
  what << to_string(gauge.action) << " " << group_name(gauge, params) << ", dimension "
       << dimension(gauge, params) << ", " << gauge.channels << " channels in blocks of "
       << gauge.block << (gauge.fixes_ones ? ", fixes ones" : "");
  for (const auto& leg : legs) what << "\n      " << leg;
  Canonical result{what.str(), {}};
  for (const auto& [block, coordinates] : blocks) {
    Canonical::Block members;
    for (const auto& [coordinate, indices] : coordinates) members.insert(indices);
    result.blocks.insert(members);
  }
  return result;
}

/// Which of the gauges the other list has not, in words; empty if both are the same group of gauges.
/// `label` is what of a gauge's name and kind counts.
inline std::string differences(
    const std::vector<Gauge>& expected, const std::vector<Gauge>& found, const Parameters& params,
    const std::function<std::string(const Gauge&)>& label = [](const Gauge& gauge) {
      return gauge.name + " (" + gauge.kind + ")";
    }) {
  using Labelled = std::pair<std::string, Canonical>;
  std::multiset<Labelled> left;
  std::string result;
  for (const auto& gauge : found) left.insert({label(gauge), canonical(gauge, params)});
  for (const auto& gauge : expected) {
    const Labelled wanted{label(gauge), canonical(gauge, params)};
    const auto match = left.find(wanted);
    if (match == left.end()) {
      result += "  missing: " + gauge.name + ", " + wanted.second.what + "\n";
    } else {
      left.erase(match);
    }
  }
  for (const auto& [name, gauge] : left) result += "  extra: " + name + ", " + gauge.what + "\n";
  return result;
}

/// Dimensions of the span of orbits: of both lists, and of all together. The same three numbers mean the
/// same span.
struct SpanRanks {
  int64_t expected = 0;
  int64_t found = 0;
  int64_t together = 0;
};

inline at::Tensor unit_tangents(const std::vector<Gauge>& gauges, const Parameters& params) {
  int64_t columns = 0;
  for (const auto& entry : params) columns += entry.tensor.numel();
  std::vector<at::Tensor> rows = {at::zeros({0, columns}, at::kDouble)};
  for (const auto& gauge : gauges) rows.push_back(orbit_tangents(gauge, params));
  const auto stacked = at::cat(rows);
  return stacked / stacked.norm(2, {1}, /*keepdim=*/true).clamp_min(1e-12);
}

inline int64_t rank_of(const at::Tensor& rows) {
  if (rows.numel() == 0) return 0;
  const auto sigma = at::linalg_svdvals(rows);
  return (sigma > 1e-8 * sigma[0]).sum().item<int64_t>();
}

inline SpanRanks span_ranks(const std::vector<Gauge>& expected, const std::vector<Gauge>& found,
                            const Parameters& params) {
  const auto a = unit_tangents(expected, params);
  const auto b = unit_tangents(found, params);
  return {rank_of(a), rank_of(b), rank_of(at::cat({a, b}))};
}

inline void expect_same_span(const std::vector<Gauge>& expected, const std::vector<Gauge>& found,
                             const Parameters& params) {
  const auto ranks = span_ranks(expected, found, params);
  EXPECT_EQ(ranks.found, ranks.expected);
  EXPECT_EQ(ranks.together, ranks.expected);
}

}  // namespace ddc::tests
