#include "ddc/io/checkpoint.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/optim/adamw.h>
#include <torch/serialize.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "ddc/gauge/norm.h"
#include "ddc/io/safetensors.h"
#include "ddc/optim/adam.h"
#include "ddc/testbeds/blocks.h"
#include "ddc/testbeds/mlp.h"
#include "support/errors.h"
#include "support/small_networks.h"
#include "support/snapshot.h"
#include "support/training.h"

namespace ddc::tests {
namespace {

// Beside the overloads below, which would hide them.
using tests::differences;
using tests::snapshot;

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::IsEmpty;
using torch::optim::OptimizerParamGroup;

std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void spill(const fs::path& path, const std::string& bytes) {
  fs::remove(path);
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
}

/// A network in training, small, with all kinds of state: moments, polar scales, a moving gauge
/// coordinate, two param groups.
struct Training {
  Testbed bed;
  Parameters params;
  std::unique_ptr<DDCAdam> optimizer;

  void train(int64_t first_step, int64_t steps) const {
    for (int64_t step = first_step; step < first_step + steps; ++step) {
      const auto type = params.begin()->tensor.scalar_type();
      backward(bed, params, bed.batch(static_cast<uint64_t>(step), type));
      optimizer->step();
    }
  }
};

std::vector<OptimizerParamGroup> two_groups(const Parameters& params) {
  std::vector<at::Tensor> matrices;
  std::vector<at::Tensor> vectors;
  for (const auto& entry : params) {
    (entry.tensor.dim() > 1 ? matrices : vectors).push_back(entry.tensor);
  }
  std::vector<OptimizerParamGroup> groups{OptimizerParamGroup(matrices)};
  groups.push_back(group_of(vectors, {.lr = 3e-3, .weight_decay = 0}));
  return groups;
}

constexpr Treatment kPolarAndMoving{.coordinates = Coordinates::polar, .vertical = Vertical::adam};

struct TrainingOptions {
  std::function<std::vector<Gauge>(std::vector<Gauge>)> change_gauges =
      [](std::vector<Gauge> gauges) { return gauges; };
  Treatments treatments = kPolarAndMoving;
  std::function<std::vector<OptimizerParamGroup>(const Parameters&)> groups = two_groups;
  uint64_t seed = 1;
  testbeds::ReluChainOptions chain = {.depth = 3, .d_in = 3, .d_hidden = 4, .d_out = 2};
};

Training make_run(const TrainingOptions& options = {}) {
  Training run{testbeds::relu_chain(options.chain), {}, nullptr};
  run.params = run.bed.init(options.seed, at::kDouble);
  run.optimizer = std::make_unique<DDCAdam>(options.groups(run.params), run.params,
                                            options.change_gauges(run.bed.gauges(run.params)),
                                            AdamOptions{}, options.treatments);
  return run;
}

Training trained_run(int64_t steps = 3) {
  auto run = make_run();
  run.train(0, steps);
  return run;
}

/// Model, optimizer and the default generator.
Snapshot snapshot(const Training& run) {
  auto result = snapshot(*run.optimizer);
  result["generator"] = bytes_of(at::detail::getDefaultCPUGenerator().get_state());
  return result;
}

class Checkpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "ddc-checkpoint-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    path_ = directory_ / "run.safetensors";
    at::manual_seed(11);
  }
  void TearDown() override { fs::remove_all(directory_); }

  /// Saves a checkpoint and then changes the file as if by hand.
  void save_changed(const std::function<void(io::TensorFile&)>& change) {
    const auto run = trained_run();
    save_checkpoint(path_, run.params, run.optimizer.get(), {.rng = true});
    auto file = io::read_safetensors(path_);
    change(file);
    io::write_safetensors(path_, file);
  }

  void save_with_description(const std::function<void(json&)>& change) {
    save_changed([&](io::TensorFile& file) {
      auto description = json::parse(file.metadata.at("ddc.optimizer"));
      change(description);
      file.metadata["ddc.optimizer"] = description.dump();
    });
  }

  /// Expects that loading fails with an error that names the file and each of `parts`, and that
  /// nothing has changed.
  void expect_refused(const Training& run, std::vector<std::string> parts) {
    const auto before = snapshot(run);
    parts.push_back(path_.string());
    expect_error([&] { load_checkpoint(path_, run.params, run.optimizer.get(), {.rng = true}); },
                 parts);
    EXPECT_THAT(differences(before, snapshot(run)), IsEmpty());
  }
  void expect_refused(std::vector<std::string> parts) {
    const auto run = make_run({.seed = 2});
    run.train(7, 2);
    expect_refused(run, std::move(parts));
  }

  fs::path directory_;
  fs::path path_;
};

void change_tensor(io::TensorFile& file, const std::string& name,
                   const std::function<at::Tensor(const at::Tensor&)>& change) {
  for (auto& [key, tensor] : file.tensors) {
    if (key != name) continue;
    tensor = change(tensor);
    return;
  }
  FAIL() << "the checkpoint has no tensor " << name;
}

void remove_tensor(io::TensorFile& file, const std::string& name) {
  const auto removed =
      std::erase_if(file.tensors, [&](const auto& entry) { return entry.first == name; });
  ASSERT_EQ(removed, 1) << "the checkpoint has no tensor " << name;
}

