#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorIndexing.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>

#include "linalg/rotation.h"
#include "relations.h"
#include "search.h"

namespace ddc {
namespace {

Gauge one_leg(Leg leg, int64_t size) {
  Gauge gauge;
  gauge.name = "leg";
  gauge.action = Action::rotation;
  gauge.block = size;
  gauge.channels = size;
  gauge.legs = {std::move(leg)};
  return gauge;
}

}  // namespace

std::vector<Gauge> legs_of_stream(const Search& search, int64_t size) {
  std::vector<Gauge> legs;
  const auto& params = search.probe.params();
  for (size_t k = 0; k < search.probe.slots().size(); ++k) {
    const auto& slot = search.slot(k);
    if (slot.stacked || slot.size < size || slot.size >= 2 * size) continue;
    if (search.is_null(slot.tensor)) continue;
    // A latent vector may be a part of what a layer makes: its first coordinates, or its last.
    const std::set<int64_t> starts = {0, slot.size - size};
    for (const int64_t start : starts) {
      if (!search.is_free(k, start, size)) continue;
      Leg leg{.tensor = search.tensor_of(k).name, .axis = slot.axis};
      if (slot.size > size) {
        leg.channel_of.assign(slot.size, -1);
        std::iota(leg.channel_of.begin() + start, leg.channel_of.begin() + start + size, 0);
      }
      legs.push_back(one_leg(std::move(leg), size));
    }
  }
  for (const auto& gain : search.gains) {
    if (params[gain.gain].tensor.size(0) != size || gain.seen_by_others) continue;
    for (const auto& reader : gain.readers) {
      Reading reading{.gain = gain.gain, .gain_offset = gain.offset};
      if (!gain.shift.empty() && !reader.bias.empty()) {
        reading.shift = gain.shift;
        reading.bias = reader.bias;
      }
      legs.push_back(
          one_leg({.tensor = reader.weight, .axis = reader.axis, .through = reading}, size));
    }
  }
  return legs;
}

Gauge stream_rotation(const std::vector<Gauge>& legs, const std::vector<size_t>& which) {
  auto gauge = legs.front();
  gauge.name = "residual:rotation";
  gauge.kind = "residual rotation";
  gauge.legs.clear();
  for (const size_t k : which) gauge.legs.push_back(legs[k].legs.front());
  return gauge;
}

namespace {

/// Charges are looked at between so many coordinates of the stream.
constexpr int64_t most_coordinates = 48;

/// Charges of rotations, of some coordinates, leg by leg.
struct SampledCharges {
  std::vector<at::Tensor> value;  ///< [batches, coordinates, coordinates]
  std::vector<double> scale;

