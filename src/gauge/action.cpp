#include "ddc/gauge/action.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "gauge/leg_maps.h"
#include "linalg/rotation.h"

namespace ddc {
namespace {

std::vector<int64_t> element_shape(const Gauge& gauge, const Parameters& params) {
  if (gauge.mixes()) return {gauge.blocks(), gauge.block, gauge.block};
  if (gauge.action != Action::shift) return {gauge.channels};
  const auto& leg = gauge.legs.front();
  auto shape = params[leg.tensor].tensor.sizes().vec();
  shape[leg.axis] = gauge.channels;
  return shape;
}

/// Whether an element of a rotation is given to `act_` as reflections, one after the other: their unit normals,
/// [blocks, block, fewer than block]. In a wide residual stream a matrix would take as long as hundreds of
/// evaluations.
bool are_reflections(const Gauge& gauge, const GroupElement& element) {
  return gauge.action == Action::rotation && element.size(2) < gauge.block;
}

void check_element(const Gauge& gauge, const GroupElement& element, const Parameters& params) {
  validate(gauge, params);
  auto shape = element_shape(gauge, params);
  if (element.dim() == 3 && are_reflections(gauge, element)) shape[2] = element.size(2);
  TORCH_CHECK(element.sizes() == at::IntArrayRef(shape), "gauge '", gauge.name,
              "': a group element has shape ", at::IntArrayRef(shape), ", got ", element.sizes());
}

void check_parts(const std::vector<Gauge>& gauges, const std::vector<GroupElement>& element) {
  TORCH_CHECK(gauges.size() == element.size(), "an element of ", gauges.size(),
              " gauges needs as many parts, got ", element.size());
}

at::Tensor value_of(const Parameters& params, const std::string& name) {
  return params[name].tensor.to(at::kDouble);
}

/// A vector along one axis of a tensor, of a matrix if nothing else is said.
at::Tensor along(const at::Tensor& vector, int64_t axis, int64_t dim = 2) {
  std::vector<int64_t> shape(dim, 1);
  shape[axis] = -1;
  return vector.view(shape);
}

at::Tensor gain_of(const Leg& leg, const Parameters& params) {
  const auto gain = value_of(params, leg.through.gain) + leg.through.gain_offset;
  return along(gain, leg.axis, params[leg.tensor].tensor.dim());
}

/// The projector on the vectors that are orthogonal to the ones.
at::Tensor orthogonal_to_ones(int64_t size) {
  const auto basis = helmert(size);
  return basis.matmul(basis.t());
}

/// The matrices with which a leg moves, of a group element or (`tangent`) of an element of its Lie
/// algebra.
at::Tensor leg_matrices(const Gauge& gauge, const Leg& leg, const at::Tensor& element,
                        bool tangent) {
  if (gauge.action == Action::rotation || leg.exponent > 0) return element;
  return (tangent ? element.neg() : at::linalg_inv(element)).transpose(-1, -2);
}

/// What a leg's tensor (seen through its gain) becomes, or by how much it moves (`tangent`).
at::Tensor moved(const Gauge& gauge, const Leg& leg, const at::Tensor& element,
                 const at::Tensor& view, bool tangent) {
  const auto part = element.to(view.device());
  if (gauge.mixes()) {
    const auto map = block_map_of(gauge, leg, view);
    auto result = tangent ? at::zeros_like(view) : view.clone();
    if (!tangent && are_reflections(gauge, part)) {
      auto values = map.take(view);
      for (int64_t k = 0; k < part.size(2); ++k) {
        const auto normal = part.narrow(2, k, 1);
        values = values - 2 * normal * normal.transpose(1, 2).matmul(values);
      }
      map.put_(result, values);
    } else {
      map.put_(result, leg_matrices(gauge, leg, part, tangent).matmul(map.take(view)));
    }
    return result;
  }
  if (gauge.action == Action::scale) {
    const auto map = map_of(gauge, leg, view);
    return tangent ? view * map.gather_vector(part * leg.exponent, 0)
                   : view * map.gather_vector((part * leg.exponent).exp(), 1);
  }
  if (gauge.action == Action::exchange) {
    const auto shift = map_of(gauge, leg, view).gather_vector(part, 0).expand(view.sizes());
    return tangent ? shift : view + shift;
  }
  // A leg of a shift has what its first leg has.
  const int64_t more = part.dim() - view.dim();
  const auto all = map_of(gauge, leg, view, more).gather(part, 0) * leg.exponent;
  const auto shift = without_axes(all, more).expand(view.sizes());
  return tangent ? shift : view + shift;
}

/// Copies in float64 are made of so many entries of a leg's tensor at a time.
constexpr int64_t most_at_once = 1 << 22;

/// A part of a leg's tensor: a range of another axis than the leg's.
struct Slice {
  int64_t axis = -1;  ///< -1: the whole tensor
  int64_t start = 0;
  int64_t size = 0;

