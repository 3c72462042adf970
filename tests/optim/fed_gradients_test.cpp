// Equivariance in the paper's form (its appendix "G-equivariance self-tests"): the copies are fed
// gradients that are related by the group but otherwise arbitrary, so that they also point along
// the orbit and the vertical rules have something to do.

#include <gtest/gtest.h>

#include "ddc/gauge/norm.h"
#include "ddc/gauge/rescale.h"
#include "ddc/gauge/shift.h"
#include "support/tolerances.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

struct Construction {
  std::string name;
  std::vector<std::vector<int64_t>> shapes;
  std::function<std::vector<Gauge>(const Parameters&)> gauges;
};

std::vector<Construction> constructions() {
  return {
      {"CrossEntropyBias",
       {{10}},
       [](const Parameters& p) { return std::vector{cross_entropy_shift(p["w0"])}; }},
      {"CrossEntropyRows",
       {{10, 6}},
       [](const Parameters& p) { return std::vector{cross_entropy_shift(p["w0"])}; }},
      {"ReluRescale",
       {{16, 8}, {4, 16}},
       [](const Parameters& p) {
         return std::vector{relu_rescale({.in = p["w0"], .out = {p["w1"]}, .whole = true})};
       }},
      {"ReluRescalePerChannel",
       {{16, 8}, {4, 16}},
       [](const Parameters& p) {
         return std::vector{relu_rescale({.in = p["w0"], .out = {p["w1"]}, .degree = 2})};
       }},
      {"NormScale",
       {{16}, {8, 16}},
       [](const Parameters& p) {
         return std::vector{norm_scale({.gain = p["w0"], .readers = {p["w1"]}})};
       }},
      {"ChainedRescale",
       {{16, 8}, {12, 16}, {10, 12}, {4, 10}},
       [](const Parameters& p) {
         return chained_rescale({.weights = {p["w0"], p["w1"], p["w2"], p["w3"]}, .whole = true});
       }},
      {"NormScaleAndRowShift",
       {{16}, {8, 16}},
       [](const Parameters& p) {
         return std::vector{norm_scale({.gain = p["w0"], .readers = {p["w1"]}}),
                            cross_entropy_shift(p["w1"])};
       }},
  };
}

class FedGradients : public ::testing::TestWithParam<
                         std::tuple<Construction, std::optional<Coordinates>, Vertical>> {};

TEST_P(FedGradients, KeepCopiesRelatedInFloat) {
  const auto& [construction, coordinates, vertical] = GetParam();
  auto random = generator(11);
  const auto draw = [&](bool is_weight) {
    Parameters table;
    for (size_t i = 0; i < construction.shapes.size(); ++i) {
      const auto& shape = construction.shapes[i];
      auto value = at::randn(shape, random, at::kFloat);
      // Gains are near one: a gain near zero makes the steps along a row shift huge.
      if (is_weight && shape.size() == 1) value = 1 + 0.3 * value;
      table.add("w" + std::to_string(i), value.requires_grad_());
    }
    return table;
  };
  const auto first = draw(true);
  const auto gauges = construction.gauges(first);
  const auto treatment = in_place({.coordinates = coordinates, .vertical = vertical});
  const auto element = random_element(gauges, first, 0.5, random);
  const auto second = first.clone();
  act_(gauges, element, second);
  DDCAdam first_optimizer(first, gauges, usual_options(), treatment);
  DDCAdam second_optimizer(second, gauges, usual_options(), treatment);
  const auto start = first_optimizer.gauge_coordinate(gauges[0].name).clone();
  for (int step = 0; step < 50; ++step) {
    const auto gradients = draw(false);
    const auto image = gradients.clone();
    act_on_gradient_(gauges, element, first, image);
    for (const auto& [name, tensor] : first) {
      tensor.mutable_grad() = gradients[name].tensor.detach();
      second[name].tensor.mutable_grad() = image[name].tensor.detach();
    }
    first_optimizer.step();
    second_optimizer.step();
  }
  const auto expected = first.clone();
  act_(gauges, element, expected);
  EXPECT_LE(relative_error(second, expected), kFedGradientTolerance);
  const double moved =
      (first_optimizer.gauge_coordinate(gauges[0].name) - start).abs().max().item<double>();
  if (vertical == Vertical::frozen) {
    EXPECT_LE(moved, kTeacherStudentDrift);
  } else {
    EXPECT_GE(moved, 1e-4);  // here there is a gradient along the orbit, and the rule follows it
  }
}

INSTANTIATE_TEST_SUITE_P(Constructions, FedGradients,
                         ::testing::Combine(::testing::ValuesIn(constructions()),
                                            ::testing::Values(std::optional<Coordinates>(),
                                                              std::optional(Coordinates::folded),
                                                              std::optional(Coordinates::balanced),
                                                              std::optional(Coordinates::standard),
                                                              std::optional(Coordinates::polar)),
                                            ::testing::Values(Vertical::frozen, Vertical::sgd,
                                                              Vertical::adam)),
                         [](const auto& instance) {
                           const auto& coordinates = std::get<1>(instance.param);
                           std::string name = std::get<0>(instance.param).name;
                           for (const char* part :
                                {coordinates ? to_string(*coordinates) : "default",
                                 to_string(std::get<2>(instance.param))}) {
                             name.append("_").append(part);
                           }
                           return name;
                         });

}  // namespace
}  // namespace ddc::tests
