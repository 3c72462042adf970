// What discovery does with models that are not as they should be, and what it leaves alone.

#include "ddc/discover/discover.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <stdexcept>

#include "ddc/testbeds/mlp.h"
#include "ddc/testbeds/modular_addition.h"
#include "ddc/testbeds/runs.h"
#include "ddc/testbeds/teacher_student.h"
#include "ddc/testbeds/zoo.h"
#include "support/discovered.h"
#include "support/errors.h"
#include "support/snapshot.h"

namespace ddc::tests {
namespace {

using testbeds::generator;
using testbeds::Testbed;
using testbeds::zoo_entry;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

at::Tensor weights(at::IntArrayRef shape, uint64_t seed, at::ScalarType type = at::kDouble) {
  return at::randn(shape, generator(seed), at::kDouble).to(type).requires_grad_();
}

at::Tensor inputs(uint64_t batch, int64_t size) {
  return at::randn({16, size}, generator(batch + 1000), at::kDouble);
}

/// Targets that no network here can fit.
at::Tensor squared_error(const at::Tensor& outputs, uint64_t batch) {
  return (outputs - inputs(batch + 500, outputs.size(1))).square().mean();
}

/// W2 relu(W1 x): a rescale of each hidden unit.
struct TwoLayers {
  Parameters params{
      std::vector<NamedTensor>{{"in", weights({5, 4}, 1)}, {"out", weights({3, 5}, 2)}}};

  at::Tensor outputs(uint64_t batch) const {
    return inputs(batch, 4).matmul(params["in"].tensor.t()).relu().matmul(params["out"].tensor.t());
  }
  Evaluate evaluate() const {
    return [*this](uint64_t batch) { return squared_error(outputs(batch), batch); };
  }
};

void expect_only_rescale(const SymmetryGroup& group) {
  ASSERT_EQ(group.findings.size(), 1U) << group;
  const auto& finding = group.findings.front();
  EXPECT_EQ(finding.gauge.name, "in:rescale");
  EXPECT_EQ(finding.gauge.kind, "relu rescale");
  EXPECT_EQ(finding.group, "(R+)^5");
}

Snapshot bits_of(const Parameters& params) {
  Snapshot result;
  for (const auto& [name, tensor] : params) result[name] = bytes_of(tensor);
  return result;
}

TEST(Discover, FindsWhatTwoLayersHave) {
  const TwoLayers net;
  expect_only_rescale(discover(net.params, net.evaluate()));
}

TEST(Discover, TakesOutputsWhereTheyAreTold) {
  const TwoLayers net;
  expect_only_rescale(discover(net.params, [&](uint64_t batch) {
    const auto outputs = net.outputs(batch);
    return Evaluation(squared_error(outputs, batch), outputs);
  }));
}

TEST(Discover, DoesNotDependOnItsSeedAndDoesNotBelieveHints) {
  const auto entry = zoo_entry("rms_partial_rope");
  const auto params = entry.testbed.init(entry.seed, at::kDouble);
  const auto evaluate = evaluation_of(entry.testbed, params);
  const auto expected = entry.testbed.gauges(params);
  EXPECT_EQ(differences(expected, discover(params, evaluate, {.seed = 7}).gauges(), params), "");
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{4}, {2}, {8}, {3, 5, 1, 0, -2}}) {
    const auto group = discover(params, evaluate, {.hints = {.head_sizes = sizes}});
    EXPECT_EQ(differences(expected, group.gauges(), params), "") << ::testing::PrintToString(sizes);
  }
}

TEST(Discover, SaysWhatItDoes) {
  const TwoLayers net;
  std::vector<std::string> stages;
  discover(net.params, net.evaluate(), {.progress = [&](const std::string& stage, size_t, size_t) {
             stages.push_back(stage);
           }});
  EXPECT_THAT(stages, Contains("charges"));
  EXPECT_THAT(stages, Contains("gate"));
}

TEST(Discover, WorksWhereGradientsAreSwitchedOff) {
  const TwoLayers net;
  const at::NoGradGuard no_grad;
  expect_only_rescale(discover(net.params, net.evaluate()));
}

// ---- Models without symmetry ----

