#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "search.h"

namespace ddc {
namespace {

double distance_from_one(const NamedTensor& tensor) {
  return std::abs(tensor.tensor.detach().mean().item<double>() - 1);
}

/// A gain with what it multiplies, if that is what the relation is.
std::optional<Gain> as_gain(const Search& search, const ScaleMatch& match) {
  if (match.view.rotary > 0 || match.matches.size() > 1) return {};
  Gain gain;
  std::vector<const Piece*> vectors;
  bool matrices = false;
  for (const auto& piece : match.matches.front()) {
    const auto& tensor = search.tensor_of(piece.slot);
    if (piece.run != 1 || std::abs(piece.exponent) != 1) return {};
    if (search.slot(piece.slot).size != match.view.size) return {};
    if (piece.exponent > 0) {
      if (!search.is_vector(piece.slot)) return {};
      vectors.push_back(&piece);
      continue;
    }
    gain.readers.push_back({tensor.name, search.slot(piece.slot).axis, {}});
    if (search.is_vector(piece.slot)) gain.on_output = true;
    else matrices = true;
  }
  if (!matrices || vectors.empty() || vectors.size() > 2) return {};
  // Of a gain and a shift, the gain is the one that is stored with an offset, or that is near one.
  std::stable_sort(vectors.begin(), vectors.end(), [&](const Piece* a, const Piece* b) {
    if ((a->offset != 0) != (b->offset != 0)) return a->offset != 0;
    return distance_from_one(search.tensor_of(a->slot)) <
           distance_from_one(search.tensor_of(b->slot));
  });
  gain.gain = search.tensor_of(vectors[0]->slot).name;
  gain.offset = vectors[0]->offset;
  if (vectors.size() == 2) gain.shift = search.tensor_of(vectors[1]->slot).name;
  return gain;
}

/// The same number on all that the reader sees of one vector, through the gain.
Gauge kernel_shift(const Search& search, const Gain& gain, const Gain::Reader& reader) {
  Gauge gauge;
  gauge.name = reader.weight + (gain.on_output ? ":mean" : ":kernel");
  gauge.kind = gain.on_output ? "residual mean shift" : "norm kernel shift";
  gauge.action = Action::shift;
  gauge.channels = 1;
  const int64_t size = search.probe.params()[reader.weight].tensor.size(reader.axis);
  gauge.legs = {{.tensor = reader.weight,
                 .axis = reader.axis,
                 .channel_of = channel_maps::whole(size),
                 .through = {.gain = gain.gain, .gain_offset = gain.offset}}};
  if (!reader.bias.empty()) {
    gauge.legs[0].through.shift = gain.shift;
    gauge.legs[0].through.bias = reader.bias;
  }
  return gauge;
}

Gauge shift_exchange(const Gain& gain, int64_t size) {
  Gauge gauge;
  gauge.name = gain.shift + ":exchange";
  gauge.kind = "norm shift exchange";
  gauge.action = Action::exchange;
  gauge.channels = size;
  gauge.legs = {{.tensor = gain.shift}};
  for (const auto& reader : gain.readers) {
    gauge.legs.push_back(
        {.tensor = reader.weight, .axis = reader.axis, .through = {.bias = reader.bias}});
  }
  return gauge;
}

}  // namespace

void Search::find_gain_gauges() {
  for (const auto& match : scales) {
    if (auto gain = as_gain(*this, match)) gains.push_back(*gain);
  }
  // LayerNorm's output has no mean: what is added to all of a row (through the gain) is not seen, but
  // for what the row then reads of the norm's shift, and that tells which bias is the row's.
  std::vector<Gauge> without_bias;
  std::vector<std::pair<size_t, size_t>> of;
  for (size_t g = 0; g < gains.size(); ++g) {
    for (size_t r = 0; r < gains[g].readers.size(); ++r) {
      if (probe.params()[gains[g].readers[r].weight].tensor.dim() != 2) continue;
      without_bias.push_back(kernel_shift(*this, gains[g], gains[g].readers[r]));
      of.emplace_back(g, r);
    }
  }
  std::vector<std::vector<at::Tensor>> charge(without_bias.size());
  // What a row of ones, seen through the gain, reads of the shift.
  std::vector<std::vector<double>> read(without_bias.size());
  std::vector<double> scale(without_bias.size(), 0);
  const int64_t batches = 3;
  probe.each_charge(without_bias, batches, [&](size_t k, const Charge& found) {
    charge[k].push_back(found.value.flatten());
    scale[k] = std::max(scale[k], found.scale.max().item<double>());
    const auto& gain = gains[of[k].first];
    if (gain.shift.empty()) return;
    const auto value = [&](const std::string& name) {
      return probe.params()[name].tensor.detach().to(at::kDouble);
    };
    read[k].push_back((value(gain.shift) / (value(gain.gain) + gain.offset)).sum().item<double>());
  });
  std::vector<bool> kernel(without_bias.size(), false);
  for (size_t k = 0; k < without_bias.size(); ++k) {
    auto& gain = gains[of[k].first];
    auto& reader = gain.readers[of[k].second];
    const auto all = at::cat(charge[k]);
    if (all.abs().max().item<double>() <= probe.zero() * scale[k]) {
      kernel[k] = true;
      continue;
    }
    if (gain.shift.empty() || gain.on_output) continue;
    for (size_t t = 0; t < probe.params().size(); ++t) {
      const auto& vector = probe.parameter(t);
      if (vector.tensor.dim() != 1 || vector.tensor.size(0) != charge[k][0].numel()) continue;
      // A key's bias has no gradient, and neither has the mean of the key's rows.
      if (is_null(t) || !probe.is_small(t)) continue;
      const auto gradient =
          probe.small_gradient(t).narrow(0, 0, batches) * at::tensor(read[k]).unsqueeze(1);
      const auto rest = (all - gradient.flatten()).abs().max().item<double>();
      if (rest <= 10 * probe.zero() * scale[k]) {
        reader.bias = vector.name;
        kernel[k] = true;
        break;
      }
    }
  }
  // A reader without gradient along its mean has a bias without gradient, if it has one: the key's.
  for (size_t k = 0; k < without_bias.size(); ++k) {
    auto& gain = gains[of[k].first];
    auto& reader = gain.readers[of[k].second];
    if (!kernel[k] || !reader.bias.empty() || gain.shift.empty() || gain.on_output) continue;
    const auto& weight = probe.params()[reader.weight].tensor;
    // The null vector that comes next in the table, else the one before.
    const size_t at = slot(slot_of(reader.weight, reader.axis)).tensor;
    size_t best = probe.params().size();
    for (size_t t = 0; t < probe.params().size(); ++t) {
      const auto& vector = probe.parameter(t).tensor;
      if (vector.dim() != 1 || !is_null(t) || vector.size(0) != weight.size(1 - reader.axis)) {
        continue;
      }
      const auto distance = [&](size_t x) { return x > at ? 2 * (x - at) - 1 : 2 * (at - x); };
      if (best == probe.params().size() || distance(t) < distance(best)) best = t;
    }
    if (best < probe.params().size()) reader.bias = probe.parameter(best).name;
  }
  std::vector<Gauge> candidates;
  for (size_t k = 0; k < without_bias.size(); ++k) {
    if (!kernel[k]) continue;
    const auto& gain = gains[of[k].first];
    candidates.push_back(kernel_shift(*this, gain, gain.readers[of[k].second]));
  }
  for (const auto& gain : gains) {
    const bool biases =
        std::all_of(gain.readers.begin(), gain.readers.end(),
                    [](const Gain::Reader& reader) { return !reader.bias.empty(); });
    if (gain.shift.empty() || gain.on_output || !biases) continue;
    candidates.push_back(shift_exchange(gain, probe.params()[gain.shift].tensor.size(0)));
  }
  const auto charges = probe.relative_charges(candidates);
  for (size_t k = 0; k < candidates.size(); ++k) {
    if (charges[k] <= 10 * probe.zero()) gauges.push_back(std::move(candidates[k]));
  }
}

void Search::find_exchanges() {
  // A bias in front of a linear map reaches its output as a constant, if the weights between sum to
  // one: what it gains, a bias behind the map may lose.
  std::vector<Gauge> candidates;
  std::vector<std::string> source;
  for (const auto& gauge : gauges) {
    if (gauge.action != Action::linear) continue;
    const Leg* bias = nullptr;
    const Leg* reader = nullptr;
    int64_t readers = 0;
    for (const auto& leg : gauge.legs) {
      const auto dim = probe.params()[leg.tensor].tensor.dim();
      if (leg.exponent > 0 && dim == 1) bias = &leg;
      if (leg.exponent < 0 && dim == 2) {
        reader = &leg;
        ++readers;
      }
    }
    if (bias == nullptr || readers != 1) continue;
    const int64_t size = probe.params()[reader->tensor].tensor.size(1 - reader->axis);
    for (size_t t = 0; t < probe.params().size(); ++t) {
      const auto& vector = probe.parameter(t);
      if (vector.tensor.dim() != 1 || vector.tensor.size(0) != size || is_null(t)) continue;
      if (vector.name == bias->tensor) continue;
      Gauge candidate;
      candidate.name = bias->tensor + ":exchange";
      candidate.kind = "value bias exchange";
      candidate.action = Action::exchange;
      candidate.channels = gauge.channels;
      candidate.legs = {{.tensor = bias->tensor, .axis = 0, .channel_of = bias->channel_of},
                        {.tensor = reader->tensor,
                         .axis = reader->axis,
                         .channel_of = reader->channel_of,
                         .through = {.bias = vector.name}}};
      candidates.push_back(std::move(candidate));
      source.push_back(gauge.name);
    }
  }
  const auto charges = probe.relative_charges(candidates);
  std::set<std::string> done;
  for (size_t k = 0; k < candidates.size(); ++k) {
    if (charges[k] > probe.zero() || !done.insert(source[k]).second) continue;
    gauges.push_back(std::move(candidates[k]));
  }
}

}  // namespace ddc