  /// The values of the leg's tensor, and of those it looks through.
  Parameters of(const Leg& leg, const Parameters& params) const {
    Parameters result;
    const auto add = [&](const std::string& name, bool cut, int64_t along) {
      if (name.empty() || result.contains(name)) return;
      const auto values = params[name].tensor.detach();
      result.add(name, cut ? values.narrow(along, start, size) : values);
    };
    add(leg.tensor, axis >= 0, axis);
    add(leg.through.gain, false, 0);
    add(leg.through.shift, false, 0);
    // It is as long as the other axis of a matrix.
    add(leg.through.bias, axis >= 0, 0);
    return result;
  }
  /// The same range of an element of a shift, or of its charge, which have the other axes of the tensor.
  at::Tensor of_shift(const at::Tensor& values, int64_t dim) const {
    return axis < 0 ? values : values.narrow(axis + values.dim() - dim, start, size);
  }
};

/// What a leg acts on, cut so that slices do not look at each other.
std::vector<Slice> slices_of(const Leg& leg, const at::Tensor& tensor) {
  int64_t axis = -1;
  for (int64_t other = 0; other < tensor.dim() && leg.axis >= 0; ++other) {
    if (other == leg.axis || (leg.stacked && other == 0)) continue;
    if (axis < 0 || tensor.size(other) > tensor.size(axis)) axis = other;
  }
  if (axis < 0 || tensor.numel() <= most_at_once) return {{}};
  std::vector<Slice> result;
  const int64_t size = std::max<int64_t>(1, most_at_once * tensor.size(axis) / tensor.numel());
  for (int64_t start = 0; start < tensor.size(axis); start += size) {
    result.push_back({axis, start, std::min(size, tensor.size(axis) - start)});
  }
  return result;
}

/// All tensors that an element moves, with their new values or their derivatives (`tangent`), in
/// float64 and differentiable.
std::map<std::string, at::Tensor> moved(const Gauge& gauge, const GroupElement& element,
                                        const Parameters& params, bool tangent) {
  std::map<std::string, at::Tensor> result;
  const auto current = [&](const std::string& name) {
    const auto found = result.find(name);
    if (found != result.end()) return found->second;
    return tangent ? at::zeros_like(value_of(params, name)) : value_of(params, name);
  };
  for (size_t k = 0; k < gauge.legs.size(); ++k) {
    const auto& leg = gauge.legs[k];
    const auto weight = value_of(params, leg.tensor);
    if (gauge.action == Action::exchange && k > 0) {
      const auto map = map_of(gauge, leg, weight);
      const auto given = map.gather_vector(element.to(weight.device()), 0);
      if (weight.dim() == 1) {
        result[leg.tensor] = current(leg.tensor) - given;
      } else {
        const auto read = (weight * given).sum(leg.axis);
        result[leg.through.bias] = current(leg.through.bias) - read;
      }
      continue;
    }
    if (leg.through.empty()) {
      // Two legs of one gauge on one tensor act one after the other.
      const bool again = result.count(leg.tensor) > 0;
      // Copies of an embedding in float64 are a large part of a model.
      auto base = again && !tangent ? current(leg.tensor) : weight;
      if (leg.offset != 0) base = base + leg.offset;
      auto value = moved(gauge, leg, element, base, tangent);
      if (!tangent && leg.offset != 0) value = value - leg.offset;
      result[leg.tensor] = again && tangent ? current(leg.tensor) + value : value;
      continue;
    }
    const auto gain = gain_of(leg, params);
    const auto value = moved(gauge, leg, element, weight * gain, tangent) / gain;
    result[leg.tensor] = value;
    if (leg.through.shift.empty()) continue;
    const auto change = tangent ? value : value - weight;
    const auto shift = along(value_of(params, leg.through.shift), leg.axis);
    result[leg.through.bias] = current(leg.through.bias) - (change * shift).sum(leg.axis);
  }
  return result;
}

/// A basis of the group's Lie algebra, one element per entry.
std::vector<at::Tensor> algebra_basis(const Gauge& gauge, const Parameters& params) {
  std::vector<at::Tensor> result;
  const auto shape = element_shape(gauge, params);
  if (gauge.action != Action::rotation) {
    const auto count = c10::multiply_integers(shape);
    const auto all = at::eye(count, at::kDouble);
    for (int64_t i = 0; i < count; ++i) result.push_back(all[i].view(shape));
    return result;
  }
  const int64_t n = gauge.block - (gauge.fixes_ones ? 1 : 0);
  const auto basis = gauge.fixes_ones ? helmert(gauge.block) : at::eye(n, at::kDouble);
  for (int64_t b = 0; b < gauge.blocks(); ++b) {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = i + 1; j < n; ++j) {
        auto element = at::zeros(shape, at::kDouble);
        const auto outer = at::outer(basis.select(1, i), basis.select(1, j));
        element[b].copy_(outer - outer.t());
        result.push_back(element);
      }
    }
  }
  return result;
}

