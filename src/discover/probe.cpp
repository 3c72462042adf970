#include "probe.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "noise.h"

namespace ddc {

double root_mean_square(const at::Tensor& values) {
  return norm_of(values) / std::sqrt(static_cast<double>(std::max<int64_t>(values.numel(), 1)));
}

namespace {

/// Gradients of tensors with at most so many entries are kept as they are.
constexpr int64_t small_entries = 1 << 14;
/// Shifts of large models are looked at on so many batches.
constexpr int64_t shift_batches_of_large = 8;
/// A bias is so near behind its matrix in the table.
constexpr size_t pair_distance = 3;
/// Charges of a matrix and of its bias that are further apart than this factor are brought together, a
/// pair with every evaluation, and so many at most.
constexpr double unbalanced = 30;
constexpr int64_t most_rounds = 12;
/// A charge that changes by more than this share where the matrix hardly changes is rounding (that of a bias which a
/// norm takes out again): no size of the matrix makes it tell anything.
constexpr double most_change = 0.5;
constexpr double hardly = 1e-5;
constexpr int64_t most_rounds_of_large = 3;

double epsilon_of(at::ScalarType type) {
  return type == at::kDouble ? std::numeric_limits<double>::epsilon()
                             : std::numeric_limits<float>::epsilon();
}

/// Sum over all axes but the slot's.
at::Tensor sum_except(const at::Tensor& values, const Slot& slot) {
  if (slot.stacked) return values.movedim(slot.axis, 1).reshape({slot.size, -1}).sum(1);
  std::vector<int64_t> others;
  for (int64_t other = 0; other < values.dim(); ++other) {
    if (other != slot.axis) others.push_back(other);
  }
  return others.empty() ? values : values.sum(others);
}

/// How large the entries of a tensor usually are. Single large ones (biases of units that are switched
/// off) say nothing about the others, so it is no more than three times what a quarter of them is below.
double typical_size(const at::Tensor& tensor) {
  constexpr int64_t looked_at = 10000;
  const auto flat = tensor.detach().reshape({-1});
  const int64_t step = (flat.numel() + looked_at - 1) / looked_at;
  const auto some = flat.slice(0, 0, flat.numel(), step).abs();
  const auto quarter = std::get<0>(some.kthvalue((some.numel() + 3) / 4)).item<double>();
  const double all = root_mean_square(flat);
  return quarter > 0 ? std::min(all, 3 * quarter) : all;
}

/// By how much to multiply a matrix so that it does not shrink what it is applied to by more than half.
/// Narrow models with the entries of wide ones (0.02) have attention scores of 1e-4, and what depends on
/// them drowns.
double growth_of(const at::Tensor& tensor, double size) {
  if (tensor.dim() < 2 || size == 0) return 1;
  const auto widest =
      static_cast<double>(tensor.numel()) /
      static_cast<double>(*std::min_element(tensor.sizes().begin(), tensor.sizes().end()));
  return std::max(1.0, 0.5 / (size * std::sqrt(widest)));
}

at::Tensor stacked(const std::vector<at::Tensor>& per_batch, int64_t offset, int64_t size) {
  std::vector<at::Tensor> rows;
  rows.reserve(per_batch.size());
  for (const auto& batch : per_batch) rows.push_back(batch.narrow(0, offset, size).to(at::kDouble));
  return at::stack(rows);
}

}  // namespace

Probe::Probe(const Parameters& params, Evaluate evaluate, uint64_t seed)
    : Probe(params, std::move(evaluate), seed, Restore(params)) {}

Probe Probe::of_part(const Parameters& part) const {
  return {part, evaluate_, seed_, Restore(part, restore_.saved_of(part))};
}

Probe::Probe(const Parameters& params, Evaluate evaluate, uint64_t seed, Restore restore)
    : params_(params), evaluate_(std::move(evaluate)), restore_(std::move(restore)), seed_(seed) {
  size_t index = 0;
  scale_offset_ = shift_offset_ = small_offset_ = {0};
  for (const auto& [name, tensor] : params_) {
    epsilon_ = std::max(epsilon_, epsilon_of(tensor.scalar_type()));
    index_[name] = index;
    first_entry_.push_back(entries_);
    entries_ += tensor.numel();
    stored_.push_back(typical_size(restore_.saved()[index]));
    growth_.push_back(growth_of(tensor, stored_.back()));
    for (int64_t axis = 0; axis < tensor.dim(); ++axis) {
      slots_.push_back({index, axis, tensor.size(axis)});
      scale_offset_.push_back(scale_offset_.back() + tensor.size(axis));
      shift_offset_.push_back(shift_offset_.back() + tensor.numel() / tensor.size(axis));
    }
    for (int64_t axis = 1; tensor.dim() == 3 && tensor.size(0) > 1 && axis < 3; ++axis) {
      const int64_t size = tensor.size(0) * tensor.size(axis);
      slots_.push_back({index, axis, size, /*stacked=*/true});
      scale_offset_.push_back(scale_offset_.back() + size);
      shift_offset_.push_back(shift_offset_.back());
    }
    small_offset_.push_back(small_offset_.back() + (is_small(index) ? tensor.numel() : 0));
    ++index;
  }
}

std::vector<Probe::Pair> Probe::pairs() const {
  std::vector<Pair> result;
  for (size_t b = 0; b < slots_.size(); ++b) {
    if (parameter(slots_[b].tensor).tensor.dim() != 1 || slots_[b].size < 2) continue;
    for (size_t k = 0; k < slots_.size(); ++k) {
      const auto& slot = slots_[k];
      const bool before =
          slot.tensor < slots_[b].tensor && slot.tensor + pair_distance >= slots_[b].tensor;
      if (before && slot.size == slots_[b].size && parameter(slot.tensor).tensor.dim() > 1) {
        result.push_back({k, b});
      }
    }
  }
  return result;
}

void Probe::balance() {
  const auto all = pairs();
  std::set<std::pair<size_t, size_t>> done;
  struct Charges {
    at::Tensor matrix;
    at::Tensor bias;
    double of_matrix = 0;
    double of_bias = 0;
    /// Log of the factor between the two; zero if one of them has none.
    double gap() const {
      return of_matrix > 0 && of_bias > 0 ? std::log(of_matrix / of_bias) : 0.0;
    }
    double small() const { return std::min(of_matrix, of_bias); }
    /// How much the smaller one differs, as a share.
    double difference(const Charges& other) const {
      const auto change = of_bias < of_matrix ? other.bias - bias : other.matrix - matrix;
      return root_mean_square(change) / small();
    }
  };
  const auto charges = [&]() {
    const auto slopes = gradients(0);
    const at::NoGradGuard no_grad;
    const auto charge = [&](const Slot& slot) {
      const auto& [name, tensor] = parameter(slot.tensor);
      return sum_except(tensor.detach() * slopes[name].tensor, slot);
    };
    std::vector<Charges> result;
    for (const auto& pair : all) {
      Charges both{.matrix = charge(slots_[pair.matrix]), .bias = charge(slots_[pair.bias])};
      both.of_matrix = root_mean_square(both.matrix);
      both.of_bias = root_mean_square(both.bias);
      result.push_back(std::move(both));
    }
    return result;
  };
  const auto largest = [](const std::vector<Charges>& of) {
    double result = 0;
    for (const auto& each : of) result = std::max({result, each.of_matrix, each.of_bias});
    return std::max(result, 1e-300);
  };
  const int64_t rounds = is_large() ? most_rounds_of_large : most_rounds;
  for (int64_t round = 0; round < rounds && !all.empty(); ++round) {
    const auto before = charges();
    // What comes first is mended first: all that follows depends on it.
    size_t k = 0;
    while (k < all.size() && (done.count({all[k].matrix, all[k].bias}) > 0 ||
                              std::abs(before[k].gap()) <= std::log(unbalanced))) {
      ++k;
    }
    if (k == all.size()) return;
    done.insert({all[k].matrix, all[k].bias});
    const size_t matrix = slots_[all[k].matrix].tensor;
    const double was = before[k].gap();
    const double growth = growth_[matrix];
    bool better = false;
    try {
      growth_[matrix] = growth * (1 + hardly);
      if (before[k].difference(charges()[k]) <= most_change) {
        growth_[matrix] = growth * std::exp(-was);
        // The smaller one must count for more, beside all others: a bias that the loss does not depend on (a
        // key's) and a matrix that is not the bias's own gain nothing.
        const auto after = charges();
        const double gain =
            (after[k].small() / largest(after)) / (before[k].small() / largest(before));
        better = std::abs(after[k].gap()) < std::abs(was) / 2 && gain > std::exp(std::abs(was) / 4);
      }
    } catch (const c10::Error&) {
      // Not finite there.
    }
    if (!better) growth_[matrix] = growth;
  }
}

double Probe::size_of(size_t tensor) const {
  const double size = growth_[tensor] * stored_[tensor];
  return size > 0 ? size : 0.8;
}

Noise Probe::noise_of(uint64_t batch) const {
  return {entries_, at::detail::createCPUGenerator(seed_ + batch)};
}

void Probe::write(size_t k, const Noise& noise, const at::Tensor& values) const {
  const at::NoGradGuard no_grad;
  const double width = size_of(k) / 4 * std::sqrt(3.0);
  at::Tensor(values).copy_(restore_.saved()[k]);
  if (growth_[k] != 1) at::Tensor(values).mul_(growth_[k]);
  noise.each(values, first_entry_[k], [&](const at::Tensor& piece, const at::Tensor& drawn) {
    at::Tensor(piece).add_(drawn, width);
  });
}

void Probe::move_to(uint64_t batch) const {
  const auto noise = noise_of(batch);
  size_t k = 0;
  for (const auto& [name, tensor] : params_) write(k++, noise, tensor);
}

ValuesAt Probe::place(uint64_t batch) const {
  return [this, noise = noise_of(batch)](const std::string& name, const at::Tensor& values) {
    write(index_.at(name), noise, values);
  };
}

double Probe::zero() const { return epsilon_ < 1e-10 ? 1e-9 : 2e-4; }

Parameters Probe::gradients_of(const Parameters& others, uint64_t batch) const {
  move_to(batch);
  const at::AutoGradMode enable_grad(true);
  const auto loss = evaluate_(batch).loss;
  const auto tensors = others.tensors();
  const auto found = torch::autograd::grad({loss}, tensors, {}, /*retain_graph=*/std::nullopt,
                                           /*create_graph=*/false, /*allow_unused=*/true);
  Parameters result;
  for (const auto& [name, tensor] : others) {
    const auto& gradient = found[result.size()];
    result.add(name, gradient.defined() ? gradient : at::zeros_like(tensor));
    // What is not finite does not cancel.
    TORCH_CHECK(std::isfinite(result[name].tensor.sum().item<double>()),
                "discover: the gradient of '", name, "' on batch ", batch, " is not finite");
  }
  return result;
}

void Probe::draw(int64_t wanted) {
  while (batches() < wanted) {
    const auto type = epsilon_ < 1e-10 ? at::kDouble : at::kFloat;
    const auto scale = at::empty({scale_offset_.back()}, type);
    const bool keep_shift = !is_large() || batches() < shift_batches_of_large;
    const auto shift = at::empty({keep_shift ? shift_offset_.back() : 0}, type);
    const auto small = at::empty({small_offset_.back()}, type);
    std::vector<double> shift_scale;
    std::vector<double> rms;
    const auto table = gradients(static_cast<uint64_t>(batches()));
    const at::NoGradGuard no_grad;
    size_t slot = 0;
    for (size_t k = 0; k < params_.size(); ++k) {
      const auto& weight = parameter(k).tensor;
      const auto& gradient = table[parameter(k).name].tensor;
      const auto put = [](const at::Tensor& all, int64_t offset, const at::Tensor& values) {
        all.narrow(0, offset, values.numel()).copy_(values.flatten());
      };
      // One after the other in the same memory.
      auto terms = weight.detach() * gradient;
      const size_t first = slot;
      for (; slot < slots_.size() && slots_[slot].tensor == k; ++slot) {
        const auto& here = slots_[slot];
        put(scale, scale_offset_[slot], sum_except(terms, here));
        if (keep_shift && !here.stacked) {
          put(shift, shift_offset_[slot], gradient.sum(here.axis));
        }
      }
      at::abs_out(terms, gradient);
      for (size_t past = first; past < slot; ++past) {
        const auto& here = slots_[past];
        shift_scale.push_back(here.stacked ? 0 : root_mean_square(terms.sum(here.axis)));
      }
      if (is_small(k)) put(small, small_offset_[k], gradient);
      rms.push_back(root_mean_square(gradient));
    }
    scale_.push_back(scale);
    if (keep_shift) shift_.push_back(shift);
    small_.push_back(small);
    shift_scale_.push_back(std::move(shift_scale));
    rms_.push_back(std::move(rms));
  }
}

at::Tensor Probe::totals() const {
  std::vector<at::Tensor> columns;
  size_t slot = 0;
  for (size_t k = 0; k < params_.size(); ++k) {
    const bool has_slots = slot < slots_.size() && slots_[slot].tensor == k;
    columns.push_back(has_slots ? scale_charge(slot).sum(1) : at::zeros({batches()}, at::kDouble));
    while (slot < slots_.size() && slots_[slot].tensor == k) ++slot;
  }
  return at::stack(columns, 1);
}

at::Tensor Probe::scale_charge(size_t slot) const {
  return stacked(scale_, scale_offset_[slot], scale_offset_[slot + 1] - scale_offset_[slot]);
}

at::Tensor Probe::shift_charge(size_t slot) const {
  return stacked(shift_, shift_offset_[slot], shift_offset_[slot + 1] - shift_offset_[slot]);
}

at::Tensor Probe::small_gradient(size_t tensor) const {
  return stacked(small_, small_offset_[tensor], small_offset_[tensor + 1] - small_offset_[tensor]);
}

double Probe::shift_scale(size_t slot) const {
  double sum = 0;
  for (const auto& batch : shift_scale_) sum += batch[slot] * batch[slot];
  return std::sqrt(sum / static_cast<double>(batches()));
}

bool Probe::is_small(size_t tensor) const {
  return parameter(tensor).tensor.numel() <= small_entries;
}

double Probe::influence(size_t tensor) const {
  double sum = 0;
  for (const auto& batch : rms_) sum += batch[tensor] * batch[tensor];
  return size_of(tensor) * std::sqrt(sum / static_cast<double>(batches()));
}

void Probe::each_batch(int64_t count,
                       const std::function<void(const Parameters& gradients)>& use) const {
  for (int64_t batch = 0; batch < count; ++batch) use(gradients(static_cast<uint64_t>(batch)));
}

void Probe::each_charge(const std::vector<Gauge>& gauges, int64_t count,
                        const std::function<void(size_t, const Charge&)>& use) const {
  if (gauges.empty()) return;
  each_batch(count, [&](const Parameters& table) {
    for (size_t k = 0; k < gauges.size(); ++k) use(k, noether_charge(gauges[k], params_, table));
  });
}

std::vector<double> Probe::relative_charges(const std::vector<Gauge>& gauges) const {
  std::vector<double> result(gauges.size(), 0);
  each_charge(gauges, charge_batches(), [&](size_t k, const Charge& charge) {
    const double scale = charge.scale.max().item<double>();
    const double value = charge.value.abs().max().item<double>();
    if (scale > 0) result[k] = std::max(result[k], value / scale);
  });
  return result;
}

}  // namespace ddc
