#include "ddc/discover/symmetry_group.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "ddc/optim/adam.h"
#include "ddc/testbeds/mlp.h"
#include "support/errors.h"
#include "support/snapshot.h"
#include "support/symmetry_groups.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

namespace fs = std::filesystem;

/// A folder that is removed with what is in it.
struct Folder {
  Folder() : path(fs::temp_directory_path() / ("ddc_group_" + std::to_string(::getpid()))) {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string operator/(const std::string& name) const { return (path / name).string(); }

  fs::path path;
};

Snapshot trained(const testbeds::Testbed& testbed, std::vector<Gauge> gauges) {
  const auto params = testbed.init(1, at::kDouble);
  DDCAdam optimizer(params, std::move(gauges), usual_options());
  for (uint64_t step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    backward(testbed, params, testbed.batch(step, at::kDouble));
    optimizer.step();
  }
  return snapshot(optimizer);
}

TEST(SymmetryGroup, GaugesOfTransformersSurviveAFileAndStepAlike) {
  const Folder folder;
  for (const auto& testbed : blocks_with_all_gauges()) {
    SCOPED_TRACE(testbed.name);
    const auto params = testbed.init(1, at::kDouble);
    const auto gauges = testbed.gauges(params);
    const auto group = group_of(gauges, params);
    group.save(folder / "group.json");
    const auto loaded = SymmetryGroup::load(folder / "group.json", params);
    expect_same(group, loaded);
    EXPECT_THAT(differences(trained(testbed, gauges), trained(testbed, loaded.gauges())),
                ::testing::IsEmpty());
  }
}

TEST(SymmetryGroup, ActingAtRandomLeavesTheLossAlone) {
  for (const auto& testbed : blocks_with_all_gauges()) {
    SCOPED_TRACE(testbed.name);
    const auto params = testbed.init(3, at::kDouble);
    const auto before = params.clone();
    const auto batch = testbed.batch(5, at::kDouble);
    const auto group = group_of(testbed.gauges(params), params);
    const double loss = testbed.loss(params, batch).item<double>();
    group.act_random_(params, 0.3, /*seed=*/11);
    EXPECT_GT(relative_error(params, before), 0.1);
    EXPECT_NEAR(testbed.loss(params, batch).item<double>(), loss, 1e-11 * std::abs(loss));

    const auto again = before.clone();
    group.act_random_(again, 0.3, /*seed=*/11);
    EXPECT_EQ(relative_error(again, params), 0);
    const auto other = before.clone();
    group.act_random_(other, 0.3, /*seed=*/12);
    EXPECT_GT(relative_error(other, params), 0.1);
  }
}

TEST(SymmetryGroup, ActingRefusesAnotherModelAndANonsensicalSize) {
  const auto testbed = testbeds::relu_chain();
  const auto params = testbed.init(1, at::kDouble);
  const auto before = params.clone();
  const auto group = group_of(testbed.gauges(params), params);
  expect_error([&] { group.act_random_(params, -1, 0); }, {"size", "-1", ">= 0"});
  expect_error([&] { group.act_random_(params, NAN, 0); }, {"size", "nan", "finite"});
  Parameters fewer;
  for (const auto& [name, tensor] : params) {
    if (name != "layers.3.bias") fewer.add(name, tensor);
  }
  expect_error([&] { group.act_random_(fewer, 1, 0); }, {"layers.3.bias"});
  EXPECT_EQ(relative_error(params, before), 0);
}

TEST(SymmetryGroup, CheckNamesTheFirstDifference) {
  const auto testbed = testbeds::relu_chain();
  const auto params = testbed.init(1, at::kDouble);
  const auto group = group_of(testbed.gauges(params), params);
  EXPECT_NO_THROW(group.check(params));
  EXPECT_EQ(group.dimension(), 48);
  EXPECT_EQ(group.gauges().size(), 3U);

  Parameters reversed;
  for (size_t i = params.size(); i-- > 0;) {
    reversed.add((params.begin() + i)->name, (params.begin() + i)->tensor);
  }
  EXPECT_NO_THROW(group.check(reversed));

  const auto changed = [&](const std::string& which, const std::string& name, at::Tensor tensor) {
    Parameters result;
    for (const auto& entry : params) {
      if (entry.name != which) {
        result.add(entry.name, entry.tensor);
      } else if (tensor.defined()) {
        result.add(name, tensor);
      }
    }
    return result;
  };
  expect_error([&] { group.check(changed("layers.1.bias", "", {})); },
               {"found on a model with 'layers.1.bias' of shape [16]", "no such parameter"});
  expect_error(
      [&] {
        group.check(changed("layers.1.bias", "layers.1.bias", at::zeros({4, 4})));
      },
      {"found on a model with 'layers.1.bias' of shape [16]", "shape [4, 4] in this model"});
  auto more = params.clone();
  more.add("extra", at::zeros({2}));
  expect_error([&] { group.check(more); }, {"with 8 parameters", "'extra' of shape [2]"});
}

void spill(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

TEST(SymmetryGroup, WhatIsNoFileOfAGroupIsRefusedByName) {
  const Folder folder;
  const auto load = [&](const std::string& name) {
    return [path = folder / name] { SymmetryGroup::load(path); };
  };
  expect_error(load("none.json"), {"cannot read symmetries file", "none.json", "No such file"});
  expect_error([&] { SymmetryGroup::load(folder.path.string()); }, {"not a regular file"});
  spill(folder / "empty.json", "");
  expect_error(load("empty.json"), {"empty.json", "not JSON"});
  const auto text = unusual_group().to_json();
  spill(folder / "half.json", text.substr(0, text.size() / 2));
  expect_error(load("half.json"), {"half.json", "truncated"});
  // Root reads everything.
  if (::geteuid() != 0) {
    spill(folder / "locked.json", text);
    ::chmod((folder / "locked.json").c_str(), 0);
    expect_error(load("locked.json"), {"locked.json", "Permission denied"});
  }
}

TEST(SymmetryGroup, AFailedSaveLeavesNothingAndKeepsWhatIsThere) {
  const Folder folder;
  expect_error([&] { unusual_group().save(folder / "none/group.json"); },
               {"cannot write symmetries file", "none/group.json", "directory"});
  expect_error([&] { unusual_group().save((folder / "")); }, {"no file name"});
  fs::create_directories(folder / "taken/inside");
  expect_error([&] { unusual_group().save(folder / "taken"); }, {"cannot rename"});
  unusual_group().save(folder / "group.json");
  auto broken = unusual_group();
  broken.notes = {"\xff"};
  EXPECT_THROW(broken.save(folder / "group.json"), c10::Error);
  expect_same(unusual_group(), SymmetryGroup::load(folder / "group.json"));
  SymmetryGroup().save(folder / "group.json");
  expect_same(SymmetryGroup(), SymmetryGroup::load(folder / "group.json"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path), {}), 2);
}

TEST(SymmetryGroup, LoadingForAModelChecksThatItIsTheModel) {
  const Folder folder;
  const auto testbed = testbeds::relu_chain();
  const auto params = testbed.init(1, at::kDouble);
  group_of(testbed.gauges(params), params).save(folder / "group.json");
  const auto load = [&](const Parameters& other) {
    return [&] { SymmetryGroup::load(folder / "group.json", other); };
  };
  EXPECT_NO_THROW(load(params)());
  const auto wider = testbeds::relu_chain({.d_hidden = 17}).init(1, at::kDouble);
  expect_error(load(wider), {"group.json", "'layers.0.weight' of shape [16, 8]", "[17, 8]"});
  Parameters integers;
  for (const auto& [name, tensor] : params) integers.add(name, tensor.detach().to(at::kLong));
  expect_error(load(integers), {"group.json", "layers.0.weight", "floating-point"});
}

}  // namespace
}  // namespace ddc::tests
