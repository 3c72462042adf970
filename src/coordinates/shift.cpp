#include "coordinates/shift.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "gauge/leg_maps.h"
#include "kernels/tensors.h"

namespace ddc {

namespace {

/// Sum over legs of |exponent|^power times the number of a channel's indices; of an exchange, of all its
/// entries.
at::Tensor weights(const GaugePlan& gauge, double power, int64_t dim) {
  auto sum = at::zeros({gauge.gauge.channels}, gauge.options());
  for (size_t l = 0; l < gauge.shift_legs(); ++l) {
    const auto& leg = gauge.legs[l];
    sum += leg.map.counts().to(leg.home) * std::pow(std::abs(leg.exponent), power);
  }
  if (gauge.gauge.action == Action::exchange) return sum * gauge.rows;
  std::vector<int64_t> shape(dim, 1);
  shape[gauge.legs.front().map.axis()] = gauge.gauge.channels;
  return sum.view(shape);
}

template <class Terms>
at::Tensor weighted_sum(const GaugePlan& gauge, const Terms& terms) {
  at::Tensor sum;
  for (size_t l = 0; l < gauge.shift_legs(); ++l) {
    const auto& leg = gauge.legs[l];
    const auto part = gauge.gauge.action == Action::exchange
                          ? leg.map.scatter_all(terms(leg))
                          : leg.map.scatter(with_more_axes(terms(leg), leg.more_axes));
    sum = sum.defined() ? sum + part : part;
  }
  return sum;
}

}  // namespace

at::Tensor inverse_gram(const GaugePlan& gauge) {
  const auto& legs = gauge.gauge.legs;
  const int64_t channels = gauge.gauge.channels;
  bool several = false;
  std::vector<double> gram(channels * channels, 0);
  for (size_t a = 0; a < legs.size(); ++a) {
    for (size_t b = 0; b < legs.size(); ++b) {
      if (legs[a].tensor != legs[b].tensor) continue;
      several = several || a != b;
      const auto size =
          static_cast<int64_t>(std::max(legs[a].channel_of.size(), legs[b].channel_of.size()));
      for (int64_t i = 0; i < (size > 0 ? size : channels); ++i) {
        const int64_t of_a = legs[a].channel_of.empty() ? i : legs[a].channel_of[i];
        const int64_t of_b = legs[b].channel_of.empty() ? i : legs[b].channel_of[i];
        if (of_a < 0 || of_b < 0) continue;
        gram[of_a * channels + of_b] += legs[a].exponent * legs[b].exponent;
      }
    }
  }
  if (!several) return {};
  const auto matrix = at::tensor(gram, at::kDouble).view({channels, channels});
  const auto eigenvalues = at::linalg_eigvalsh(matrix);
  TORCH_CHECK((eigenvalues[0] > 1e-9 * eigenvalues[-1]).item<bool>(), "gauge '", gauge.gauge.name,
              "': what its channels add is not independent");
  return at::linalg_inv(matrix).to(gauge.device());
}

at::Tensor shift_part(const GaugePlan& gauge, const Tensors& vectors) {
  const auto& front = gauge.legs.front();
  // The mean over the rows of an unembedding is a pass over the largest tensor of many models.
  const bool is_column_sum = gauge.gauge.action == Action::shift && gauge.shift_legs() == 1 &&
                             front.map.is_single() && front.map.axis() == 0 &&
                             front.more_axes == 0 && kernels::fits_matrix(vectors[front.tensor]);
  const auto sum = is_column_sum ? kernels::column_sums(vectors[front.tensor]) * front.exponent
                                 : weighted_sum(gauge, [&](const BoundLeg& leg) {
                                     return vectors[leg.tensor].to(at::kDouble) * leg.exponent;
                                   });
  if (!gauge.inverse_gram.defined()) return sum / weights(gauge, 2, sum.dim());
  const int64_t axis = gauge.legs.front().map.axis();
  return at::tensordot(gauge.inverse_gram, sum, {1}, {axis}).movedim(0, axis);
}

at::Tensor shift_scale(const GaugePlan& gauge, const Tensors& vectors) {
  const auto sum = weighted_sum(gauge, [&](const BoundLeg& leg) {
    return vectors[leg.tensor].to(at::kDouble).abs() * std::abs(leg.exponent);
  });
  return sum / weights(gauge, 2, sum.dim());
}

at::Tensor shift_counts(const GaugePlan& gauge) {
  return weights(gauge, 0, gauge.legs.front().map.dim());
}

at::Tensor shift_of_leg(const BoundLeg& leg, const at::Tensor& shift) {
  // What is exchanged with the rows of a table.
  if (shift.dim() < leg.map.dim()) return leg.map.gather_vector(shift, 0);
  return without_axes(leg.map.gather(shift, 0) * leg.exponent, leg.more_axes);
}

at::Tensor along_axis(const at::Tensor& vector, int64_t axis, int64_t dim) {
  std::vector<int64_t> shape(dim, 1);
  shape[axis] = -1;
  return vector.reshape(shape);
}

at::Tensor shift_of_weights(const GaugePlan& gauge, const Tensors& weights) {
  const auto& first = gauge.legs.front();
  if (!first.gain) return shift_part(gauge, weights);
  Tensors seen = weights;
  seen[first.tensor] =
      weights[first.tensor] * along_axis(weights[*first.gain], first.map.axis(), first.map.dim());
  return shift_part(gauge, seen);
}

void add_shift_(const GaugePlan& gauge, const at::Tensor& shift, double sign, Tensors& weights) {
  for (size_t l = 0; l < gauge.shift_legs(); ++l) {
    const auto& leg = gauge.legs[l];
    auto change = shift_of_leg(leg, shift);
    if (leg.gain) change = change / along_axis(weights[*leg.gain], leg.map.axis(), leg.map.dim());
    weights[leg.tensor].add_(change, sign);
  }
}

}  // namespace ddc
