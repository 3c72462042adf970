#include "ddc/gauge/action.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "ddc/gauge/channel_map.h"

namespace ddc {
namespace {

ChannelMap map_of(const Gauge& gauge, const Leg& leg, const at::Tensor& tensor) {
  return ChannelMap(leg.channel_of, gauge.channels, leg.axis, tensor.size(leg.axis), tensor.dim(),
                    tensor.device());
}

std::vector<int64_t> element_shape(const Gauge& gauge, const Parameters& params) {
  if (gauge.action == Action::scale) return {gauge.channels};
  const auto& leg = gauge.legs.front();
  auto shape = params[leg.tensor].tensor.sizes().vec();
  shape[leg.axis] = gauge.channels;
  return shape;
}

void check_element(const Gauge& gauge, const GroupElement& element, const Parameters& params) {
  validate(gauge, params);
  const auto shape = element_shape(gauge, params);
  TORCH_CHECK(element.sizes() == at::IntArrayRef(shape), "gauge '", gauge.name,
              "': a group element has shape ", at::IntArrayRef(shape), ", got ", element.sizes());
}

}  // namespace

GroupElement identity_element(const Gauge& gauge, const Parameters& params) {
  validate(gauge, params);
  return at::zeros(element_shape(gauge, params), at::kDouble);
}

GroupElement random_element(const Gauge& gauge, const Parameters& params, double size,
                            std::optional<at::Generator> generator) {
  validate(gauge, params);
  return at::randn(element_shape(gauge, params), generator, at::kDouble) * size;
}

void act_(const Gauge& gauge, const GroupElement& element, const Parameters& params) {
  check_element(gauge, element, params);
  const at::NoGradGuard no_grad;
  for (const auto& leg : gauge.legs) {
    auto tensor = params[leg.tensor].tensor;
    const auto map = map_of(gauge, leg, tensor);
    const auto part = element.to(tensor.device());
    const auto value = tensor.to(at::kDouble);
    tensor.copy_(gauge.action == Action::shift
                     ? value + map.gather(part, 0) * leg.exponent
                     : (value + leg.offset) * map.gather_vector((part * leg.exponent).exp(), 1) -
                           leg.offset);
  }
}

void act_on_gradient_(const Gauge& gauge, const GroupElement& element,
                      const Parameters& gradients) {
  check_element(gauge, element, gradients);
  if (gauge.action == Action::shift) return;
  const at::NoGradGuard no_grad;
  for (const auto& leg : gauge.legs) {
    auto tensor = gradients[leg.tensor].tensor;
    const auto factor = map_of(gauge, leg, tensor)
                            .gather_vector((element.to(tensor.device()) * -leg.exponent).exp(), 1);
    tensor.copy_(tensor.to(at::kDouble) * factor);
  }
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
  TORCH_CHECK(gauges.size() == element.size(), "an element of ", gauges.size(),
              " gauges needs as many parts, got ", element.size());
  for (size_t k = 0; k < gauges.size(); ++k) act_(gauges[k], element[k], params);
}

void act_on_gradient_(const std::vector<Gauge>& gauges, const std::vector<GroupElement>& element,
                      const Parameters& gradients) {
  TORCH_CHECK(gauges.size() == element.size(), "an element of ", gauges.size(),
              " gauges needs as many parts, got ", element.size());
  for (size_t k = 0; k < gauges.size(); ++k) act_on_gradient_(gauges[k], element[k], gradients);
}

Charge noether_charge(const Gauge& gauge, const Parameters& params, const Parameters& gradients) {
  validate(gauge, params);
  validate(gauge, gradients);
  const at::NoGradGuard no_grad;
  Charge charge{identity_element(gauge, params), identity_element(gauge, params)};
  for (const auto& leg : gauge.legs) {
    const auto tensor = params[leg.tensor].tensor;
    const auto map = map_of(gauge, leg, tensor);
    auto along = gradients[leg.tensor].tensor.to(at::kDouble) * leg.exponent;
    if (gauge.action == Action::scale) along *= tensor.to(at::kDouble) + leg.offset;
    const auto collect = [&](const at::Tensor& values) {
      const auto sums =
          gauge.action == Action::scale ? map.scatter_all(values) : map.scatter(values);
      return sums.to(charge.value.device());
    };
    charge.value += collect(along);
    charge.scale += collect(along.abs());
  }
  return charge;
}

}  // namespace ddc
