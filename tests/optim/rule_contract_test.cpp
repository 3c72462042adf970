// What every registered base rule promises, whichever it is: a line in src/optim/registry.cpp is all that
// it takes for a new one to be tested here.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "ddc/optim/registry.h"
#include "ddc/testbeds/blocks.h"
#include "support/errors.h"
#include "support/rules.h"
#include "support/small_networks.h"
#include "support/snapshot.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

using testbeds::GaugeSet;
using ::testing::IsEmpty;
using ::testing::Not;

/// Where a rule has a memory only if it is asked to.
const std::map<std::string, OptionValues> kRemembering = {{"DDCSgd", {{"momentum", 0.9}}}};

class RuleContract : public ::testing::TestWithParam<std::string> {
 protected:
  const RegisteredRule& rule = registered_rule(GetParam());

  std::unique_ptr<LiftedOptions> options(const OptionValues& values = {}) const {
    auto result = rule.options();
    if (const auto found = kRemembering.find(rule.name); found != kRemembering.end()) {
      result->list().assign(found->second);
    }
    result->list().assign(values);
    return result;
  }

  /// One param group; where the rule has a group for vectors (Muon), a second one.
  std::unique_ptr<LiftedOptimizer> make(const Parameters& params, std::vector<Gauge> gauges = {},
                                        const OptionValues& values = {},
                                        const Treatments& treatments = {}) const {
    const bool splits = rule.options()->list().find("use_adam") != nullptr;
    std::vector<at::Tensor> matrices;
    std::vector<at::Tensor> vectors;
    for (const auto& tensor : params.tensors()) {
      (splits && tensor.dim() < 2 ? vectors : matrices).push_back(tensor);
    }
    std::vector<OptimizerParamGroup> groups;
    if (!matrices.empty()) groups.emplace_back(matrices, options(values));
    if (!vectors.empty()) {
      auto by_adam = options(values);
      by_adam->list().assign({{"use_adam", true}});
      groups.emplace_back(vectors, std::move(by_adam));
    }
    return rule.make(groups, params, std::move(gauges), treatments);
  }

  OptimizerMaker maker(const OptionValues& values, const Treatments& treatments = {}) const {
    return [=, this](const Parameters& params, std::vector<Gauge> gauges) {
      return make(params, std::move(gauges), values, treatments);
    };
  }
};

INSTANTIATE_TEST_SUITE_P(All, RuleContract, ::testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const auto& each : registered_rules()) names.push_back(each.name);
                           return names;
                         }()),
                         [](const auto& instance) { return instance.param; });

TEST(RegisteredRules, AreFoundByName) {
  EXPECT_GE(registered_rules().size(), 5);
  for (const auto& rule : registered_rules()) {
    EXPECT_EQ(registered_rule(rule.name).name, rule.name);
    EXPECT_FALSE(rule.help.empty());
  }
  expect_error([] { registered_rule("DDCAdan"); }, {"'DDCAdan'; did you mean 'DDCAdam'?"});
}

// ---- Options --------------------------------------------------------------------------------------

TEST_P(RuleContract, HasDefaultsThatPassAndHelp) {
  const auto defaults = rule.options();
  EXPECT_NO_THROW(defaults->check());
  for (const auto& option : defaults->list()) {
    EXPECT_NO_THROW(option.set(option.get())) << option.name();
    EXPECT_EQ(option.parsed(to_string(option.get())), option.get()) << option.name();
    EXPECT_FALSE(option.help().empty()) << option.name();
  }
  for (const auto* must : {"lr", "weight_decay", "maximize"}) {
    EXPECT_NE(defaults->list().find(must), nullptr) << must;
  }
}