/// The gradient with respect to a leg's tensor as it is seen through its gain, at constant
/// W shift + bias.
at::Tensor seen_gradient(const Leg& leg, const Parameters& params, const Parameters& gradients) {
  auto gradient = value_of(gradients, leg.tensor);
  if (leg.through.empty()) return gradient;
  if (!leg.through.shift.empty()) {
    gradient = gradient - along(value_of(gradients, leg.through.bias), 1 - leg.axis) *
                              along(value_of(params, leg.through.shift), leg.axis);
  }
  return gradient / gain_of(leg, params);
}

}  // namespace

GroupElement identity_element(const Gauge& gauge, const Parameters& params) {
  validate(gauge, params);
  const auto shape = element_shape(gauge, params);
  return gauge.mixes() ? at::eye(gauge.block, at::kDouble).expand(shape).clone()
                       : at::zeros(shape, at::kDouble);
}

GroupElement random_element(const Gauge& gauge, const Parameters& params, double size,
                            std::optional<at::Generator> generator) {
  validate(gauge, params);
  auto drawn = at::randn(element_shape(gauge, params), generator, at::kDouble) * size;
  if (!gauge.mixes()) return drawn;
  if (gauge.action == Action::linear) {
    // By Wigner's semicircle law this bounds the logarithms of the factors by about 2 * size.
    return at::linalg_matrix_exp(drawn / std::sqrt(static_cast<double>(gauge.block)));
  }
  drawn = drawn - drawn.transpose(-1, -2);
  if (gauge.fixes_ones) {
    const auto projector = orthogonal_to_ones(gauge.block);
    drawn = projector.matmul(drawn).matmul(projector);
  }
  return at::linalg_matrix_exp(drawn);
}

GroupElement compose(const Gauge& gauge, const GroupElement& second, const GroupElement& first) {
  return gauge.mixes() ? second.matmul(first) : second + first;
}

GroupElement inverse(const Gauge& gauge, const GroupElement& element) {
  if (!gauge.mixes()) return -element;
  return gauge.action == Action::rotation ? element.transpose(-1, -2).clone()
                                          : at::linalg_inv(element);
}

