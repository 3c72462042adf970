// What must not matter to discovery does not: shapes, seeds, the order and the names of parameters, that
// they stand where initialisation puts them, units that are dead and tokens that no batch holds.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <map>
#include <ostream>
#include <random>

#include "coordinates/coordinate_system.h"
#include "ddc/testbeds/runs.h"
#include "ddc/testbeds/zoo.h"
#include "support/discovered.h"

namespace ddc::tests {
namespace {

using testbeds::Testbed;
using testbeds::zoo;
using testbeds::zoo_entry;
using testbeds::ZooEntry;
using testbeds::ZooShape;

enum class Variation {
  none,
  shuffled_and_renamed,
  standard_initialisation,
  dead_units,
  unused_tokens
};

const char* to_string(Variation variation) {
  switch (variation) {
    case Variation::none:
      return "as it is";
    case Variation::shuffled_and_renamed:
      return "shuffled and renamed";
    case Variation::standard_initialisation:
      return "at initialisation";
    case Variation::dead_units:
      return "with dead units";
    case Variation::unused_tokens:
      return "with unused tokens";
  }
  return "";
}

struct Case {
  std::string entry;
  Variation variation = Variation::none;
  ZooShape shape;
  uint64_t seed = 0;
  at::ScalarType type = at::kDouble;
};

void PrintTo(const Case& c, std::ostream* out) {
  const auto& s = c.shape;
  *out << c.entry << " " << to_string(c.variation) << ", seed " << c.seed << ", " << c.type
       << ", d_model " << s.d_model << ", heads " << s.heads << ", d_ff " << s.d_ff << ", layers "
       << s.layers << ", sequence " << s.sequence << ", vocabulary " << s.vocabulary
       << ", batch_size " << s.batch_size;
}

using Random = std::mt19937_64;

/// Both ends are among them.
int64_t between(Random& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

ZooShape random_shape(Random& random) {
  ZooShape shape;
  shape.heads = between(random, 1, 3);
  shape.d_model = shape.heads * 2 * between(random, shape.heads == 1 ? 2 : 1, 3);
  shape.d_ff = between(random, 3, 9);
  shape.layers = between(random, 1, 3);
  shape.sequence = between(random, 3, 6);
  shape.vocabulary = shape.d_model + between(random, 4, 9);
  shape.batch_size = between(random, 4, 9);
  return shape;
}

std::vector<std::string> biases_before_units(const Parameters& params) {
  std::vector<std::string> result;
  for (const auto& [name, tensor] : params) {
    const bool before = name.ends_with(".up.bias") || name.starts_with("conv") ||
                        name == "in.bias" || name == "layers.1.bias";
    if (before && tensor.dim() == 1) result.push_back(name);
  }
  return result;
}

bool reads_tokens(const Testbed& bed) {
  return !bed.batch(0, at::kDouble).inputs.is_floating_point();
}

bool fits(const ZooEntry& entry, Variation variation) {
  if (variation == Variation::dead_units) {
    return !biases_before_units(entry.testbed.init(1, at::kDouble)).empty();
  }
  return variation != Variation::unused_tokens || reads_tokens(entry.testbed);
}

std::vector<Case> cases() {
  std::vector<Case> result;
  Random random(1);
  const auto add = [&](const ZooEntry& entry, Variation variation) {
    const auto type = random() % 3 == 0 ? at::kFloat : at::kDouble;
    result.push_back({entry.name, variation, random_shape(random), random() % 1000, type});
  };
  const auto entries = zoo();
  for (size_t k = 0; k < entries.size(); ++k) {
    add(entries[k], Variation::none);
    // Each of the others on every fourth or so.
    constexpr std::array changes{Variation::shuffled_and_renamed,
                                 Variation::standard_initialisation, Variation::dead_units,
                                 Variation::unused_tokens};
    for (size_t i = 0; i < changes.size(); ++i) {
      const auto change = changes[(k + i) % changes.size()];
      if (!fits(entries[k], change)) continue;
      add(entries[k], change);
      break;
    }
  }
  return result;
}

/// Gains are one, biases and the second matrix of a product zero.
void initialise_(const ZooEntry& entry, const Parameters& params) {
  for (const auto& [name, tensor] : params) {
    at::Tensor values = tensor.detach();
    if (name.ends_with("bias") || name == "second.weight") {
      values.zero_();
    } else if (tensor.dim() == 1) {
      values.fill_(entry.name == "gemma" ? 0 : 1);
    }
  }
}

void kill_units_(const Parameters& params) {
  for (const auto& name : biases_before_units(params)) {
    params[name].tensor.detach().narrow(0, 0, 2).fill_(-100);
  }
}

Testbed without_two_tokens(Testbed bed, const ZooShape& shape) {
  bed.batch = [batch = bed.batch, shape](uint64_t seed, at::ScalarType type) {
    auto drawn = batch(seed, type);
    drawn.inputs = drawn.inputs.remainder(shape.vocabulary - 2);
    return drawn;
  };
  return bed;
}

/// The table in another order, with names that say nothing.
struct Renamed {
  Parameters params;
  std::map<std::string, std::string> original;
};

Renamed shuffled_and_renamed(const Parameters& params, uint64_t seed) {
  std::vector<NamedTensor> entries(params.begin(), params.end());
  Random random(seed);
  for (size_t k = entries.size(); k > 1; --k) std::swap(entries[k - 1], entries[random() % k]);
  Renamed result;
  for (const auto& [name, tensor] : entries) {
    const auto alias = "p" + std::to_string(result.params.size());
    result.original[alias] = name;
    result.params.add(alias, tensor);
  }
  return result;
}

void rename_(Gauge& gauge, const std::map<std::string, std::string>& names) {
  const auto rename = [&](std::string& name) {
    if (!name.empty()) name = names.at(name);
  };
  for (auto& leg : gauge.legs) {
    rename(leg.tensor);
    rename(leg.through.gain);
    rename(leg.through.shift);
    rename(leg.through.bias);
  }
}

/// What the gradients of one head do not tell: that there is attention between value and output, and
/// whether the rotation of a plane is that of a head. Nor can they tell which of several biases that the
/// loss is blind to stands beside which weight; in the order of the table it is a guess.
std::vector<Gauge> as_gradients_see(std::vector<Gauge> gauges, const std::set<std::string>& null) {
  for (auto& gauge : gauges) {
    if (gauge.action == Action::linear && gauge.blocks() == 1) {
      gauge.kind = "linear";
      for (auto& leg : gauge.legs) leg.head_size = 0;
    }
    if (gauge.action == Action::rotation && gauge.block == 2) gauge.kind = "plane";
    if (gauge.legs.size() > 1) {
      std::erase_if(gauge.legs, [&](const Leg& leg) { return null.contains(leg.tensor); });
    }
    for (auto& leg : gauge.legs) {
      if (null.contains(leg.through.bias)) leg.through.bias = "null";
    }
  }
  return gauges;
}

/// Gauges without the linear ones that no optimizer can bind beside the others, which discovery leaves out. A
/// single head is as large as the stream, of which LayerNorm removes a dimension; and a pair may be wider than
/// what is in front of it and behind it: these groups act on matrices without full rank.
std::vector<Gauge> bindable(const std::vector<Gauge>& gauges, const Parameters& params) {
  std::vector<GroupedParameter> table;
  for (const auto& parameter : params) table.push_back({parameter, 0});
  const auto is_linear = [](const Gauge& gauge) { return gauge.action == Action::linear; };
  std::vector<Gauge> kept;
  std::ranges::copy_if(gauges, std::back_inserter(kept), std::not_fn(is_linear));
  for (const auto& gauge : gauges) {
    if (!is_linear(gauge)) continue;
    kept.push_back(gauge);
    try {
      CoordinateSystem(table, kept);
    } catch (const c10::ValueError&) {
      kept.pop_back();
    }
  }
  return kept;
}

class DiscoverProperty : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Random, DiscoverProperty, ::testing::ValuesIn(cases()),
                         [](const auto& instance) {
                           return std::to_string(instance.index) + "_" + instance.param.entry;
                         });

TEST_P(DiscoverProperty, TheGroupIsFound) {
  const auto& c = GetParam();
  const auto entry = zoo_entry(c.entry, c.shape);
  auto bed = entry.testbed;
  const auto params = bed.init(c.seed, c.type);
  if (c.variation == Variation::standard_initialisation) initialise_(entry, params);
  if (c.variation == Variation::dead_units) kill_units_(params);
  if (c.variation == Variation::unused_tokens) bed = without_two_tokens(bed, c.shape);
  const auto all = bed.gauges(params);
  const bool is_wide = c.shape.heads == 1 || c.entry == "linear_pair";
  const auto expected = is_wide ? bindable(all, params) : all;
  std::vector<Gauge> found;
  if (c.variation == Variation::shuffled_and_renamed) {
    const auto renamed = shuffled_and_renamed(params, c.seed);
    found = discover(renamed.params, evaluation_of(bed, params)).gauges();
    for (auto& gauge : found) rename_(gauge, renamed.original);
    // Biases that the loss is blind to may be taken for each other, but by all gauges alike.
    const auto make = testbeds::ddc_adam(AdamOptions{.lr = 1e-3});
    if (c.type == at::kDouble) {
      EXPECT_LE(testbeds::paired_error(bed, found, make, {.seed = c.seed, .steps = 5}), 1e-9);
    }
  } else {
    found = discover(params, evaluation_of(bed, params)).gauges();
  }
  const auto null = null_tensors(expected, params);
  EXPECT_EQ(differences(as_gradients_see(expected, null), as_gradients_see(found, null), params,
                        [](const Gauge& gauge) { return gauge.kind; }),
            "");
}

}  // namespace
}  // namespace ddc::tests