TEST_P(RuleContract, RefusesBadValuesNamingTheOption) {
  const auto params = table({{"w", weights({4, 3}, 1)}});
  const auto declared = rule.options();
  for (const auto& option : declared->list()) {
    std::vector<OptionValue> bad;
    std::vector<OptionValue> out_of_range;
    switch (option.type()) {
      case Option::Type::boolean:
        bad = {int64_t{2}, 0.5, std::string("perhaps")};
        break;
      case Option::Type::integer:
        bad = {0.5, std::string("many")};
        out_of_range = {int64_t{-1}};
        break;
      case Option::Type::number:
        bad = {std::string("much"), true};
        out_of_range = {kNaN, kInf, -kInf, -1.0};
        break;
      case Option::Type::choice:
        bad = {1.5, true, std::string("neither")};
        break;
      case Option::Type::text:
        bad = {1.5, true};
        break;
    }
    const auto refused = [&](const OptionValue& value, const std::string& said) {
      SCOPED_TRACE(option.name() + " = " + to_string(value));
      auto optimizer = make(params);
      const auto before = snapshot(*optimizer);
      expect_error(
          [&] {
            optimizer->set_options(0, {{option.name(), value}});
          },
          {"option " + option.name() + " must be " + said, ", got "});
      EXPECT_THAT(differences(before, snapshot(*optimizer)), IsEmpty());
    };
    for (const auto& value : bad) refused(value, "");
    for (const auto& value : out_of_range) refused(value, option.rule());
  }
  auto optimizer = make(params);
  expect_error(
      [&] {
        optimizer->set_options(0, {{"rl", 0.5}});
      },
      {"unknown option of " + rule.name + " 'rl'; did you mean 'lr'?"});
}

// ---- State ----------------------------------------------------------------------------------------

TEST_P(RuleContract, MakesItsStateAtConstructionAndUpdatesItInPlace) {
  const auto bed = testbeds::rms_norm_block({.gauges = GaugeSet::full});
  for (const auto& treatment : {Treatment{.bind = false}, in_place(), placed()}) {
    for (const auto type : {at::kDouble, at::kFloat}) {
      SCOPED_TRACE(testing::Message() << type << " " << to_string(treatment));
      const auto params = bed.init(1, type);
      const auto optimizer = make(params, bed.gauges(params), {}, treatment);
      struct Seen {
        const void* tensor;
        const void* memory;
        std::vector<int64_t> shape;
        at::ScalarType type;
      };
      const auto look = [&] {
        std::map<std::string, Seen> seen;
        for (const auto& slot : optimizer->state_slots()) {
          seen[slot.key()] = {slot.tensor->unsafeGetTensorImpl(), slot.tensor->const_data_ptr(),
                              slot.tensor->sizes().vec(), slot.tensor->scalar_type()};
        }
        return seen;
      };
      const auto before = look();
      size_t remembered = 0;
      for (const auto& [name, tensor] : params) {
        EXPECT_TRUE(before.contains("param." + name + ".step")) << name;
        for (const auto& [key, seen] : before) {
          remembered += key.starts_with("param." + name + ".") && !key.ends_with(".step");
        }
      }
      EXPECT_GE(remembered, params.size());
      for (uint64_t step = 0; step < 3; ++step) {
        backward(bed, params, bed.batch(step, type));
        optimizer->step();
      }
      const auto after = look();
      ASSERT_EQ(after.size(), before.size());
      for (const auto& [key, seen] : before) {
        ASSERT_TRUE(after.contains(key)) << key;
        const auto& now = after.at(key);
        EXPECT_EQ(now.shape, seen.shape) << key;
        EXPECT_EQ(now.type, seen.type) << key;
        if (!key.starts_with("param.")) continue;
        EXPECT_EQ(now.tensor, seen.tensor) << key;
        EXPECT_EQ(now.memory, seen.memory) << key;
      }
    }
  }
}

TEST_P(RuleContract, MakesNoStateForFrozenTensors) {
  const auto frozen = at::ones({4, 3}, at::kDouble);
  const auto params = table({{"w", weights({4, 3}, 1)}, {"frozen", frozen}});
  const auto optimizer = make(params);
  for (const auto& slot : optimizer->state_slots()) EXPECT_EQ(slot.name, "w") << slot.key();
  params["w"].tensor.mutable_grad() = at::ones({4, 3}, at::kDouble);
  optimizer->step();
  EXPECT_TRUE(at::equal(frozen, at::ones({4, 3}, at::kDouble)));
  // A gradient that comes after all is taken.
  frozen.requires_grad_();
  set_gradients(params, 3);
  optimizer->step();
  EXPECT_FALSE(at::equal(frozen, at::ones({4, 3}, at::kDouble)));
}

