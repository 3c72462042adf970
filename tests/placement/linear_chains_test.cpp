// Linear gauges that share tensors: chains, products of three, a gauge with both legs on one tensor. Two
// copies are bound alike only if all frames are found together.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "coordinates/plan.h"
#include "ddc/optim/adam.h"
#include "ddc/optim/muon.h"
#include "ddc/placement.h"
#include "ddc/testbeds/runs.h"

namespace ddc::tests {
namespace {

using testbeds::Batch;
using testbeds::Testbed;

/// In float64 over 20 steps; Adam makes steps of the size of others where a gradient is nearly zero.
constexpr double kEquivariant = 1e-8;

/// A gauge of one block that acts on axes of tensors, with their exponents.
struct Axis {
  std::string tensor;
  int64_t axis;
  double exponent;
};

Gauge linear(const std::string& name, int64_t size, const std::vector<Axis>& axes) {
  Gauge gauge;
  gauge.name = name;
  gauge.kind = "linear";
  gauge.action = Action::linear;
  gauge.channels = size;
  gauge.block = size;
  for (const auto& [tensor, axis, exponent] : axes) {
    gauge.legs.push_back({.tensor = tensor, .axis = axis, .exponent = exponent});
  }
  return gauge;
}

/// Legs on the channels `first` to `first + size` of one tensor's axis.
Leg part(const std::string& tensor, int64_t axis, double exponent, int64_t first, int64_t size,
         int64_t all) {
  Leg leg{.tensor = tensor, .axis = axis, .exponent = exponent};
  leg.channel_of.assign(static_cast<size_t>(all), -1);
  for (int64_t i = 0; i < size; ++i) leg.channel_of[static_cast<size_t>(first + i)] = i;
  return leg;
}

/// Both linear gauges of a head whose queries, keys and values are one tensor.
std::vector<Gauge> fused_gauges(int64_t axis) {
  auto qk = linear("qk", 4, {});
  qk.legs = {part("qkv", axis, 1, 0, 4, 12), part("qkv", axis, -1, 4, 4, 12)};
  auto vo = linear("vo", 4, {});
  vo.legs = {part("qkv", axis, 1, 8, 4, 12), {.tensor = "out", .axis = 1, .exponent = -1}};
  return {qk, vo};
}

at::Tensor fused_attention(const at::Tensor& qkv, const at::Tensor& out, const at::Tensor& x) {
  const auto heads = x.view({-1, 3, 6}).matmul(qkv);
  const auto scores = at::softmax(heads.narrow(-1, 0, 4).matmul(heads.narrow(-1, 4, 4).mT()), -1);
  return scores.matmul(heads.narrow(-1, 8, 4)).matmul(out.t());
}

/// Gauges of a norm between "down" and its readers "key" and "value".
Gauge norm_scale() {
  Gauge gauge;
  gauge.name = "norm";
  gauge.kind = "norm scale";
  gauge.action = Action::scale;
  gauge.channels = 4;
  gauge.legs = {{.tensor = "gain", .axis = 0, .exponent = 1},
                {.tensor = "key", .axis = 1, .exponent = -1},
                {.tensor = "value", .axis = 1, .exponent = -1}};
  return gauge;
}

Gauge latent_rotation() {
  auto gauge = linear("latent", 4, {{"down", 0, 1}, {"key", 1, 1}, {"value", 1, 1}});
  gauge.kind = "rotation";
  gauge.action = Action::rotation;
  for (auto& leg : gauge.legs) {
    if (leg.tensor != "down") leg.through.gain = "gain";
  }
  return gauge;
}

struct Network {
  std::string name;
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;
  std::function<at::Tensor(const Parameters&, const at::Tensor& inputs)> outputs;
  std::vector<Gauge> gauges;
};

std::vector<Network> networks() {
  const auto w = [](const Parameters& p, const char* name) { return p[name].tensor; };
  return {
      {"deep_linear",
       {{"a", {4, 6}}, {"b", {4, 4}}, {"c", {4, 4}}, {"d", {5, 4}}},
       [w](const Parameters& p, const at::Tensor& x) {
         return x.matmul(w(p, "a").t())
             .matmul(w(p, "b").t())
             .matmul(w(p, "c").t())
             .matmul(w(p, "d").t());
       },
       {linear("ab", 4, {{"a", 0, 1}, {"b", 1, -1}}), linear("bc", 4, {{"b", 0, 1}, {"c", 1, -1}}),
        linear("cd", 4, {{"c", 0, 1}, {"d", 1, -1}})}},
      // y_k = sum_ij B_kij (U x)_i (V x)_j
      {"bilinear",
       {{"u", {4, 6}}, {"v", {3, 6}}, {"core", {5, 4, 3}}},
       [w](const Parameters& p, const at::Tensor& x) {
         return at::einsum("kij,bi,bj->bk",
                           {w(p, "core"), x.matmul(w(p, "u").t()), x.matmul(w(p, "v").t())});
       },
       {linear("u", 4, {{"u", 0, 1}, {"core", 1, -1}}),
        linear("v", 3, {{"v", 0, 1}, {"core", 2, -1}})}},
      {"tucker",
       {{"u", {4, 6}}, {"v", {3, 6}}, {"o", {7, 5}}, {"core", {5, 4, 3}}},
       [w](const Parameters& p, const at::Tensor& x) {
         return at::einsum("kij,bi,bj,ok->bo", {w(p, "core"), x.matmul(w(p, "u").t()),
                                                x.matmul(w(p, "v").t()), w(p, "o")});
       },
       {linear("u", 4, {{"u", 0, 1}, {"core", 1, -1}}),
        linear("v", 3, {{"v", 0, 1}, {"core", 2, -1}}),
        linear("o", 5, {{"core", 0, 1}, {"o", 1, -1}})}},
      // Keys and values from one latent; the heads' own linear gauge between values and output.
      {"latent_attention",
       {{"down", {4, 6}}, {"key", {5, 4}}, {"value", {3, 4}}, {"query", {5, 6}}, {"out", {6, 3}}},
       [w](const Parameters& p, const at::Tensor& x) {
         const auto tokens = x.view({-1, 3, 6});
         const auto latent = tokens.matmul(w(p, "down").t());
         const auto scores = at::softmax(
             tokens.matmul(w(p, "query").t()).matmul(latent.matmul(w(p, "key").t()).mT()), -1);
         return scores.matmul(latent.matmul(w(p, "value").t())).matmul(w(p, "out").t());
       },
       {linear("latent", 4, {{"down", 0, 1}, {"key", 1, -1}, {"value", 1, -1}}),
        linear("qk", 5, {{"query", 0, 1}, {"key", 0, -1}}),
        linear("vo", 3, {{"value", 0, 1}, {"out", 1, -1}})}},
      // The same with a norm on the latent, of which a rotation is left, seen through its gain.
      {"latent_attention_norm",
       {{"down", {4, 6}},
        {"gain", {4}},
        {"key", {5, 4}},
        {"value", {3, 4}},
        {"query", {5, 6}},
        {"out", {6, 3}}},
       [w](const Parameters& p, const at::Tensor& x) {
         const auto tokens = x.view({-1, 3, 6});
         const auto read = tokens.matmul(w(p, "down").t());
         const auto latent = read * at::rsqrt(read.square().mean(-1, true) + 1e-3) * w(p, "gain");
         const auto scores = at::softmax(
             tokens.matmul(w(p, "query").t()).matmul(latent.matmul(w(p, "key").t()).mT()), -1);
         return scores.matmul(latent.matmul(w(p, "value").t())).matmul(w(p, "out").t());
       },
       {norm_scale(), latent_rotation(), linear("qk", 5, {{"query", 0, 1}, {"key", 0, -1}}),
        linear("vo", 3, {{"value", 0, 1}, {"out", 1, -1}})}},
      // Queries, keys and values in one projection, whose rows (Llama) or columns (GPT-2) are theirs.
      {"fused_rows",
       {{"qkv", {12, 6}}, {"out", {6, 4}}},
       [w](const Parameters& p, const at::Tensor& x) {
         return fused_attention(w(p, "qkv").t(), w(p, "out"), x);
       },
       fused_gauges(0)},
      {"fused_columns",
       {{"qkv", {6, 12}}, {"out", {6, 4}}},
       [w](const Parameters& p, const at::Tensor& x) {
         return fused_attention(w(p, "qkv"), w(p, "out"), x);
       },
       fused_gauges(1)},
      // h' = A h + B x, y = C h: the state's basis is free.
      {"state_space",
       {{"a", {4, 4}}, {"b", {4, 3}}, {"c", {2, 4}}},
       [w](const Parameters& p, const at::Tensor& x) {
         auto h = at::zeros({x.size(0), 4}, x.options());
         for (int step = 0; step < 3; ++step) {
           h = (h.matmul(w(p, "a").t()) * 0.5 + x.narrow(1, 0, 3).matmul(w(p, "b").t()));
         }
         return h.matmul(w(p, "c").t());
       },
       {linear("state", 4, {{"a", 0, 1}, {"a", 1, -1}, {"b", 0, 1}, {"c", 1, -1}})}}};
}

Testbed testbed_of(const Network& network) {
  Testbed bed;
  bed.name = network.name;
  bed.init = [=](uint64_t seed, at::ScalarType type) {
    const auto generator = testbeds::generator(seed);
    Parameters params;
    for (const auto& [name, shape] : network.shapes) {
      const double fan_in = static_cast<double>(shape.back());
      params.add(
          name,
          (at::randn(shape, generator, at::kDouble) / std::sqrt(fan_in)).to(type).requires_grad_());
    }
    return params;
  };
  bed.batch = [](uint64_t seed, at::ScalarType type) {
    const auto generator = testbeds::generator(seed);
    return Batch{at::randn({12, 6}, generator, at::kDouble).to(type), at::Tensor()};
  };
  bed.loss = [=](const Parameters& params, const Batch& batch) {
    const auto outputs = network.outputs(params, batch.inputs);
    return (outputs - at::sin(batch.inputs.sum() + at::arange(outputs.size(-1)))).square().mean();
  };
  bed.gauges = [=](const Parameters&) { return network.gauges; };
  return bed;
}

class LinearChains : public ::testing::TestWithParam<Network> {};

INSTANTIATE_TEST_SUITE_P(All, LinearChains, ::testing::ValuesIn(networks()),
                         [](const auto& instance) { return instance.param.name; });

void expect_equivariance(const Network& network, const std::vector<uint64_t>& seeds,
                         int64_t steps) {
  const auto bed = testbed_of(network);
  const auto& gauges = network.gauges;
  for (const auto place : {Place::in_place, Place::canonical}) {
    const Treatment treatment{.placement = place};
    for (const uint64_t seed : seeds) {
      const auto error = [&](const testbeds::OptimizerMaker& make) {
        return testbeds::paired_error(bed, gauges, make, {.seed = seed, .steps = steps});
      };
      EXPECT_LE(error(testbeds::ddc_adam({.lr = 1e-2}, treatment)), kEquivariant)
          << to_string(place);
      EXPECT_LE(error(testbeds::ddc_muon({.lr = 1e-2}, {.lr = 1e-2}, treatment)), kEquivariant)
          << to_string(place);
    }
  }
  // The numbers above would say little if any optimizer passed.
  EXPECT_GT(testbeds::paired_error(bed, gauges, testbeds::adamw(1e-2, 0), {.steps = steps}), 1e-3);
}

TEST_P(LinearChains, StepCommutesWithAllGaugesTogether) { expect_equivariance(GetParam(), {1}, 8); }
TEST_P(LinearChains, StepCommutesWithAllGaugesTogetherLong) {
  expect_equivariance(GetParam(), {1, 2}, 20);
}

TEST(LinearPlan, DisjointChannelsOfOneAxisAreNotCoupled) {
  const auto is_coupled_with = [](const std::vector<Gauge>& gauges) {
    Parameters params;
    params.add("qkv", at::ones({12, 6}, at::kDouble));
    params.add("out", at::ones({6, 4}, at::kDouble));
    std::vector<GroupedParameter> grouped;
    for (const auto& parameter : params) grouped.push_back({parameter, 0});
    const auto plan = compile(grouped, gauges);
    return std::ranges::any_of(plan.components, &Component::coupled);
  };
  auto gauges = fused_gauges(0);
  EXPECT_FALSE(is_coupled_with(gauges));
  // Along the other axis all of them are scaled.
  Gauge across;
  across.name = "across";
  across.kind = "scale";
  across.action = Action::scale;
  across.channels = 6;
  across.legs = {{.tensor = "qkv", .axis = 1, .exponent = 1},
                 {.tensor = "out", .axis = 0, .exponent = -1}};
  EXPECT_TRUE(is_coupled_with({gauges[0], gauges[1], across}));
  // One row of the other's.
  const auto scale = [&](const std::string& name, int64_t first, int64_t second) {
    auto gauge = across;
    gauge.name = name;
    gauge.channels = 3;
    gauge.legs = {part("qkv", 0, 1, first, 3, 12), part("qkv", 0, -1, second, 3, 12)};
    return gauge;
  };
  EXPECT_FALSE(is_coupled_with({scale("one", 0, 3), scale("other", 6, 9)}));
  EXPECT_TRUE(is_coupled_with({scale("one", 0, 3), scale("other", 5, 9)}));
}

}  // namespace
}  // namespace ddc::tests