// ---- Resuming in a new process ------------------------------------------------------------------

/// Runs resume_tool, which is built beside this program, and returns what it prints.
json resume_tool(const std::string& arguments) {
  const auto tool = fs::read_symlink("/proc/self/exe").parent_path() / "resume_tool";
  const std::string command = "'" + tool.string() + "' " + arguments;
  FILE* pipe = ::popen(command.c_str(), "r");
  TORCH_CHECK(pipe != nullptr, "cannot run ", command);
  std::string output;
  std::array<char, 4096> buffer{};
  while (const size_t size = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.append(buffer.data(), size);
  }
  const int status = ::pclose(pipe);
  TORCH_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "failed with status ", status, ": ",
              command);
  return json::parse(output);
}

/// The tensors whose digests differ.
std::vector<std::string> differences(const json& a, const json& b) {
  std::vector<std::string> result;
  for (const auto& [name, digest] : a.at("tensors").items()) {
    if (b.at("tensors").value(name, "missing") != digest) result.push_back(name);
  }
  EXPECT_EQ(a.at("tensors").size(), b.at("tensors").size());
  return result;
}

class ResumedCheckpoint : public Checkpoint, public ::testing::WithParamInterface<const char*> {};

TEST_P(ResumedCheckpoint, IsBitExactInANewProcess) {
  const std::string mode = GetParam();
  const auto half = (directory_ / "half").string();
  const auto straight_end = (directory_ / "straight").string();
  const auto resumed_end = (directory_ / "resumed").string();
  const auto straight = resume_tool(mode + " train 100 save " + straight_end);
  const auto first_half = resume_tool(mode + " train 50 save " + half);
  const auto resumed = resume_tool(mode + " load " + half + " train 50 save " + resumed_end);

  EXPECT_EQ(straight.at("step"), 100);
  EXPECT_EQ(resumed.at("step"), 100);
  EXPECT_EQ(resumed.at("lr"), straight.at("lr"));
  EXPECT_THAT(differences(straight, resumed), IsEmpty());
  EXPECT_TRUE(slurp(resumed_end) == slurp(straight_end)) << "the checkpoints at the end differ";
  EXPECT_FALSE(differences(straight, first_half).empty()) << "the second half trained nothing";
}

INSTANTIATE_TEST_SUITE_P(Modes, ResumedCheckpoint,
                         ::testing::Values("default", "default,double", "vertical-adam", "polar",
                                           "polar,vertical-adam,double"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return c == ',' || c == '-'; }, '_');
                           return name;
                         });

TEST_F(Checkpoint, NeedsTheGeneratorToResumeARunThatDrawsNumbers) {
  const auto half = (directory_ / "half").string();
  const auto straight = resume_tool("default train 10 save " + half + " train 10");
  const auto without = resume_tool("default load-without-rng " + half + " train 10");
  const auto with_rng = resume_tool("default load " + half + " train 10");
  EXPECT_THAT(differences(straight, with_rng), IsEmpty());
  EXPECT_FALSE(differences(straight, without).empty());
}

// ---- Round trips --------------------------------------------------------------------------------

TEST_F(Checkpoint, RestoresModelOptimizerGeneratorAndNotesInPlace) {
  const auto saved = trained_run();
  const std::map<std::string, std::string> notes{
      {"epoch", "3"}, {"", "no key"}, {"text", "a \"quote\",\na line and ünïcode"}};
  save_checkpoint(path_, saved.params, saved.optimizer.get(), {.rng = true, .notes = notes});
  const auto expected = snapshot(saved);
  const auto drawn = at::randn({3});

  const auto loaded = make_run({.seed = 2});
  loaded.train(7, 2);
  const auto tensor = loaded.params["layers.0.weight"].tensor;
  const auto* memory = tensor.const_data_ptr();
  EXPECT_EQ(load_checkpoint(path_, loaded.params, loaded.optimizer.get(), {.rng = true}), notes);
  EXPECT_THAT(differences(expected, snapshot(loaded)), IsEmpty());
  EXPECT_EQ(tensor.const_data_ptr(), memory);
  EXPECT_TRUE(tensor.requires_grad() && tensor.is_leaf());
  EXPECT_TRUE(at::equal(at::randn({3}), drawn));

  saved.train(3, 3);
  loaded.train(3, 3);
  EXPECT_THAT(differences(snapshot(saved), snapshot(loaded)), IsEmpty());
}

TEST_F(Checkpoint, LeavesTheGeneratorAloneUnlessAsked) {
  const auto run = trained_run();
  save_checkpoint(path_, run.params, run.optimizer.get(), {.rng = true});
  at::randn({3});
  const auto before = snapshot(run);
  load_checkpoint(path_, run.params, run.optimizer.get());
  EXPECT_THAT(differences(before, snapshot(run)), IsEmpty());
}

TEST_F(Checkpoint, MayHoldAModelAlone) {
  const auto saved = trained_run();
  save_checkpoint(path_, saved.params, nullptr);
  const auto loaded = make_run({.seed = 2});
  load_checkpoint(path_, loaded.params, nullptr);
  for (const auto& [name, tensor] : saved.params) {
    EXPECT_TRUE(at::equal(loaded.params[name].tensor, tensor)) << name;
  }
}

