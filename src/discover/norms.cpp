#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "search.h"

namespace ddc {
namespace {

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
    if (search.is_vector(piece.slot))
      gain.on_output = true;
    else
      matrices = true;
  }
  if (!matrices || vectors.empty() || vectors.size() > 2) return {};
  // Rows alone, and no shift beside the gain: it is what the layer's output is multiplied by.
  if (vectors.size() == 1 && gain.readers.size() == 1 && gain.readers[0].axis == 0) {
    gain.on_output = true;
  }
  // The gain of a norm, beside its bias, is the one that is stored with an offset, or that is near one.
  std::stable_sort(vectors.begin(), vectors.end(), [&](const Piece* a, const Piece* b) {
    if ((a->offset != 0) != (b->offset != 0)) return a->offset != 0;
    return search.distance_from_one(a->slot) < search.distance_from_one(b->slot);
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

/// What a norm's shift gains, its readers' biases lose, and of a stream that goes on from it the bias
/// that is added next. Where that is not known only the mean over channels may be exchanged, which the
/// next norm does not see.
Gauge shift_exchange(const Gain& gain, int64_t size) {
  Gauge gauge;
  gauge.name = gain.shift + ":exchange";
  gauge.kind = "norm shift exchange";
  gauge.action = Action::exchange;
  const bool only_mean = gain.seen_by_others && gain.added_next.empty();
  gauge.channels = only_mean ? 1 : size;
  gauge.legs = {{.tensor = gain.shift}};
  for (const auto& reader : gain.readers) {
    // What a key gains where it has no bias is the same for all tokens, and not seen.
    if (reader.bias.empty()) continue;
    gauge.legs.push_back(
        {.tensor = reader.weight, .axis = reader.axis, .through = {.bias = reader.bias}});
  }
  if (!gain.added_next.empty()) gauge.legs.push_back({.tensor = gain.added_next});
  if (only_mean) {
    for (auto& leg : gauge.legs) leg.channel_of = channel_maps::whole(size);
  }
  return gauge;
}

/// What the kernel shifts of readers, without regard to biases, have for charges.
struct KernelCharges {
  std::vector<std::vector<at::Tensor>> value;  ///< [gauge][batch]
  std::vector<double> scale;

  bool is_zero(size_t k, double zero) const {
    return at::cat(value[k]).abs().max().item<double>() <= zero * scale[k];
  }
};

KernelCharges kernel_charges(const Search& search, const std::vector<Gauge>& gauges) {
  KernelCharges result{std::vector<std::vector<at::Tensor>>(gauges.size()),
                       std::vector<double>(gauges.size(), 0)};
  search.probe.each_charge(
      gauges, search.probe.charge_batches(), [&](size_t k, const Charge& charge) {
        result.value[k].push_back(charge.value.flatten());
        result.scale[k] = std::max(result.scale[k], charge.scale.max().item<double>());
      });
  return result;
}

/// All vectors at the points of the first batches, by name. Going there moves every parameter.
using Vectors = std::vector<std::map<std::string, at::Tensor>>;

Vectors vectors_of(const Search& search) {
  const int64_t batches = search.probe.charge_batches();
  Vectors result(batches);
  for (int64_t batch = 0; batch < batches; ++batch) {
    search.probe.move_to(static_cast<uint64_t>(batch));
    for (const auto& [name, tensor] : search.probe.params()) {
      if (tensor.dim() == 1) result[batch][name] = tensor.detach().to(at::kDouble, false, true);
    }
  }
  return result;
}

/// What a row of ones, seen through the gain, reads of the shift; per batch.
at::Tensor read_of_shift(const Vectors& vectors, const std::string& gain, double offset,
                         const std::string& shift) {
  std::vector<double> result;
  for (const auto& at_batch : vectors) {
    result.push_back((at_batch.at(shift) / (at_batch.at(gain) + offset)).sum().item<double>());
  }
  return at::tensor(result).unsqueeze(1);
}

/// The bias that makes up for what the rows of a kernel shift then read of the norm's shift.
std::string bias_behind(const Search& search, const at::Tensor& charge, double scale,
                        const at::Tensor& read) {
  std::string best;
  double least = 10 * search.probe.zero() * scale;
  for (size_t t = 0; t < search.probe.params().size(); ++t) {
    const auto& vector = search.probe.parameter(t);
    if (vector.tensor.dim() != 1 || vector.tensor.size(0) != charge.size(1)) continue;
    if (search.is_null(t) || !search.probe.is_small(t)) continue;
    const auto gradient = search.probe.small_gradient(t).narrow(0, 0, charge.size(0));
    const double rest = (charge - read * gradient).abs().max().item<double>();
    if (rest > least) continue;
    // Gradients of other layers' biases may be small beside the charge: that is no reason to take them.
    least = rest;
    best = vector.name;
  }
  return best;
}

/// The vector that makes up for what the stream that goes on from a norm sees of its shift, beside what
/// the readers do.
std::string added_next(const Search& search, const Gain& gain, int64_t size) {
  auto by_readers = gain;
  by_readers.seen_by_others = false;
  const auto charges = kernel_charges(search, {shift_exchange(by_readers, size)});
  return bias_behind(search, at::stack(charges.value[0]), charges.scale[0],
                     at::ones({search.probe.charge_batches(), 1}, at::kDouble));
}

/// The null vector next to a reader in the table, if its size is that of the reader's bias: a key's bias
/// has no gradient, and neither has the mean of its rows.
std::string null_bias(const Search& search, const Gain::Reader& reader,
                      const std::set<std::string>& taken) {
  const auto& params = search.probe.params();
  const int64_t size = params[reader.weight].tensor.size(1 - reader.axis);
  const size_t here = search.slot(search.slot_of(reader.weight, reader.axis)).tensor;
  const auto distance = [&](size_t t) { return t > here ? 2 * (t - here) - 1 : 2 * (here - t); };
  size_t best = params.size();
  for (size_t t = 0; t < params.size(); ++t) {
    const auto& vector = search.probe.parameter(t).tensor;
    if (vector.dim() != 1 || !search.is_null(t) || vector.size(0) != size) continue;
    if (taken.count(search.probe.parameter(t).name) > 0) continue;
    if (best == params.size() || distance(t) < distance(best)) best = t;
  }
  return best < params.size() ? search.probe.parameter(best).name : std::string();
}

}  // namespace

void Search::find_gains() {
  for (const auto& match : scales) {
    if (auto gain = as_gain(*this, match)) gains.push_back(*gain);
  }
  // A norm whose output others see as well has no scale gauge; its readers have kernel shifts all the
  // same, and those tell which they are.
  std::set<std::pair<std::string, int64_t>> read;
  for (const auto& gain : gains) {
    for (const auto& reader : gain.readers) read.insert({reader.weight, reader.axis});
  }
  std::vector<Gauge> candidates;
  std::vector<std::pair<size_t, Gain::Reader>> of;
  for (size_t v = 0; v < probe.slots().size(); ++v) {
    const int64_t size = slot(v).size;
    if (!is_vector(v) || is_null(slot(v).tensor) || !is_free(v, 0, size)) continue;
    if (distance_from_one(v) > 0.5) continue;
    for (size_t k = 0; k < probe.slots().size(); ++k) {
      const auto& weight = tensor_of(k);
      if (weight.tensor.dim() != 2 || slot(k).size != size) continue;
      if (!are_near(slot(k).tensor, slot(v).tensor)) continue;
      if (read.count({weight.name, slot(k).axis}) > 0 || !is_free(k, 0, size)) continue;
      const Gain::Reader reader{weight.name, slot(k).axis, {}};
      candidates.push_back(
          kernel_shift(*this, {.gain = tensor_of(v).name, .seen_by_others = true}, reader));
      of.emplace_back(v, reader);
    }
  }
  const auto charges = kernel_charges(*this, candidates);
  const auto vectors = vectors_of(*this);
  std::map<size_t, Gain> found;
  for (size_t k = 0; k < candidates.size(); ++k) {
    auto [v, reader] = of[k];
    const auto& gain = tensor_of(v).name;
    auto& norm = found[v];
    norm.gain = gain;
    norm.seen_by_others = true;
    if (charges.is_zero(k, probe.zero())) {
      norm.readers.push_back(reader);
      continue;
    }
    for (size_t s = 0; s < probe.slots().size(); ++s) {
      const bool tried = is_vector(s) && s != v && slot(s).size == slot(v).size &&
                         are_near(slot(s).tensor, slot(v).tensor) &&
                         (norm.shift.empty() || norm.shift == tensor_of(s).name);
      if (!tried || is_null(slot(s).tensor)) continue;
      reader.bias = bias_behind(*this, at::stack(charges.value[k]), charges.scale[k],
                                read_of_shift(vectors, gain, 0, tensor_of(s).name));
      if (reader.bias.empty()) continue;
      norm.shift = tensor_of(s).name;
      norm.readers.push_back(reader);
      break;
    }
  }
  for (auto& [v, norm] : found) {
    if (!norm.readers.empty()) gains.push_back(std::move(norm));
  }
}

void Search::find_gain_gauges() {
  // LayerNorm's output has no mean: what is added to all of a row (through the gain) is not seen, but
  // for what the row then reads of the norm's shift, and that tells which bias is the row's.
  std::vector<Gauge> without_bias;
  std::vector<std::pair<size_t, size_t>> of;
  for (size_t g = 0; g < gains.size(); ++g) {
    for (size_t r = 0; r < gains[g].readers.size(); ++r) {
      if (probe.params()[gains[g].readers[r].weight].tensor.dim() > 2) continue;
      without_bias.push_back(kernel_shift(
          *this, gains[g], {gains[g].readers[r].weight, gains[g].readers[r].axis, {}}));
      of.emplace_back(g, r);
    }
  }
  const auto charges = kernel_charges(*this, without_bias);
  const auto vectors = vectors_of(*this);
  std::set<std::string> taken;
  std::vector<Gauge> candidates;
  for (size_t k = 0; k < without_bias.size(); ++k) {
    const auto& gain = gains[of[k].first];
    auto& reader = gains[of[k].first].readers[of[k].second];
    const bool zero = charges.is_zero(k, probe.zero());
    if (!gain.shift.empty() && !gain.on_output && reader.bias.empty()) {
      reader.bias = zero ? null_bias(*this, reader, taken)
                         : bias_behind(*this, at::stack(charges.value[k]), charges.scale[k],
                                       read_of_shift(vectors, gain.gain, gain.offset, gain.shift));
    }
    if (zero) taken.insert(reader.bias);
    if (zero || !reader.bias.empty()) candidates.push_back(kernel_shift(*this, gain, reader));
  }
  for (auto& gain : gains) {
    const bool biases =
        std::any_of(gain.readers.begin(), gain.readers.end(),
                    [](const Gain::Reader& reader) { return !reader.bias.empty(); });
    if (gain.shift.empty() || gain.on_output || !biases) continue;
    const int64_t size = probe.params()[gain.shift].tensor.size(0);
    if (gain.seen_by_others) gain.added_next = added_next(*this, gain, size);
    candidates.push_back(shift_exchange(gain, size));
  }
  const auto conserved = probe.relative_charges(candidates);
  for (size_t k = 0; k < candidates.size(); ++k) {
    if (conserved[k] <= 10 * probe.zero()) gauges.push_back(std::move(candidates[k]));
  }
}

}  // namespace ddc