TEST_P(RuleContract, LoadsAStateAndGoesOnToTheLastBit) {
  const auto bed = testbeds::layer_norm_block({.gauges = GaugeSet::full});
  for (const auto type : {at::kDouble, at::kFloat}) {
    for (const auto& treatment : {in_place(), placed(), placed({.every = 3})}) {
      SCOPED_TRACE(testing::Message() << type << " " << to_string(treatment));
      const auto run = [&](const Parameters& params, LiftedOptimizer& optimizer, uint64_t from) {
        for (uint64_t step = from; step < from + 4; ++step) {
          backward(bed, params, bed.batch(step, type));
          optimizer.step();
        }
      };
      const auto params = bed.init(1, type);
      const auto optimizer = make(params, bed.gauges(params), {{"lr", 0.003}}, treatment);
      run(params, *optimizer, 0);
      const auto copy = params.clone();
      const auto resumed = make(copy, bed.gauges(copy), {}, treatment);
      resumed->load_state_dict(optimizer->state_dict());
      EXPECT_THAT(differences(snapshot(*optimizer), snapshot(*resumed)), IsEmpty());
      run(params, *optimizer, 4);
      run(copy, *resumed, 4);
      EXPECT_THAT(differences(snapshot(*optimizer), snapshot(*resumed)), IsEmpty());
    }
  }
}

TEST_P(RuleContract, RefusesAStateOfAnotherTreatmentOrOfOtherGauges) {
  const auto bed = testbeds::rms_norm_block({.gauges = GaugeSet::full});
  const auto params = bed.init(1, at::kDouble);
  const auto gauges = bed.gauges(params);
  const auto trained = make(params, gauges, {}, in_place());
  backward(bed, params, bed.batch(1, at::kDouble));
  trained->step();
  const auto state = trained->state_dict();
  const auto refused = [&](std::vector<Gauge> other, const Treatments& treatments,
                           std::vector<std::string> parts) {
    const auto optimizer = make(params.clone(), std::move(other), {}, treatments);
    const auto before = snapshot(*optimizer);
    parts.emplace_back("optimizer state");
    expect_error([&] { optimizer->load_state_dict(state); }, parts);
    EXPECT_THAT(differences(before, snapshot(*optimizer)), IsEmpty());
  };
  refused(gauges, in_place({.coordinates = Coordinates::polar}), {"polar"});
  refused(gauges, in_place({.procrustes = true}), {"procrustes"});
  refused(gauges, in_place({.project = Projection::never}), {"project", "never"});
  refused(gauges, in_place({.bind = false}), {"gauges", "0"});
  refused(gauges, placed(), {"in_place", "canonical"});
  auto fewer = gauges;
  fewer.pop_back();
  refused(fewer, in_place(), {std::to_string(gauges.size()) + " gauges"});
  // The same channels in another order: the same tensors, and the state would fit by its shapes.
  auto remapped = gauges;
  const auto found = std::find_if(remapped.begin(), remapped.end(),
                                  [](const Gauge& gauge) { return gauge.kind == "glu rescale"; });
  ASSERT_NE(found, remapped.end());
  for (auto& leg : found->legs) {
    if (leg.channel_of.empty()) {
      for (int64_t c = 0; c < found->channels; ++c) leg.channel_of.push_back(c);
    }
    for (auto& channel : leg.channel_of) {
      if (channel >= 0) channel = found->channels - 1 - channel;
    }
  }
  refused(remapped, in_place(), {found->name, "channel_of"});
  // Those of another rule.
  for (const auto& other : registered_rules()) {
    if (other.name == rule.name) continue;
    auto foreign = state;
    const auto place = foreign.description.find("\"" + rule.name + "\"");
    ASSERT_NE(place, std::string::npos);
    foreign.description.replace(place, rule.name.size() + 2, "\"" + other.name + "\"");
    expect_error([&] { trained->load_state_dict(foreign); },
                 {"'" + other.name + "', not of '" + rule.name + "'"});
  }
}

// ---- Steps ----------------------------------------------------------------------------------------

TEST_P(RuleContract, MakesFiniteStepsOnNastyGradients) {
  const std::vector<std::vector<int64_t>> shapes{{6},       {5, 5}, {7, 3},       {3, 7},
                                                 {2, 4, 3}, {},     {4, 2, 3, 2}, {1, 1}};
  for (const auto type : {at::kDouble, at::kFloat}) {
    for (const auto& kind : nasty_kinds()) {
      SCOPED_TRACE(testing::Message() << type << " " << kind);
      Parameters params;
      for (const auto& shape : shapes) {
        params.add("w" + std::to_string(params.size()), at::ones(shape, type).requires_grad_());
      }
      const auto optimizer = make(params, {}, {{"lr", 0.1}});
      std::vector<std::vector<at::Tensor>> gradients;
      for (const auto& shape : shapes) gradients.push_back(nasty_gradients(kind, shape, 12, type));
      for (size_t step = 0; step < 12; ++step) {
        for (size_t i = 0; i < shapes.size(); ++i) {
          params.tensors()[i].mutable_grad() = gradients[i][step];
        }
        optimizer->step();
        ASSERT_TRUE(all_finite(params)) << "after step " << step;
      }
    }
  }
}

