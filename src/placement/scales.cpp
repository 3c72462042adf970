#include "placement/scales.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "frame/section.h"
#include "kernels/tensors.h"

namespace ddc {

std::optional<Scales> Scales::make(const Plan& plan, const std::vector<size_t>& gauges) {
  Scales result;
  std::map<size_t, size_t> known;
  const auto entry_of = [&](size_t t) {
    const auto [found, is_new] = known.emplace(t, result.tensors_.size());
    if (is_new) {
      result.tensors_.push_back(
          {.tensor = plan.tensors[t].tensor, .offset = plan.tensors[t].offset});
    }
    return found->second;
  };
  for (const size_t k : gauges) {
    const auto& gauge = plan.gauges[k];
    if (!gauge.is_scale()) continue;
    Member member{k, {}, gauge.is_folded(), section_weight(gauge), smallest_norm(plan, gauge)};
    if (gauge.self_coupled) return std::nullopt;
    for (size_t l = 0; l < gauge.legs.size(); ++l) {
      const auto& leg = gauge.legs[l];
      const auto& side = leg.exponent > 0 ? gauge.plus : gauge.minus;
      const auto& tensor = plan.tensors[leg.tensor].tensor;
      if (tensor.dim() < 1 || tensor.dim() > 2) return std::nullopt;
      if (!member.folded && std::abs(leg.exponent) != side.exponent) return std::nullopt;
      if (plan.tensors[leg.tensor].offset != 0 && tensor.dim() > 1) return std::nullopt;
      auto channel_of = gauge.gauge.legs[l].channel_of;
      if (channel_of.empty()) {
        channel_of.resize(static_cast<size_t>(gauge.gauge.channels));
        std::iota(channel_of.begin(), channel_of.end(), 0);
      }
      member.legs.push_back({entry_of(leg.tensor), static_cast<size_t>(leg.map.axis()),
                             leg.exponent, std::move(channel_of)});
    }
    result.members_.push_back(std::move(member));
  }
  for (const auto& [t, index] : std::map<size_t, size_t>(known)) {
    const auto& through = plan.tensors[t].through;
    if (!through) continue;
    const size_t gain = entry_of(through->gain);
    result.tensors_[index].gain = gain;
    result.tensors_[index].gain_axis = static_cast<size_t>(through->axis);
  }
  if (result.members_.empty()) return std::nullopt;
  return result;
}

bool Scales::fits() const {
  return std::all_of(tensors_.begin(), tensors_.end(), [](const Entry& entry) {
    return kernels::fits(entry.tensor) && entry.tensor.is_contiguous();
  });
}

double Scales::value(const Entry& vector, size_t index) const {
  const auto& factors = vector.factors[0];
  const double stored = vector.tensor.scalar_type() == at::kFloat
                            ? vector.tensor.const_data_ptr<float>()[index]
                            : vector.tensor.const_data_ptr<double>()[index];
  return (stored + vector.offset) * (factors.empty() ? 1 : factors[index]);
}

void Scales::add_squares(const Leg& leg, std::vector<double>& sums) const {
  const auto& entry = tensors_[leg.tensor];
  const size_t count = leg.channel_of.size();
  std::vector<double> squares(count);
  const auto gain_square = [&](size_t i) {
    const double gain = value(tensors_[*entry.gain], i);
    return gain * gain;
  };
  if (entry.tensor.dim() == 1) {
    for (size_t i = 0; i < count; ++i) {
      const double x = value(entry, i);
      squares[i] = x * x * (entry.gain ? gain_square(i) : 1);
    }
  } else {
    const size_t other = 1 - leg.axis;
    // Factors of the other axis are in the sums, those of this one outside of them.
    const auto squared = [&](size_t axis) {
      auto weights = entry.factors[axis];
      for (auto& weight : weights) weight *= weight;
      if (!entry.gain || entry.gain_axis != axis) return weights;
      weights.resize(static_cast<size_t>(entry.tensor.size(static_cast<int64_t>(axis))), 1.0);
      for (size_t i = 0; i < weights.size(); ++i) weights[i] *= gain_square(i);
      return weights;
    };
    const auto weights = squared(other);
    kernels::squares(entry.tensor, static_cast<int64_t>(leg.axis),
                     weights.empty() ? nullptr : weights.data(), squares.data());
    const auto own = squared(leg.axis);
    for (size_t i = 0; i < own.size(); ++i) squares[i] *= own[i];
  }
  for (size_t i = 0; i < count; ++i) {
    if (leg.channel_of[i] >= 0) sums[static_cast<size_t>(leg.channel_of[i])] += squares[i];
  }
}

double Scales::collect_(const Member& member, const GaugeState& state) {
  const auto* target = state.target.const_data_ptr<double>();
  const auto channels = static_cast<size_t>(state.target.numel());
  const double least = member.smallest * member.smallest;
  std::vector<double> plus(channels);
  std::vector<double> minus(channels);
  bool has_plus = false;
  bool has_minus = false;
  for (const auto& leg : member.legs) {
    add_squares(leg, leg.exponent > 0 ? plus : minus);
    (leg.exponent > 0 ? has_plus : has_minus) = true;
    if (member.folded) break;
  }
  std::vector<double> log_moves(channels);
  double largest = 0;
  for (size_t c = 0; c < channels; ++c) {
    if ((has_plus && !(plus[c] > least)) || (has_minus && !(minus[c] > least))) continue;
    const double section =
        0.5 * ((has_plus ? std::log(plus[c]) : 0) - (has_minus ? std::log(minus[c]) : 0));
    log_moves[c] = (target[c] - section) / member.weight;
    largest = std::max(largest, std::abs(log_moves[c]));
  }
  for (const auto& leg : member.legs) {
    auto& factors = tensors_[leg.tensor].factors[leg.axis];
    factors.resize(leg.channel_of.size(), 1.0);
    for (size_t i = 0; i < factors.size(); ++i) {
      if (leg.channel_of[i] < 0) continue;
      factors[i] *= std::exp(log_moves[static_cast<size_t>(leg.channel_of[i])] * leg.exponent);
    }
  }
  return largest;
}

double Scales::collect_(const std::vector<size_t>& gauges, const std::vector<GaugeState>& states) {
  double largest = 0;
  for (const size_t k : gauges) {
    const auto found = std::find_if(members_.begin(), members_.end(),
                                    [&](const Member& member) { return member.gauge == k; });
    largest = std::max(largest, collect_(*found, states[k]));
  }
  return largest;
}

void Scales::write_() {
  for (auto& entry : tensors_) {
    auto& [rows, columns] = entry.factors;
    if (rows.empty() && columns.empty()) continue;
    auto weights = entry.tensor.detach();
    if (weights.dim() == 2) {
      kernels::scale_(weights, rows.empty() ? nullptr : rows.data(),
                      columns.empty() ? nullptr : columns.data());
    } else {
      const auto factor = at::tensor(rows, at::kDouble).to(weights.scalar_type());
      if (entry.offset != 0) weights.add_(entry.offset);
      weights.mul_(factor);
      if (entry.offset != 0) weights.sub_(entry.offset);
    }
    rows.clear();
    columns.clear();
  }
}

}  // namespace ddc