  struct Relative {
    double all = 0;
    double fixing_ones = 0;
  };
  /// Relative residual of some legs together, and of their rotations that leave the vector of ones alone.
  Relative relative(const std::vector<size_t>& legs) const {
    auto sum = at::zeros_like(value.front());
    double size = 0;
    for (const size_t k : legs) {
      sum += value[k];
      size += scale[k];
    }
    const auto basis = helmert(sum.size(-1));
    const auto inside = basis.t().matmul(sum).matmul(basis);
    const auto largest = [&](const at::Tensor& charge) {
      return size > 0 ? charge.abs().max().item<double>() / size : 0.0;
    };
    return {largest(sum), largest(inside)};
  }
};

/// The part of a tensor that belongs to some indices along an axis.
at::Tensor part_of(const at::Tensor& tensor, int64_t axis, const at::Tensor& indices) {
  return tensor.detach().index_select(axis, indices.to(tensor.device()));
}

/// The charge of a leg between some of its coordinates.
Charge charge_of(const Gauge& gauge, const at::Tensor& coordinates, const Parameters& params,
                 const Parameters& gradients) {
  const auto& leg = gauge.legs.front();
  auto part = gauge;
  part.block = part.channels = coordinates.size(0);
  part.legs.front().channel_of.clear();
  const auto first = std::find(leg.channel_of.begin(), leg.channel_of.end(), 0);
  const auto start = leg.channel_of.empty() ? 0 : first - leg.channel_of.begin();
  Parameters weights;
  Parameters slopes;
  const auto add = [&](const std::string& name, std::optional<int64_t> axis, int64_t from = 0) {
    if (name.empty()) return;
    const auto take = [&](const at::Tensor& tensor) {
      return axis ? part_of(tensor, *axis, coordinates + from) : tensor.detach();
    };
    weights.add(name, take(params[name].tensor));
    slopes.add(name, take(gradients[name].tensor));
  };
  add(leg.tensor, leg.axis, start);
  add(leg.through.gain, 0);
  add(leg.through.shift, 0);
  add(leg.through.bias, {});
  return noether_charge(part, weights, slopes);
}

/// Charges of all legs, and with them of the legs at the layers that they stand for.
SampledCharges charges_of(const Search& search, const std::vector<Gauge>& legs,
                          const at::Tensor& coordinates, int64_t batches) {
  SampledCharges result;
  result.scale.assign(legs.size(), 0);
  std::vector<std::vector<at::Tensor>> values(legs.size());
  std::vector<std::vector<Gauge>> members;
  Parameters needed;
  for (const auto& leg : legs) {
    members.push_back(search.stacks.like(leg));
    for (const auto& gauge : members.back()) {
      const auto& member = gauge.legs.front();
      const auto& through = member.through;
      for (const auto& name : {member.tensor, through.gain, through.shift, through.bias}) {
        if (!name.empty() && !needed.contains(name)) {
          needed.add(name, search.everything[name].tensor);
        }
      }
    }
  }
  for (int64_t batch = 0; batch < batches; ++batch) {
    const auto gradients = search.probe.gradients_of(needed, static_cast<uint64_t>(batch));
    for (size_t k = 0; k < legs.size(); ++k) {
      at::Tensor sum;
      double scale = 0;
      for (const auto& gauge : members[k]) {
        const auto charge = charge_of(gauge, coordinates, needed, gradients);
        sum = sum.defined() ? sum + charge.value[0] : charge.value[0];
        scale += charge.scale.max().item<double>();
      }
      values[k].push_back(sum);
      result.scale[k] = std::max(result.scale[k], scale);
    }
  }
  for (const auto& value : values) result.value.push_back(at::stack(value));
  return result;
}

/// Columns whose charges are too small beside those of the others to show in a null space are members
/// too if, added to the sum of the sure ones, they take it closer to zero.
std::vector<size_t> with_small_members(const at::Tensor& columns, const std::vector<size_t>& sure,
                                       double zero) {
  auto members = sure;
  std::vector<int64_t> others;
  auto sum = at::zeros({columns.size(0)}, at::kDouble);
  for (int64_t k = 0; k < columns.size(1); ++k) {
    if (std::count(sure.begin(), sure.end(), static_cast<size_t>(k)) > 0) {
      sum += columns.select(1, k);
    } else {
      others.push_back(k);
    }
  }
  if (others.empty()) return members;
  const auto rest = columns.index_select(1, at::tensor(others, at::kLong));
  const auto norms = rest.norm(2, {0}).clamp_min(1e-300);
  const auto weights =
      std::get<0>(at::linalg_lstsq(rest / norms, -sum.unsqueeze(1), zero, "gelsd")).squeeze(1) /
      norms;
  for (size_t k = 0; k < others.size(); ++k) {
    const double weight = weights[static_cast<int64_t>(k)].item<double>();
    if (std::abs(weight - 1) < 0.25) members.push_back(static_cast<size_t>(others[k]));
  }
  std::sort(members.begin(), members.end());
  return members;
}

}  // namespace

void Search::find_residual_rotation() {
  // The stream of the model, and latent vectors behind norms of their own.
  std::vector<int64_t> sizes;
  for (const auto& gain : gains) {
    const int64_t size = probe.params()[gain.gain].tensor.size(0);
    if (gain.on_output || gain.seen_by_others || size < 3) continue;
    if (std::find(sizes.begin(), sizes.end(), size) == sizes.end()) sizes.push_back(size);
  }
  for (const int64_t size : sizes) find_rotation_of_stream(size);
}

void Search::find_rotation_of_stream(int64_t size) {
  const auto legs = legs_of_stream(*this, size);
  if (legs.size() < 2) return;
  // A few entries of the d x d charges are enough. LayerNorm admits rotations that leave the ones
  // alone; those are generated by exterior products of differences of unit vectors.
  const auto entries = static_cast<int64_t>(2 * legs.size()) + 16;
  const auto generator = at::detail::createCPUGenerator(1);
  const int64_t sampled = std::min(size, most_coordinates);
  const auto coordinates = at::randperm(size, generator).narrow(0, 0, sampled);
  const auto index = at::randint(0, sampled, {4, entries}, generator, at::kLong);
  // A batch says no more than the algebra has dimensions.
  const auto batches =
      std::max<int64_t>(probe.charge_batches(), entries / ((sampled - 1) * (sampled - 2) / 2) + 1);
  const auto charges_of_legs = charges_of(*this, legs, coordinates, batches);
  std::vector<at::Tensor> columns;
  for (const auto& charge : charges_of_legs.value) {
    const auto at_entries = [&](int64_t i, int64_t j) {
      return charge.index({at::indexing::Slice(), index[i], index[j]});
    };
    columns.push_back(
        (at_entries(0, 2) - at_entries(0, 3) - at_entries(1, 2) + at_entries(1, 3)).flatten());
  }
  RelationOptions options;
  options.tolerance = probe.zero();
  // One stream runs through all layers.
  const std::vector<size_t> position(legs.size(), 0);
  const auto charges = at::stack(columns, 1);
  for (const auto& relation : sparse_relations(charges, position, options)) {
    const bool equal = std::all_of(
        relation.coefficients.begin(), relation.coefficients.end(), [&](double coefficient) {
          return std::abs(coefficient - 1) < coefficient_tolerance(probe.zero());
        });
    // What turns without what reads it through a norm is something else: heads as large as the stream.
    const bool read = std::any_of(relation.columns.begin(), relation.columns.end(),
                                  [&](size_t k) { return !legs[k].legs.front().through.empty(); });
    if (!equal || !read) continue;
    const auto members = with_small_members(charges, relation.columns, probe.zero());
    auto gauge = stream_rotation(legs, members);
    // In wide streams the one direction that LayerNorm takes out is a small part of the charges, so
    // what there is of it is compared with what there is beside it.
    const auto measured = charges_of_legs.relative(members);
    if (measured.fixing_ones > probe.zero()) continue;
    gauge.fixes_ones = measured.all > 100 * measured.fixing_ones + probe.epsilon();
    gauges.push_back(gauge);
    for (const auto& leg : gauge.legs) {
      if (!leg.through.empty()) continue;
      const auto first = std::find(leg.channel_of.begin(), leg.channel_of.end(), 0);
      mark(slot_of(leg.tensor, leg.axis),
           leg.channel_of.empty() ? 0 : first - leg.channel_of.begin(), size);
    }
  }
}

}  // namespace ddc