TEST(Discover, FindsNothingInANetworkWithoutSymmetry) {
  // Each tanh can change its sign, but nothing can be changed a little.
  Parameters params;
  params.add("first.weight", weights({6, 4}, 1));
  params.add("first.bias", weights({6}, 2));
  params.add("second.weight", weights({5, 6}, 3));
  params.add("second.bias", weights({5}, 4));
  params.add("third.weight", weights({3, 5}, 5));
  params.add("third.bias", weights({3}, 6));
  const Evaluate evaluate = [&](uint64_t batch) {
    const auto layer = [&](const std::string& name, const at::Tensor& x) {
      return at::linear(x, params[name + ".weight"].tensor, params[name + ".bias"].tensor);
    };
    const auto hidden = layer("second", layer("first", inputs(batch, 4)).tanh()).tanh();
    const auto outputs = layer("third", hidden);
    return Evaluation(squared_error(outputs, batch), outputs);
  };
  const auto group = discover(params, evaluate);
  EXPECT_THAT(group.findings, IsEmpty()) << group;
  EXPECT_EQ(group.dimension(), 0);
}

TEST(Discover, FindsNothingInOneMatrixUnderASquaredError) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3, 4}, {4, 4}, {1, 4}}) {
    Parameters params;
    params.add("weight", weights(shape, 1));
    const auto group = discover(params, [&](uint64_t batch) {
      return squared_error(inputs(batch, 4).matmul(params["weight"].tensor.t()), batch);
    });
    EXPECT_THAT(group.findings, IsEmpty()) << group;
  }
}

TEST(Discover, FindsNothingInANumber) {
  Parameters params;
  params.add("number", weights({}, 1));
  const auto group = discover(params, [&](uint64_t batch) {
    return (inputs(batch, 4) * params["number"].tensor - 1).square().mean();
  });
  EXPECT_THAT(group.findings, IsEmpty()) << group;
}

TEST(Discover, FindsTheShiftOfOneMatrixUnderCrossEntropy) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    Parameters params;
    params.add("weight", weights({5, 4}, 1, type));
    const auto group = discover(params, [&](uint64_t batch) {
      const auto logits = inputs(batch, 4).to(type).matmul(params["weight"].tensor.t());
      const auto targets = at::randint(5, {16}, generator(batch), at::kLong);
      return Evaluation(at::cross_entropy_loss(logits, targets), logits);
    });
    ASSERT_EQ(group.findings.size(), 1U) << group;
    EXPECT_EQ(group.findings.front().gauge.kind, "CE row shift");
    EXPECT_EQ(group.findings.front().group, "R^4");
  }
}

// ---- Batches ----

TEST(Discover, NeedsOnlyOneBatch) {
  const auto bed = testbeds::relu_teacher_student({.per_channel = true});
  for (const auto type : {at::kDouble, at::kFloat}) {
    const auto params = bed.init(1, type);
    ASSERT_TRUE(bed.batch(1, type).inputs.equal(bed.batch(2, type).inputs));
    const auto group = discover(params, evaluation_of(bed, params));
    EXPECT_EQ(differences(bed.gauges(params), group.gauges(), params), "") << type;
  }
}

TEST(Discover, FindsOnAllPairsWhatItFindsOnSomeAtATime) {
  const auto with_batches_of = [](int64_t size) {
    return testbeds::modular_addition({.modulus = 13,
                                       .train_fraction = 0.6,
                                       .batch_size = size,
                                       .d_model = 8,
                                       .heads = 2,
                                       .d_ff = 12,
                                       .attention_biases = true,
                                       .final_norm = true,
                                       .gain_spread = 0.2,
                                       .bias_spread = 0.2});
  };
  const auto full = with_batches_of(0);
  const auto drawn = with_batches_of(40);
  const auto params = full.init(1, at::kDouble);
  const auto found = discover(params, evaluation_of(full, params)).gauges();
  EXPECT_EQ(differences(discover(params, evaluation_of(drawn, params)).gauges(), found, params),
            "");
  // The testbed lists the scales and shifts; the others contain them.
  const auto ranks = span_ranks(full.gauges(params), found, params);
  EXPECT_EQ(ranks.together, ranks.found);
  EXPECT_GT(ranks.found, ranks.expected);
}