void act_(const Gauge& gauge, const GroupElement& element, const Parameters& params) {
  check_element(gauge, element, params);
  const at::NoGradGuard no_grad;
  const auto move = [](const Gauge& part, const GroupElement& by, const Parameters& of) {
    for (const auto& [name, value] : moved(part, by, of, /*tangent=*/false)) {
      at::Tensor(of[name].tensor.detach()).copy_(value);
    }
  };
  // Legs that do not look at each other: one at a time, and a slice of it, what is held in float64 is
  // little, and not all that a residual stream runs through.
  const bool apart =
      gauge.mixes() || (gauge.action != Action::exchange &&
                        std::all_of(gauge.legs.begin(), gauge.legs.end(),
                                    [](const Leg& leg) { return leg.through.empty(); }));
  if (!apart) return move(gauge, element, params);
  for (const auto& leg : gauge.legs) {
    auto part = gauge;
    part.legs = {leg};
    const auto& tensor = params[leg.tensor].tensor;
    for (const auto& slice : slices_of(leg, tensor)) {
      const bool cut = gauge.action == Action::shift;
      move(part, cut ? slice.of_shift(element, tensor.dim()) : element, slice.of(leg, params));
    }
  }
}

void act_on_gradient_(const Gauge& gauge, const GroupElement& element, const Parameters& params,
                      const Parameters& gradients) {
  check_element(gauge, element, params);
  check_element(gauge, element, gradients);
  // L'(theta') = L(g^-1 theta'): the gradient moves by the transposed derivative of the inverse.
  Parameters there;
  {
    const at::NoGradGuard no_grad;
    auto copy = Parameters();
    for (const auto& [name, tensor] : params)
      copy.add(name, tensor.detach().to(at::kDouble).clone());
    act_(gauge, element, copy);
    for (const auto& [name, tensor] : copy) there.add(name, tensor.requires_grad_());
  }
  const at::AutoGradMode enable_grad(true);
  at::Tensor product;
  const auto back = moved(gauge, inverse(gauge, element), there, /*tangent=*/false);
  for (const auto& [name, tensor] : there) {
    const auto& value = back.count(name) > 0 ? back.at(name) : tensor;
    const auto part = (value * gradients[name].tensor.detach().to(at::kDouble)).sum();
    product = product.defined() ? product + part : part;
  }
  product.backward();
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : there) at::Tensor(gradients[name].tensor).copy_(tensor.grad());
}

std::vector<GroupElement> random_element(const std::vector<Gauge>& gauges, const Parameters& params,
                                         double size, std::optional<at::Generator> generator) {
  std::vector<GroupElement> element;
  for (const auto& gauge : gauges) {
    element.push_back(random_element(gauge, params, size, generator));
  }
  return element;
}

void act_(const std::vector<Gauge>& gauges, const std::vector<GroupElement>& element,
          const Parameters& params) {
  check_parts(gauges, element);
  for (size_t k = 0; k < gauges.size(); ++k) act_(gauges[k], element[k], params);
}

void act_on_gradient_(const std::vector<Gauge>& gauges, const std::vector<GroupElement>& element,
                      const Parameters& params, const Parameters& gradients) {
  check_parts(gauges, element);
  const auto there = params.clone();
  for (size_t k = 0; k < gauges.size(); ++k) {
    act_on_gradient_(gauges[k], element[k], there, gradients);
    act_(gauges[k], element[k], there);
  }
}

std::map<std::string, at::Tensor> orbit_tangent(const Gauge& gauge, const at::Tensor& element,
                                                const Parameters& params) {
  check_element(gauge, element, params);
  const at::NoGradGuard no_grad;
  return moved(gauge, element, params, /*tangent=*/true);
}

at::Tensor orbit_tangents(const Gauge& gauge, const Parameters& params) {
  validate(gauge, params);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> rows;
  for (const auto& element : algebra_basis(gauge, params)) {
    const auto tangent = moved(gauge, element, params, /*tangent=*/true);
    std::vector<at::Tensor> parts;
    for (const auto& [name, tensor] : params) {
      parts.push_back(tangent.count(name) > 0 ? tangent.at(name).flatten()
                                              : at::zeros({tensor.numel()}, at::kDouble));
    }
    rows.push_back(at::cat(parts));
  }
  return at::stack(rows);
}

