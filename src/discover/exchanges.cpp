#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

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
        const auto pulled = at::tensordot(search.tensor_of(k).tensor.detach().to(at::kDouble),
                                          gradient(b), {1 - slot.axis}, {0});
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
}

}  // namespace ddc