TEST_F(Checkpoint, GivesAModelToThoseWhoHaveNoOptimizer) {
  const auto saved = trained_run();
  save_checkpoint(path_, saved.params, saved.optimizer.get());
  const auto loaded = make_run({.seed = 2});
  const auto state = loaded.optimizer->state_dict();
  load_checkpoint(path_, loaded.params, nullptr);
  EXPECT_EQ(bytes_of(loaded.params["layers.0.weight"].tensor),
            bytes_of(saved.params["layers.0.weight"].tensor));
  EXPECT_EQ(loaded.optimizer->state_dict().description, state.description);
}

/// Parameters that a placement holds behind an optimizer of LibTorch.
struct HeldTraining {
  Testbed bed = testbeds::rms_norm_block();
  Parameters params;
  Placement placement;
  torch::optim::AdamW optimizer;

  explicit HeldTraining(uint64_t seed, const Treatment& treatment = {.every = 3})
      : params(bed.init(seed, at::kFloat)),
        placement(params, bed.gauges(params), treatment),
        optimizer(params.tensors(), torch::optim::AdamWOptions(1e-2)) {}

  void train(int64_t first_step, int64_t steps) {
    for (int64_t step = first_step; step < first_step + steps; ++step) {
      backward(bed, params, bed.batch(static_cast<uint64_t>(step), at::kFloat));
      optimizer.step();
      placement.restore_();
    }
  }
};

TEST_F(Checkpoint, GoesOnBehindAnOptimizerOfLibTorchFromEitherPlace) {
  for (const bool original : {false, true}) {
    HeldTraining run(1);
    run.train(0, 5);
    if (original) run.placement.to_original_();
    save_checkpoint(path_, run.params, run.placement, {.notes = {{"step", "5"}}});
    torch::save(run.optimizer, directory_ / "adamw.pt");
    const auto saved = run.params.clone();
    if (original) run.placement.to_canonical_();
    run.train(5, 5);

    HeldTraining resumed(2);
    const auto notes = load_checkpoint(path_, resumed.params, resumed.placement);
    torch::load(resumed.optimizer, directory_ / "adamw.pt");
    EXPECT_EQ(notes.at("step"), "5");
    EXPECT_EQ(resumed.placement.is_original(), original);
    for (const auto& [name, tensor] : saved) {
      EXPECT_EQ(bytes_of(resumed.params[name].tensor), bytes_of(tensor)) << name;
    }
    if (original) resumed.placement.to_canonical_();
    resumed.train(5, 5);
    for (const auto& [name, tensor] : run.params) {
      const auto& again = resumed.params[name].tensor;
      if (!original) {
        EXPECT_EQ(bytes_of(again), bytes_of(tensor)) << name;
      }
      EXPECT_TRUE(at::allclose(again, tensor, 1e-3, 1e-4)) << name;
    }
  }
}

TEST_F(Checkpoint, IsRefusedByAPlacementThatItDoesNotFit) {
  HeldTraining run(1);
  run.train(0, 2);
  save_checkpoint(path_, run.params, run.placement);
  const auto refused = [&](HeldTraining& other, const std::vector<std::string>& words) {
    const auto before = other.params.clone();
    expect_error([&] { load_checkpoint(path_, other.params, other.placement); }, words);
    for (const auto& [name, tensor] : before) {
      EXPECT_EQ(bytes_of(other.params[name].tensor), bytes_of(tensor)) << name;
    }
  };
  HeldTraining treated_otherwise(2, {.every = 4});
  refused(treated_otherwise, {path_.string(), "another treatment"});
  HeldTraining other(2);
  auto file = io::read_safetensors(path_);
  const auto element = std::find_if(file.tensors.begin(), file.tensors.end(), [](const auto& each) {
    return each.first.starts_with("placement/") && each.first.ends_with(".element");
  });
  ASSERT_NE(element, file.tensors.end());
  const auto name = element->first;
  const auto whole = element->second;
  const auto changed = [&](const at::Tensor& value) {
    element->second = value;
    io::write_safetensors(path_, file);
  };
  changed(at::cat({whole.flatten(), whole.flatten()}));
  refused(other, {name, "shape"});
  changed(whole * std::numeric_limits<double>::quiet_NaN());
  refused(other, {name, "not finite"});
  file.tensors.erase(element);
  io::write_safetensors(path_, file);
  refused(other, {"no tensor", name});
  save_checkpoint(path_, run.params, nullptr);
  refused(other, {"no state of a placement"});
  // And a model alone can be had of it.
  save_checkpoint(path_, run.params, run.placement);
  const auto model = run.bed.init(7, at::kFloat);
  load_checkpoint(path_, model, nullptr);
  EXPECT_EQ(bytes_of(model.tensors()[0]), bytes_of(run.params.tensors()[0]));
}

