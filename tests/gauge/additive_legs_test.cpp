// Shifts whose tensors differ in their numbers of axes or share rows, and exchanges along a residual
// stream: they are gauges, and optimizers hold them.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "coordinates/plan.h"
#include "ddc/gauge/action.h"
#include "ddc/gauge/norm.h"
#include "ddc/testing/gauge_invariants.h"
#include "support/errors.h"
#include "support/legs.h"

namespace ddc::tests {
namespace {

Parameters drawn(const std::vector<std::pair<std::string, std::vector<int64_t>>>& shapes) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(3);
  Parameters params;
  for (const auto& [name, shape] : shapes) {
    params.add(name, at::randn(shape, generator, at::kDouble).requires_grad_());
  }
  return params;
}

at::Tensor batch_of(std::vector<int64_t> shape, int64_t number) {
  return at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(100 + number), at::kDouble);
}

at::Tensor indices(int64_t most, std::vector<int64_t> shape, int64_t number) {
  return at::randint(most, shape, at::make_generator<at::CPUGeneratorImpl>(200 + number),
                     at::kLong);
}

/// Something of which every entry matters.
at::Tensor read_out(const Parameters& params, const at::Tensor& hidden) {
  return at::tanh(hidden.matmul(params["out"].tensor)).square().mean();
}

/// A ViT's embedding: patches with a bias at positions 1 to 4, a class token at position 0.
const Gauge patches_exchange{
    .name = "positions:exchange",
    .action = Action::shift,
    .channels = 2,
    .legs = {{.tensor = "positions", .axis = 1, .exponent = -1, .channel_of = {1, 0, 0, 0, 0}},
             {.tensor = "class_token", .axis = 1, .channel_of = {1}},
             {.tensor = "patch_bias", .axis = -1, .channel_of = {0}}}};

Parameters patches_params() {
  return drawn({{"class_token", {1, 1, 3}},
                {"positions", {1, 5, 3}},
                {"patch", {2, 3}},
                {"patch_bias", {3}},
                {"out", {3, 2}}});
}

at::Tensor patches_loss(const Parameters& params, int64_t batch) {
  const auto patches =
      batch_of({6, 4, 2}, batch).matmul(params["patch"].tensor) + params["patch_bias"].tensor;
  const auto tokens = at::cat({params["class_token"].tensor.expand({6, 1, 3}), patches}, 1);
  return read_out(params, tokens + params["positions"].tensor);
}

TEST(ShiftLegs, OfAVectorAreARowBesideTheRowsOfATable) {
  const auto params = patches_params();
  EXPECT_EQ(dimension(patches_exchange, params), 6);
  const auto report =
      testing::check_gauge_invariants(patches_exchange, params, patches_loss, {.steps = 10});
  EXPECT_TRUE(report.ok()) << report;
}

TEST(ShiftLegs, OfAVectorTakeTheWholeShift) {
  const auto params = patches_params();
  const auto before = params.clone();
  const auto shift = at::arange(6, at::kDouble).view({1, 2, 3});
  act_(patches_exchange, shift, params);
  const auto moved = [&](const char* name) { return params[name].tensor - before[name].tensor; };
  EXPECT_TRUE(at::allclose(moved("patch_bias"), shift[0][0]));
  EXPECT_TRUE(at::allclose(moved("class_token").flatten(), shift[0][1]));
  EXPECT_TRUE(at::allclose(moved("positions")[0][0], -shift[0][1]));
  EXPECT_TRUE(at::allclose(moved("positions")[0][4], -shift[0][0]));
}

TEST(ShiftLegs, OfAVectorMustFitTheRowsAndComeAfterThem) {
  const auto params = patches_params();
  auto gauge = patches_exchange;
  gauge.legs[2].tensor = "patch";
  expect_error([&] { validate(gauge, params); }, {"'patch'", "same shift vector"});
  gauge = patches_exchange;
  std::swap(gauge.legs[0], gauge.legs[2]);
  expect_error([&] { validate(gauge, params); }, {"'patch_bias'", "axis -1"});
  gauge = patches_exchange;
  gauge.action = Action::scale;
  expect_error([&] { validate(gauge, params); }, {"'patch_bias'", "axis -1"});
}