Charge noether_charge(const Gauge& gauge, const Parameters& params, const Parameters& gradients) {
  validate(gauge, params);
  validate(gauge, gradients);
  const at::NoGradGuard no_grad;
  const auto shape = element_shape(gauge, params);
  Charge charge{at::zeros(shape, at::kDouble), at::zeros(shape, at::kDouble)};
  const auto add = [&](const at::Tensor& value, const at::Tensor& scale) {
    charge.value += value.to(charge.value.device());
    charge.scale += scale.to(charge.scale.device());
  };
  for (size_t k = 0; k < gauge.legs.size(); ++k) {
    const auto& leg = gauge.legs[k];
    if (gauge.action == Action::exchange && k > 0) {
      const auto weight = value_of(params, leg.tensor);
      const auto terms = weight.dim() == 1
                             ? -value_of(gradients, leg.tensor)
                             : -weight * along(value_of(gradients, leg.through.bias), 1 - leg.axis);
      const auto map = map_of(gauge, leg, weight);
      add(map.scatter_all(terms), map.scatter_all(terms.abs()));
      continue;
    }
    const auto& tensor = params[leg.tensor].tensor;
    at::Tensor squares_of_weight;
    at::Tensor squares_of_gradient;
    for (const auto& slice : slices_of(leg, tensor)) {
      const auto weights = slice.of(leg, params);
      const auto gradient = seen_gradient(leg, weights, slice.of(leg, gradients));
      // What is added charges the gradient alone.
      const bool weighted = gauge.mixes() || gauge.action == Action::scale;
      auto weight = weighted ? value_of(weights, leg.tensor) : at::Tensor();
      if (weight.defined() && leg.offset != 0) weight = weight + leg.offset;
      if (weight.defined() && !leg.through.empty()) weight = weight * gain_of(leg, weights);
      if (gauge.mixes()) {
        const auto map = block_map_of(gauge, leg, weight);
        const auto x = map.take(weight);
        const auto g = map.take(gradient);
        auto product = g.matmul(x.transpose(-1, -2));
        if (leg.exponent < 0) product = -product.transpose(-1, -2);
        if (gauge.action == Action::rotation) product = product - product.transpose(-1, -2);
        add(product, at::zeros_like(charge.scale));
        const auto add_squares = [](at::Tensor& sum, const at::Tensor& values) {
          const auto squares = values.square().sum({1, 2}, true);
          sum = sum.defined() ? sum + squares : squares;
        };
        add_squares(squares_of_weight, x);
        add_squares(squares_of_gradient, g);
      } else if (gauge.action == Action::exchange) {
        const auto map = map_of(gauge, leg, gradient);
        add(map.scatter_all(gradient), map.scatter_all(gradient.abs()));
      } else if (gauge.action == Action::shift) {
        const int64_t more = charge.value.dim() - gradient.dim();
        const auto map = map_of(gauge, leg, gradient, more);
        auto terms = with_more_axes(gradient, more) * leg.exponent;
        const auto add_to = [&](const at::Tensor& all, const at::Tensor& part) {
          slice.of_shift(all, tensor.dim()).add_(part.to(all.device()));
        };
        add_to(charge.value, map.scatter(terms));
        add_to(charge.scale, map.scatter(terms.abs_()));
      } else {
        const auto map = map_of(gauge, leg, weight);
        auto terms = gradient * weight;
        terms.mul_(leg.exponent);
        charge.value += map.scatter_all(terms).to(charge.value.device());
        charge.scale += map.scatter_all(terms.abs_()).to(charge.scale.device());
      }
    }
    if (gauge.mixes()) {
      add(at::zeros_like(charge.value), (squares_of_gradient * squares_of_weight).sqrt());
    }
  }
  if (gauge.fixes_ones) {
    const auto projector = orthogonal_to_ones(gauge.block);
    charge.value = projector.matmul(charge.value).matmul(projector);
  }
  return charge;
}

}  // namespace ddc