TEST_F(Checkpoint, KeepsParametersThatWereNeverSteppedAtTheirStart) {
  const auto frozen = [](const Training& run, int64_t first, int64_t steps) {
    for (int64_t step = first; step < first + steps; ++step) {
      backward(run.bed, run.params, run.bed.batch(static_cast<uint64_t>(step), at::kDouble));
      run.params["layers.1.weight"].tensor.mutable_grad() = at::Tensor();
      run.optimizer->step();
    }
  };
  const auto saved = make_run();
  frozen(saved, 0, 3);
  save_checkpoint(path_, saved.params, saved.optimizer.get());
  const auto loaded = make_run({.seed = 2});
  loaded.train(0, 2);
  load_checkpoint(path_, loaded.params, loaded.optimizer.get());
  EXPECT_THAT(differences(snapshot(saved), snapshot(loaded)), IsEmpty());
  const auto state = loaded.optimizer->state_dict();
  EXPECT_EQ(state.tensors.at("param.layers.1.weight.step").item<int64_t>(), 0);
  EXPECT_EQ(state.tensors.at("param.layers.1.weight.exp_avg").abs().max().item<double>(), 0);
  EXPECT_EQ(state.tensors.at("param.layers.0.weight.step").item<int64_t>(), 3);
  frozen(saved, 3, 2);
  frozen(loaded, 3, 2);
  saved.train(5, 2);
  loaded.train(5, 2);
  EXPECT_THAT(differences(snapshot(saved), snapshot(loaded)), IsEmpty());
}

// ---- Files that are refused ---------------------------------------------------------------------

TEST_F(Checkpoint, IsRefusedWhereverItIsTruncated) {
  const auto run = trained_run();
  save_checkpoint(path_, run.params, run.optimizer.get(), {.rng = true});
  const auto whole = slurp(path_);
  uint64_t header = 0;
  std::memcpy(&header, whole.data(), sizeof(header));
  const size_t data = sizeof(header) + header;
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{7}, size_t{8}, size_t{9}, data / 2, data - 1, data, data + 1,
        (data + whole.size()) / 2, whole.size() - 1}) {
    SCOPED_TRACE(size);
    spill(path_, whole.substr(0, size));
    expect_refused({});
  }
  spill(path_, whole);
  load_checkpoint(path_, run.params, run.optimizer.get(), {.rng = true});
}

TEST_F(Checkpoint, IsRefusedIfItIsNotThere) {
  expect_refused({"No such file"});
  fs::create_directory(path_);
  expect_refused({"not a regular file"});
}

TEST_F(Checkpoint, IsRefusedIfItIsRandomBytes) {
  std::mt19937_64 random(3);
  for (const size_t size : {16, 1000, 100000}) {
    std::string bytes(size, '\0');
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
    spill(path_, bytes);
    expect_refused({"safetensors"});
  }
}

TEST_F(Checkpoint, IsRefusedIfItIsAnArchiveOfLibTorch) {
  torch::save(at::ones({3}), path_.string());
  expect_refused({"not a safetensors file", "zip"});
}

TEST_F(Checkpoint, IsRefusedIfItIsSomeoneElsesSafetensorsFile) {
  const auto run = trained_run();
  io::TensorFile file;
  for (const auto& [name, tensor] : run.params) file.tensors.emplace_back(name, tensor);
  io::write_safetensors(path_, file);
  expect_refused({"not a checkpoint of this library", "ddc.format"});
  save_changed([](io::TensorFile& ours) { ours.metadata["ddc.format"] = "checkpoint-2"; });
  expect_refused({"ddc.format", "checkpoint-1"});
}

TEST_F(Checkpoint, IsRefusedIfATensorOfTheModelDoesNotFit) {
  const std::string name = "model/layers.2.bias";
  save_changed([&](io::TensorFile& file) { remove_tensor(file, name); });
  expect_refused({"layers.2.bias"});
  save_changed([&](io::TensorFile& file) {
    change_tensor(file, name, [](const at::Tensor& t) { return at::cat({t, t}); });
  });
  expect_refused({"layers.2.bias", "[2]", "[4]"});
  // As many entries, and of a shape that could be broadcast.
  save_changed([&](io::TensorFile& file) {
    change_tensor(file, name, [](const at::Tensor& t) { return t.unsqueeze(0); });
  });
  expect_refused({"layers.2.bias", "[2]", "[1, 2]"});
  save_changed([&](io::TensorFile& file) {
    change_tensor(file, name, [](const at::Tensor& t) { return t.to(at::kFloat); });
  });
  expect_refused({"layers.2.bias", "Double", "Float"});
  save_changed([&](io::TensorFile& file) { file.tensors.emplace_back("model/more", at::ones(2)); });
  expect_refused({"more", "not in the model"});
}

TEST_F(Checkpoint, IsRefusedIfItHoldsATensorOfNoPart) {
  save_changed([](io::TensorFile& file) { file.tensors.emplace_back("stray", at::ones(2)); });
  expect_refused({"'stray'"});
}

TEST_F(Checkpoint, IsRefusedIfATensorOfTheOptimizerDoesNotFit) {
  const std::string moment = "optimizer/param.layers.2.bias.exp_avg_sq";
  save_changed([&](io::TensorFile& file) { remove_tensor(file, moment); });
  expect_refused({"param.layers.2.bias.exp_avg_sq"});
  save_changed([&](io::TensorFile& file) {
    change_tensor(file, moment, [](const at::Tensor& t) { return t.unsqueeze(0); });
  });
  expect_refused({"param.layers.2.bias.exp_avg_sq", "[1, 2]"});
  save_changed([&](io::TensorFile& file) {
    change_tensor(file, moment, [](const at::Tensor& t) { return t.to(at::kFloat); });
  });
  expect_refused({"param.layers.2.bias.exp_avg_sq", "Float"});
  save_changed([](io::TensorFile& file) {
    file.tensors.emplace_back("optimizer/param.ghost.exp_avg", at::ones(2));
  });
  expect_refused({"param.ghost.exp_avg"});
  save_changed([](io::TensorFile& file) {
    change_tensor(file, "optimizer/param.layers.2.bias.step",
                  [](const at::Tensor& t) { return -t; });
  });
  expect_refused({"param.layers.2.bias.step", "-3"});
}