TEST(Discover, TakesALossThatDrawsItsBatchIfItIsReseeded) {
  const TwoLayers net;
  const auto draw = [&] {
    const auto x = at::randn({16, 4}, at::kDouble);
    const auto hidden = at::dropout(x.matmul(net.params["in"].tensor.t()).relu(), 0.3, true);
    return Evaluation(
        (hidden.matmul(net.params["out"].tensor.t()) - at::randn({16, 3}, at::kDouble))
            .square()
            .mean());
  };
  const auto state = at::globalContext().defaultGenerator(at::kCPU).get_state();
  expect_only_rescale(discover(net.params, reseeded(draw)));
  EXPECT_TRUE(state.equal(at::globalContext().defaultGenerator(at::kCPU).get_state()));
}

// ---- What takes part ----

TEST(Discover, HoldsFrozenParametersFixed) {
  const auto bed = testbeds::relu_chain({.depth = 4});
  const auto params = bed.init(1, at::kDouble);
  const std::set<std::string> frozen = {"layers.2.weight", "layers.2.bias"};
  for (const auto& name : frozen) params[name].tensor.requires_grad_(false);
  auto expected = bed.gauges(params);
  std::erase_if(expected, [&](const Gauge& gauge) {
    return std::any_of(gauge.legs.begin(), gauge.legs.end(),
                       [&](const Leg& leg) { return frozen.contains(leg.tensor); });
  });
  ASSERT_EQ(expected.size(), 1U);
  const auto before = bits_of(params);
  std::set<std::string> moved;
  const auto group = discover(params, [&](uint64_t batch) {
    for (const auto& name : differences(before, bits_of(params))) moved.insert(name);
    return evaluation_of(bed, params)(batch);
  });
  EXPECT_EQ(differences(expected, group.gauges(), params), "");
  EXPECT_THAT(group.notes, Contains(HasSubstr("2 frozen parameters")));
  EXPECT_EQ(moved.size(), params.size() - frozen.size());
  for (const auto& name : frozen) EXPECT_FALSE(moved.contains(name)) << name;
}

TEST(Discover, CountsTiedParametersOnce) {
  const TwoLayers net;
  auto params = net.params;
  params.add("alias", net.params["out"].tensor);
  const auto group = discover(params, net.evaluate());
  expect_only_rescale(group);
  EXPECT_THAT(group.notes, Contains("'alias' is tied to 'out' and counted once"));
}

TEST(Discover, RefusesParametersThatOverlap) {
  const auto memory = at::randn({30}, generator(1), at::kDouble);
  Parameters params;
  params.add("low", memory.narrow(0, 0, 20).view({5, 4}).detach().requires_grad_());
  params.add("high", memory.narrow(0, 10, 15).view({3, 5}).detach().requires_grad_());
  const auto before = bytes_of(memory);
  expect_error(
      [&] {
        discover(params, [&](uint64_t batch) {
          return squared_error(
              inputs(batch, 4).matmul(params["low"].tensor.t()).matmul(params["high"].tensor.t()),
              batch);
        });
      },
      {"'low'", "'high'", "share memory"});
  EXPECT_EQ(bytes_of(memory), before);
}

// Halves of one buffer, as flattened optimizers keep parameters, are two tensors.
TEST(Discover, TakesParametersThatStandSideBySide) {
  const TwoLayers net;
  const auto memory = at::cat(
      {net.params["in"].tensor.detach().flatten(), net.params["out"].tensor.detach().flatten()});
  TwoLayers packed;
  packed.params = Parameters();
  packed.params.add("in", memory.narrow(0, 0, 20).view({5, 4}).detach().requires_grad_());
  packed.params.add("out", memory.narrow(0, 20, 15).view({3, 5}).detach().requires_grad_());
  expect_only_rescale(discover(packed.params, packed.evaluate()));
}

TEST(Discover, RefusesATableWithNothingToFind) {
  const TwoLayers net;
  expect_error([&] { discover({}, net.evaluate()); }, {"no parameters"});
  for (const auto& [name, tensor] : net.params) tensor.requires_grad_(false);
  expect_error([&] { discover(net.params, net.evaluate()); },
               {"none of the 2 parameters requires gradients"});
}