/// BERT's embedding: the sum of a row of each of three tables. What one table gains, either of the
/// others may lose.
const Gauge tables_exchange{
    .name = "words:exchange",
    .action = Action::shift,
    .channels = 2,
    .legs = {{.tensor = "words", .channel_of = channel_maps::whole(7)},
             {.tensor = "words", .channel_of = std::vector<int64_t>(7, 1)},
             {.tensor = "positions", .exponent = -1, .channel_of = channel_maps::whole(4)},
             {.tensor = "types", .exponent = -1, .channel_of = {1, 1}}}};

Parameters tables_params() {
  return drawn({{"words", {7, 3}}, {"positions", {4, 3}}, {"types", {2, 3}}, {"out", {3, 2}}});
}

at::Tensor tables_loss(const Parameters& params, int64_t batch) {
  return read_out(params, params["words"].tensor.index({indices(7, {6, 4}, batch)}) +
                              params["types"].tensor.index({indices(2, {6, 4}, batch)}) +
                              params["positions"].tensor);
}

TEST(ShiftLegs, MayShareRows) {
  const auto params = tables_params();
  EXPECT_EQ(dimension(tables_exchange, params), 6);
  const auto report =
      testing::check_gauge_invariants(tables_exchange, params, tables_loss, {.steps = 10});
  EXPECT_TRUE(report.ok()) << report;
}

TEST(ShiftLegs, OfDifferentChannelsMustBeIndependent) {
  const auto params = tables_params();
  auto gauge = tables_exchange;
  gauge.legs[2].channel_of = channel_maps::whole(4);
  gauge.legs[3] = {.tensor = "positions", .exponent = -1, .channel_of = {1, 1, 1, 1}};
  std::vector<GroupedParameter> table;
  for (const auto& parameter : params) table.push_back({parameter, 0});
  expect_error([&] { compile(table, {gauge}); }, {"words:exchange", "not independent"});
}

/// A stream that goes on from a norm: n(h + branch(h)) with h = gain * n(x) + shift.
at::Tensor stream_loss(const Parameters& params, int64_t batch) {
  const auto value = [&](const char* name) { return params[name].tensor; };
  const auto norm = [](const at::Tensor& x) { return at::layer_norm(x, {x.size(-1)}); };
  const auto h = norm(batch_of({6, 3}, batch).matmul(value("in"))) * value("gain") + value("shift");
  const auto inner = at::tanh(h.matmul(value("up").t()) + value("up_bias"));
  return read_out(params, norm(h + inner.matmul(value("down")) + value("down_bias")));
}

TEST(NormShiftExchange, GoesOnToTheBiasThatIsAddedNextToTheStream) {
  const auto params = drawn({{"in", {3, 4}},
                             {"gain", {4}},
                             {"shift", {4}},
                             {"up", {5, 4}},
                             {"up_bias", {5}},
                             {"down", {5, 4}},
                             {"down_bias", {4}},
                             {"out", {4, 2}}});
  const auto gauge = norm_shift_exchange({.gain = params["gain"],
                                          .shift = params["shift"],
                                          .readers = {{params["up"], params["up_bias"]}},
                                          .added_next = params["down_bias"]});
  EXPECT_EQ(gauge.legs,
            (Legs{leg("shift", 0, 1), seen_through(leg("up", 1, 1), {.bias = "up_bias"}),
                  leg("down_bias", 0, 1)}));
  const auto report = testing::check_gauge_invariants(gauge, params, stream_loss, {.steps = 10});
  EXPECT_TRUE(report.ok()) << report;
  // Without it, the stream sees the shift.
  auto part = gauge;
  part.legs.pop_back();
  const auto broken = testing::check_gauge_invariants(part, params, stream_loss, {.steps = 1});
  EXPECT_FALSE(broken.ok());
}

}  // namespace
}  // namespace ddc::tests