TEST_P(RuleContract, TakesEmptyTensors) {
  Parameters params;
  for (const auto& shape : std::vector<std::vector<int64_t>>{
           {0}, {0, 3}, {3, 0}, {0, 2, 3}, {2, 0, 3}, {0, 2, 3, 2}, {2, 3}}) {
    params.add("w" + std::to_string(params.size()), at::ones(shape).requires_grad_());
  }
  const auto optimizer = make(params);
  for (uint64_t step = 0; step < 2; ++step) {
    set_gradients(params, 10 * step);
    ASSERT_NO_THROW(optimizer->step());
  }
  EXPECT_TRUE(all_finite(params));
  optimizer->load_state_dict(optimizer->state_dict());
}

TEST_P(RuleContract, LeavesGradientsAndWhatHasNoneAlone) {
  const auto bed = testbeds::layer_norm_block({.gauges = GaugeSet::full});
  for (const auto& treatment : {Treatment{.bind = false}, in_place(), placed()}) {
    for (const bool maximize : {false, true}) {
      const auto params = bed.init(1, at::kDouble);
      const auto optimizer = make(params, bed.gauges(params), {{"maximize", maximize}}, treatment);
      for (uint64_t step = 0; step < 2; ++step) {
        backward(bed, params, bed.batch(step, at::kDouble));
        std::vector<std::string> before;
        for (const auto& tensor : params.tensors()) before.push_back(bytes_of(tensor.grad()));
        optimizer->step();
        for (size_t i = 0; i < params.size(); ++i) {
          EXPECT_EQ(bytes_of(params.tensors()[i].grad()) == before[i], true) << i;
        }
      }
      const auto before = snapshot(*optimizer);
      optimizer->zero_grad();
      optimizer->step();
      EXPECT_THAT(differences(before, snapshot(*optimizer)), IsEmpty());
    }
  }
}

TEST_P(RuleContract, DescendsAndAscends) {
  const auto bed = testbeds::rms_norm_block({.gauges = GaugeSet::full});
  for (const bool maximize : {false, true}) {
    const auto params = bed.init(1, at::kDouble);
    const auto optimizer = make(params, bed.gauges(params), {{"lr", 1e-3}, {"maximize", maximize}});
    const auto batch = bed.batch(1, at::kDouble);
    const double before = backward(bed, params, batch);
    for (int step = 0; step < 10; ++step) {
      optimizer->step();
      backward(bed, params, batch);
    }
    const double after = loss_of(bed, params, batch);
    EXPECT_TRUE(maximize ? after > before : after < before) << before << " " << after;
  }
}

TEST_P(RuleContract, KeepsCopiesRelatedByTheGroupRelated) {
  for (const auto& bed :
       {testbeds::rms_norm_block({.gauges = GaugeSet::full}),
        testbeds::layer_norm_block({.relu_part = false, .gauges = GaugeSet::full})}) {
    const auto gauges = bed.gauges(bed.init(1, at::kDouble));
    const auto make_it = maker({{"lr", 1e-3}, {"weight_decay", 0.01}});
    const double error = paired_error(bed, gauges, make_it, {.steps = 20});
    RecordProperty(bed.name, testing::PrintToString(error));
    EXPECT_LE(error, 1e-11) << bed.name;
  }
}

TEST_P(RuleContract, HoldsEveryGaugeCoordinate) {
  const auto bed = testbeds::rms_norm_block({.gauges = GaugeSet::full});
  const auto params = bed.init(1, at::kDouble);
  const auto drift = testbeds::drift(bed, params, bed.gauges(params), maker({{"lr", 1e-3}}),
                                     {.seed = 1, .steps = 20, .type = at::kDouble});
  EXPECT_LE(drift.largest(), 1e-11);
}

}  // namespace
}  // namespace ddc::tests