TEST_F(Checkpoint, IsRefusedIfItHoldsNoOptimizerOrNoGenerator) {
  const auto run = trained_run();
  save_checkpoint(path_, run.params, nullptr, {.rng = true});
  expect_refused({"no optimizer state"});
  save_checkpoint(path_, run.params, run.optimizer.get());
  expect_refused({"random number generator"});
}

TEST_F(Checkpoint, IsRefusedIfItsGeneratorStateIsNotOne) {
  save_changed([](io::TensorFile& file) {
    change_tensor(file, "rng/cpu", [](const at::Tensor& t) { return t.narrow(0, 0, 100).clone(); });
  });
  expect_refused({"rng/cpu"});
  save_changed([](io::TensorFile& file) {
    change_tensor(file, "rng/cpu", [](const at::Tensor& t) { return t.to(at::kInt); });
  });
  expect_refused({"rng/cpu"});
  save_changed([](io::TensorFile& file) {
    change_tensor(file, "rng/cpu", [](const at::Tensor& t) { return at::full_like(t, 255); });
  });
  expect_refused({"rng/cpu"});
}

TEST_F(Checkpoint, IsRefusedByAnOptimizerWithOtherGauges) {
  const auto saved = trained_run();
  save_checkpoint(path_, saved.params, saved.optimizer.get(), {.rng = true});
  const auto refused = [&](const std::function<void(std::vector<Gauge>&)>& change,
                           std::vector<std::string> parts) {
    const auto run = make_run({.change_gauges = [&](std::vector<Gauge> gauges) {
      change(gauges);
      return gauges;
    }});
    expect_refused(run, std::move(parts));
  };
  refused([](auto& gauges) { gauges.clear(); }, {"2 gauges", "0"});
  refused([](auto& gauges) { gauges.pop_back(); }, {"2 gauges", "1"});
  refused([](auto& gauges) { std::swap(gauges[0], gauges[1]); }, {"gauge 0", "layers.1.weight"});
  refused([](auto& gauges) { gauges[1].name = "renamed"; }, {"gauge 1", "renamed"});
  refused([](auto& gauges) { gauges[1].legs.pop_back(); }, {"gauge 1", "layers.2.weight"});
  refused([](auto& gauges) { gauges[1].legs[2].exponent = -2; }, {"gauge 1", "exponent", "-2"});
  refused(
      [](auto& gauges) {
        for (auto& leg : gauges[1].legs) leg.channel_of = {3, 2, 1, 0};
      },
      {"gauge 1", "channel_of", "[3,2,1,0]"});
  refused([](auto& gauges) { gauges[1].legs[1].offset = 1; }, {"gauge 1", "offset"});
}

TEST_F(Checkpoint, IsRefusedByAnOptimizerThatTreatsItsGaugesOtherwise) {
  const auto saved = trained_run();
  save_checkpoint(path_, saved.params, saved.optimizer.get(), {.rng = true});
  const auto second = saved.optimizer->gauges()[1].name;
  const auto refused = [&](const std::function<void(Treatment&)>& change,
                           std::vector<std::string> parts) {
    auto treatment = kPolarAndMoving;
    change(treatment);
    expect_refused(make_run({.treatments = Treatments(kPolarAndMoving).of(second, treatment)}),
                   std::move(parts));
  };
  refused([](Treatment& t) { t.coordinates = Coordinates::balanced; },
          {"gauge 1", "balanced", "polar"});
  refused([](Treatment& t) { t.vertical = Vertical::sgd; }, {"gauge 1", "sgd", "adam"});
  refused([](Treatment& t) { t.radial = Radial::log; }, {"gauge 1", "log", "linear"});
  refused([](Treatment& t) { t.hold = Hold::unit; }, {"gauge 1", "unit", "ratio"});
  refused([](Treatment& t) { t.max_log_step = 0.25; }, {"gauge 1", "max_log_step", "0.25"});
  refused([](Treatment& t) { t.project = Projection::never; }, {"gauge 1", "never", "step"});
  refused([](Treatment& t) { t.bind = false; }, {"2 gauges", "1"});
}

TEST_F(Checkpoint, IsRefusedByAnOptimizerWithOtherParamGroups) {
  const auto saved = trained_run();
  save_checkpoint(path_, saved.params, saved.optimizer.get(), {.rng = true});
  expect_refused(make_run({.groups =
                               [](const Parameters& params) {
                                 return std::vector<OptimizerParamGroup>{params.tensors()};
                               }}),
                 {"2 param groups", "1"});
  expect_refused(make_run({.groups =
                               [](const Parameters& params) {
                                 auto groups = two_groups(params);
                                 std::swap(groups[0], groups[1]);
                                 return groups;
                               }}),
                 {"param group 0", "layers.0.weight", "layers.0.bias"});
  expect_refused(make_run({.groups =
                               [](const Parameters& params) {
                                 auto groups = two_groups(params);
                                 auto& moved = groups[1].params().back();
                                 groups[0].params().push_back(moved);
                                 groups[1].params().pop_back();
                                 return groups;
                               }}),
                 {"param group 0", "layers.2.bias"});
}