TEST(Discover, RefusesHalfPrecisionByName) {
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    TwoLayers net;
    net.params.add("half", weights({4}, 3, type));
    expect_error([&] { discover(net.params, net.evaluate()); }, {"'half'", "float32"});
  }
}

// ---- Losses that are not as they should be ----

TEST(Discover, RefusesALossThatIsNone) {
  const TwoLayers net;
  const auto& in = net.params["in"].tensor;
  const auto refuses = [&](const Evaluate& evaluate, const std::vector<std::string>& parts) {
    const auto before = bits_of(net.params);
    expect_error([&] { discover(net.params, evaluate); }, parts);
    EXPECT_THAT(differences(before, bits_of(net.params)), IsEmpty());
  };
  refuses(nullptr, {"`evaluate` is empty"});
  refuses([](uint64_t) { return at::Tensor(); }, {"not a scalar"});
  refuses([&](uint64_t) { return in.sum(1); }, {"not a scalar"});
  refuses([](uint64_t) { return at::ones({}, at::kDouble); },
          {"does not depend on any of the 2 parameters"});
  // A loss of something else that can be differentiated.
  const auto other = weights({3}, 9);
  refuses([&](uint64_t) { return other.square().sum(); },
          {"does not depend on any of the 2 parameters"});
  refuses([&](uint64_t) { return in.sum() * std::numeric_limits<double>::quiet_NaN(); }, {"nan"});
  refuses([&](uint64_t) { return in.sum() * std::numeric_limits<double>::infinity(); }, {"inf"});
  // Finite, with a gradient that is not: the root has none at zero.
  refuses([&](uint64_t) { return in.sum() + (in * 0).sum().sqrt(); }, {"'in'", "not finite"});
  // Only a later batch fails.
  refuses([&](uint64_t batch) { return net.evaluate()(batch).loss / (batch == 2 ? 0 : 1); },
          {"batch 2"});
}

TEST(Discover, SaysThatDropoutIsOn) {
  const TwoLayers net;
  expect_error(
      [&] {
        discover(net.params, [&](uint64_t batch) {
          return squared_error(at::dropout(net.outputs(batch), 0.3, true), batch);
        });
      },
      {"dropout", "the same loss"});
}

// ---- What it leaves alone ----

TEST(Discover, LeavesParametersAndGradientsAsTheyWere) {
  const auto entry = zoo_entry("ln_relu");
  const auto& bed = entry.testbed;
  const auto params = bed.init(entry.seed, at::kFloat);
  testbeds::backward(bed, params, bed.batch(3, at::kFloat));
  params["embedding.weight"].tensor.mutable_grad() = at::Tensor();
  const auto gradients = [&] {
    Snapshot result;
    for (const auto& [name, tensor] : params) {
      result[name] = tensor.grad().defined() ? bytes_of(tensor.grad()) : "none";
    }
    return result;
  };
  const auto before = bits_of(params);
  const auto gradients_before = gradients();
  discover(params, evaluation_of(bed, params));
  EXPECT_THAT(differences(before, bits_of(params)), IsEmpty());
  EXPECT_THAT(differences(gradients_before, gradients()), IsEmpty());
  for (const auto& [name, tensor] : params) {
    EXPECT_TRUE(tensor.requires_grad() && tensor.is_leaf()) << name;
  }
}

TEST(Discover, LeavesParametersAsTheyWereWhereverItFails) {
  const auto entry = zoo_entry("linear_pair");
  const auto params = entry.testbed.init(entry.seed, at::kDouble);
  const auto evaluate = evaluation_of(entry.testbed, params);
  int64_t calls = 0;
  discover(params, [&](uint64_t batch) {
    ++calls;
    return evaluate(batch);
  });
  const auto before = bits_of(params);
  ASSERT_GT(calls, 20);
  for (int64_t last = 1; last <= calls; last += 3) {
    int64_t call = 0;
    const auto failing = [&](uint64_t batch) {
      if (++call == last) throw std::runtime_error("no more data");
      return evaluate(batch);
    };
    EXPECT_THROW(discover(params, failing), std::runtime_error) << "call " << last;
    EXPECT_EQ(call, last);
    EXPECT_THAT(differences(before, bits_of(params)), IsEmpty()) << "call " << last;
  }
}

}  // namespace
}  // namespace ddc::tests