TEST_F(Checkpoint, IsRefusedIfItIsOfAnotherOptimizer) {
  save_with_description([](json& description) { description["optimizer"] = "DDCMuon"; });
  expect_refused({"DDCMuon", "DDCAdam"});
  save_with_description([](json& description) { description["version"] = 3; });
  expect_refused({"version 3", "version 2"});
  save_with_description([](json& description) { description["version"] = 1; });
  expect_refused({"ddc 0.1", "did not store how gauges are treated"});
}

TEST_F(Checkpoint, IsRefusedIfAnOptionIsUnusable) {
  for (const auto& [option, value] :
       std::map<std::string, double>{{"lr", -1}, {"eps", -1}, {"beta2", 1}, {"weight_decay", -2}}) {
    save_with_description(
        [&](json& description) { description["groups"][1]["options"][option] = value; });
    expect_refused({"param group 1", "option " + option});
  }
}

TEST_F(Checkpoint, IsRefusedIfItsDescriptionIsNotJson) {
  for (const auto* text : {"", "{", "not JSON", "[]", "null", "{}", "3"}) {
    SCOPED_TRACE(text);
    save_changed([&](io::TensorFile& file) { file.metadata["ddc.optimizer"] = text; });
    expect_refused({"description"});
  }
}

std::string nested(size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); }

TEST_F(Checkpoint, IsRefusedIfItsDescriptionIsNestedDeeperThanAny) {
  // A document of 100,000 levels overflowed the stack when it was freed.
  for (const size_t levels : {100, 50'000, 100'000, 1'000'000}) {
    SCOPED_TRACE(levels);
    save_changed([&](io::TensorFile& file) {
      auto& text = file.metadata.at("ddc.optimizer");
      auto description = json::parse(text);
      description["groups"][0]["params"] = "here";
      text = description.dump();
      text.replace(text.find("\"here\""), 6, nested(levels));
    });
    expect_refused({"optimizer state: its description is nested deeper than 64 levels"});
  }
}

TEST_F(Checkpoint, IsRefusedInAShortSentenceOfItsOwn) {
  const auto refused = [&](const std::function<void(json&)>& change,
                           const std::vector<std::string>& parts) {
    save_with_description(change);
    const auto run = make_run({.seed = 2});
    expect_refused(run, parts);
    try {
      load_checkpoint(path_, run.params, run.optimizer.get(), {.rng = true});
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      EXPECT_LT(text.size(), path_.string().size() + 600);
      EXPECT_EQ(text.find("json.exception"), std::string::npos) << text;
    }
  };
  refused([](json& d) { d["optimizer"] = 3; }, {"has the optimizer 3, which is no name"});
  refused([](json& d) { d.erase("optimizer"); }, {"its description has no 'optimizer'"});
  refused([](json& d) { d.erase("symmetries"); }, {"its description has no 'symmetries'"});
  refused([](json& d) { d["groups"] = "x"; }, {"param groups"});
  refused([](json& d) { d["groups"][0]["params"] = json::parse(nested(50)); },
          {"param group 0: params[0] is [[[[", "optimizer's is \"layers.0.weight\""});
  refused([](json& d) { d["groups"][0].erase("options"); },
          {"param group 0: its options are null, must be an object"});
  refused([](json& d) { d["groups"][0]["options"]["lr"] = json::array({1}); },
          {"param group 0: its option \"lr\" is [1], must be a number"});
  refused([](json& d) { d["symmetries"]["gauges"][0] = std::string(100'000, 'x'); },
          {"gauge 0 (layers.0.weight:rescale): it is \"xxx"});
  refused(
      [](json& d) {
        d["symmetries"]["gauges"][0]["gauge"]["name"] = {{"a", nullptr}};
      },
      {"gauge 0 (layers.0.weight:rescale): its name is {\"a\":null}"});
}

// ---- The state of the optimizer -----------------------------------------------------------------

/// Expects that the state is refused with an error that names `parts`, and nothing has changed.
void expect_state_refused(const Training& run, const OptimizerState& state,
                          const std::vector<std::string>& parts) {
  const auto before = snapshot(run);
  expect_error([&] { run.optimizer->load_state_dict(state); }, parts);
  EXPECT_THAT(differences(before, snapshot(run)), IsEmpty());
}

TEST(OptimizerState, IsACopy) {
  const auto run = trained_run();
  const auto state = run.optimizer->state_dict();
  Snapshot before;
  for (const auto& [name, tensor] : state.tensors) before[name] = bytes_of(tensor);
  run.train(3, 3);
  EXPECT_THAT(differences(before,
                          [&] {
                            Snapshot after;
                            for (const auto& [name, tensor] : state.tensors)
                              after[name] = bytes_of(tensor);
                            return after;
                          }()),
              IsEmpty());

  // And the other way round: what was loaded is the optimizer's own.
  const auto loaded = make_run({.seed = 2});
  loaded.optimizer->load_state_dict(state);
  const auto own = snapshot(loaded);
  for (const auto& [name, tensor] : state.tensors) at::Tensor(tensor).zero_();
  EXPECT_THAT(differences(own, snapshot(loaded)), IsEmpty());
}

TEST(OptimizerState, IsRefusedIfAnyTensorIsMissingAndNamesIt) {
  const auto complete = trained_run().optimizer->state_dict();
  ASSERT_GT(complete.tensors.count("radial.layers.0.weight:rescale.0.first") +
                complete.tensors.count("gauge.layers.0.weight:rescale.vertical.second"),
            0);
  const auto run = make_run({.seed = 2});
  run.train(7, 2);
  for (const auto& [name, tensor] : complete.tensors) {
    SCOPED_TRACE(name);
    auto state = complete;
    state.tensors.erase(name);
    expect_state_refused(run, state, {"'" + name + "'"});
  }
}

TEST(OptimizerState, IsRefusedIfAnyTensorHasAnotherShapeOrTypeAndNamesIt) {
  const auto complete = trained_run().optimizer->state_dict();
  const auto run = make_run({.seed = 2});
  run.train(7, 2);
  for (const auto& [name, tensor] : complete.tensors) {
    SCOPED_TRACE(name);
    auto state = complete;
    state.tensors[name] = at::stack({tensor, tensor});
    expect_state_refused(run, state, {"'" + name + "'"});
    state.tensors[name] = tensor.to(at::kHalf);
    expect_state_refused(run, state, {"'" + name + "'", "Half"});
  }
}

/// All places in a document.
std::vector<json::json_pointer> pointers(const json& document) {
  std::vector<json::json_pointer> result;
  const auto visit = [&](const auto& self, const json& node,
                         const json::json_pointer& place) -> void {
    result.push_back(place);
    if (node.is_object()) {
      for (const auto& [key, child] : node.items()) self(self, child, place / key);
    } else if (node.is_array()) {
      for (size_t i = 0; i < node.size(); ++i) self(self, node[i], place / i);
    }
  };
  visit(visit, document, json::json_pointer());
  return result;
}

TEST(OptimizerState, IsRefusedWhateverIsReplacedInItsDescription) {
  const auto complete = trained_run().optimizer->state_dict();
  const auto document = json::parse(complete.description);
  const auto run = make_run({.seed = 2});
  const auto places = pointers(document);
  ASSERT_GT(places.size(), 50);
  for (const auto& place : places) {
    for (const auto& other : {json(nullptr), json("x"), json::array(), json::object(),
                              json::array({nullptr}), json(-1.5)}) {
      if (document[place] == other) continue;
      SCOPED_TRACE(place.to_string() + " -> " + other.dump());
      auto changed = document;
      changed[place] = other;
      expect_state_refused(run, {complete.tensors, changed.dump()}, {"optimizer state"});
    }
  }
}

TEST(OptimizerState, KeepsDegenerateChannelsAsTheyWere) {
  const auto bed = testbeds::relu_chain({.depth = 2, .d_hidden = 4});
  const auto make = [&](uint64_t seed, bool zero_output) {
    Training run{bed, bed.init(seed, at::kDouble), nullptr};
    if (zero_output) run.params["layers.1.weight"].tensor.detach().zero_();
    run.optimizer = std::make_unique<DDCAdam>(run.params, bed.gauges(run.params));
    return run;
  };
  const auto set_lr = [](const Training& run, double lr) {
    run.optimizer->param_groups()[0].options().set_lr(lr);
  };
  const auto straight = make(1, /*zero_output=*/true);
  set_lr(straight, 1e-6);  // too slow to leave the neighbourhood of zero
  straight.train(0, 2);
  ASSERT_EQ(straight.optimizer->report().degenerate_channels(), 4);

  // Made where nothing is degenerate.
  const auto resumed = make(2, /*zero_output=*/false);
  for (const auto& [name, tensor] : resumed.params) {
    tensor.detach().copy_(straight.params[name].tensor.detach());
  }
  resumed.optimizer->load_state_dict(straight.optimizer->state_dict());
  EXPECT_EQ(resumed.optimizer->report().degenerate_channels(), 4);
  for (const auto* run : {&straight, &resumed}) {
    set_lr(*run, 3e-3);
    run->train(2, 20);
  }
  EXPECT_EQ(straight.optimizer->report().degenerate_channels(), 0);
  EXPECT_THAT(differences(snapshot(straight), snapshot(resumed)), IsEmpty());
}

struct StateMode {
  std::string name;
  Treatment treatment;
};

class ResumedState : public ::testing::TestWithParam<StateMode> {};

TEST_P(ResumedState, ContinuesToTheLastBit) {
  const auto bed = testbeds::layer_norm_block();
  for (const auto type : {at::kDouble, at::kFloat}) {
    const auto make = [&](uint64_t seed) {
      Training run{bed, bed.init(seed, type), nullptr};
      run.optimizer = std::make_unique<DDCAdam>(run.params, bed.gauges(run.params), usual_options(),
                                                GetParam().treatment);
      return run;
    };
    const auto straight = make(1);
    straight.train(0, 4);
    const auto resumed = make(2);
    {
      const at::NoGradGuard no_grad;
      for (const auto& [name, tensor] : resumed.params) {
        at::Tensor(tensor).copy_(straight.params[name].tensor);
      }
    }
    resumed.optimizer->load_state_dict(straight.optimizer->state_dict());
    EXPECT_THAT(differences(snapshot(straight), snapshot(resumed)), IsEmpty());
    straight.train(4, 4);
    resumed.train(4, 4);
    EXPECT_THAT(differences(snapshot(straight), snapshot(resumed)), IsEmpty());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Modes, ResumedState,
    ::testing::Values(
        StateMode{"Folded", {.coordinates = Coordinates::folded, .hold = Hold::ratio}},
        StateMode{
            "FoldedUnitSgd",
            {.coordinates = Coordinates::folded, .hold = Hold::unit, .vertical = Vertical::sgd}},
        StateMode{"BalancedAdam",
                  {.coordinates = Coordinates::balanced,
                   .hold = Hold::ratio,
                   .vertical = Vertical::adam}},
        StateMode{
            "PolarLinearAdam",
            {.coordinates = Coordinates::polar, .hold = Hold::ratio, .vertical = Vertical::adam}},
        StateMode{"PolarLog",
                  {.coordinates = Coordinates::polar, .hold = Hold::ratio, .radial = Radial::log}}),
    [](const auto& instance) { return instance.param.name; });

// ---- LibTorch's archives ------------------------------------------------------------------------

TEST_F(Checkpoint, GoesThroughLibTorchsArchivesInMemory) {
  const auto saved = trained_run();
  torch::serialize::OutputArchive out;
  saved.optimizer->save(out);
  std::stringstream stream;
  out.save_to(stream);

  const auto loaded = make_run({.seed = 2});
  torch::serialize::InputArchive in;
  in.load_from(stream);
  loaded.optimizer->load(in);
  EXPECT_THAT(differences(snapshot_state(*saved.optimizer), snapshot_state(*loaded.optimizer)),
              IsEmpty());
}

TEST_F(Checkpoint, GoesThroughLibTorchsArchivesOnDisk) {
  const auto saved = trained_run();
  torch::save(*saved.optimizer, path_.string());
  const auto loaded = make_run({.seed = 2});
  loaded.train(7, 2);
  torch::load(*loaded.optimizer, path_.string());
  EXPECT_THAT(differences(snapshot_state(*saved.optimizer), snapshot_state(*loaded.optimizer)),
              IsEmpty());
}

TEST_F(Checkpoint, RefusesAnotherOptimizersArchive) {
  const auto run = trained_run();
  torch::optim::AdamW other(run.params.tensors());
  torch::save(other, path_.string());
  const auto before = snapshot(run);
  expect_error([&] { torch::load(*run.optimizer, path_.string()); }, {"DDCAdam"});
  EXPECT_THAT(differences(before, snapshot(run)), IsEmpty());

  const auto elsewhere = make_run({.change_gauges = [](auto gauges) {
    gauges.pop_back();
    return gauges;
  }});
  torch::save(*elsewhere.optimizer, path_.string());
  expect_error([&] { torch::load(*run.optimizer, path_.string()); }, {"1 gauges", "2"});
  EXPECT_THAT(differences(before, snapshot(run)), IsEmpty());
}

// ---- Killed while saving ------------------------------------------------------------------------

TEST_F(Checkpoint, IsNotLostWhenTheProcessIsKilledWhileSaving) {
  // Wide enough that writing takes a while, narrow enough that no kernel in the child wants the
  // OpenMP threads which a fork loses.
  const testbeds::ReluChainOptions chain{
      .depth = 6, .d_in = 160, .d_hidden = 160, .d_out = 160, .batch_size = 1};
  std::array<Training, 2> versions{make_run({.chain = chain}),
                                   make_run({.seed = 2, .chain = chain})};
  std::array<Snapshot, 2> expected;
  const auto save = [&](int version) {
    save_checkpoint(path_, versions[version].params, versions[version].optimizer.get(),
                    {.rng = true, .notes = {{"version", std::to_string(version)}}});
  };
  for (int v = 0; v < 2; ++v) {
    versions[v].train(v, 1);
    expected[v] = snapshot(versions[v]);
  }
  save(0);
  const auto loaded = make_run({.seed = 3, .chain = chain});
  std::mt19937_64 random(7);
  int killed_midway = 0;
  std::array<int, 2> found{};
  for (int round = 0; round < 40; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        for (int i = round;; ++i) save(i % 2);
      } catch (...) {
        ::_exit(1);
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 40'000));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "a save in the child failed";

    const auto notes = load_checkpoint(path_, loaded.params, loaded.optimizer.get(), {.rng = true});
    const int version = notes.at("version") == "1" ? 1 : 0;
    ASSERT_THAT(differences(expected[version], snapshot(loaded)), IsEmpty());
    ++found[version];
    killed_midway +=
        std::distance(fs::directory_iterator(directory_), fs::directory_iterator()) > 1;
  }
  // Otherwise the test has shown nothing.
  EXPECT_GT(killed_midway, 0);
  EXPECT_GT(found[0], 0);
  EXPECT_GT(found[1], 0);
}

}  // namespace
}  // namespace ddc::tests
