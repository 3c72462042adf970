// A training run in a process of its own, for checkpoint_test.cpp and
// tests/python/test_checkpoint_interop.py.
//
//   resume_tool <mode> <command>...
//
// The mode is `default`, or words of `polar`, `vertical-adam` and `double`, joined by commas. The
// commands are done in their order:
//
//   train <steps>              trains on, with every gauge of a transformer, three param groups, a
//                              schedule, and noise from LibTorch's default generator
//   save <path>                saves a checkpoint, generator included
//   load <path>                loads one
//   load-without-rng <path>    loads one, but not the generator
//
// At the end it prints as JSON the number of steps, the learning rates, and a digest of every
// tensor that a checkpoint would hold, under its name there.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cstdint>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "ddc/io/checkpoint.h"
#include "ddc/optim/adam.h"
#include "ddc/optim/schedule.h"
#include "ddc/testbeds/blocks.h"

namespace {

struct Mode {
  bool polar = false;
  bool vertical_adam = false;
  at::ScalarType type = at::kFloat;
};

Mode parse_mode(const std::string& text) {
  Mode mode;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    if (word == "polar") {
      mode.polar = true;
    } else if (word == "vertical-adam") {
      mode.vertical_adam = true;
    } else if (word == "double") {
      mode.type = at::kDouble;
    } else {
      TORCH_CHECK(word == "default", "unknown mode '", word, "'");
    }
  }
  return mode;
}

ddc::Treatment treatment_of(const Mode& mode) {
  ddc::Treatment treatment;
  if (mode.polar) treatment.coordinates = ddc::Coordinates::polar;
  if (mode.vertical_adam) treatment.vertical = ddc::Vertical::adam;
  return treatment;
}

const ddc::AdamOptions kOptions{.lr = 1e-3, .weight_decay = 0.1};

/// Embeddings, other matrices, and vectors, which do not decay.
std::vector<torch::optim::OptimizerParamGroup> groups_of(const ddc::Parameters& params) {
  std::vector<at::Tensor> embeddings;
  std::vector<at::Tensor> matrices;
  std::vector<at::Tensor> vectors;
  for (const auto& [name, tensor] : params) {
    const bool embedding = name == "embedding.weight" || name == "positions.weight";
    (embedding ? embeddings : tensor.dim() > 1 ? matrices : vectors).push_back(tensor);
  }
  auto of_embeddings = kOptions;
  of_embeddings.beta1 = 0.8;
  of_embeddings.beta2 = 0.99;
  auto of_vectors = kOptions;
  of_vectors.lr = 3e-3;
  of_vectors.weight_decay = 0;
  using Options = ddc::LiftedRuleOptions<ddc::AdamRule>;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(embeddings, std::make_unique<Options>(of_embeddings));
  groups.emplace_back(matrices);
  groups.emplace_back(vectors, std::make_unique<Options>(of_vectors));
  return groups;
}

/// FNV-1a, 64 bits.
std::string digest(const at::Tensor& tensor) {
  const auto dense = tensor.detach().contiguous();
  const auto* bytes = static_cast<const uint8_t*>(dense.const_data_ptr());
  uint64_t hash = 0xcbf29ce484222325U;
  for (size_t i = 0; i < dense.nbytes(); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3U;
  std::ostringstream text;
  text << std::hex << hash;
  return text.str();
}

class Run {
 public:
  explicit Run(const Mode& mode)
      : type_(mode.type),
        params_(bed_.init(1, mode.type)),
        optimizer_(groups_of(params_), params_, bed_.gauges(params_), kOptions, treatment_of(mode)),
        scheduler_(optimizer_, {.warmup = 10, .total = 120, .final_fraction = 0.1}) {
    at::manual_seed(5);
  }

  void train(int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) {
      auto batch = bed_.batch(static_cast<uint64_t>(scheduler_.current_step()), type_);
      const auto dropped = at::rand(batch.inputs.sizes()) < 0.1;
      batch.inputs = batch.inputs.masked_fill(dropped, 0);
      // A single normal number: the generator keeps the other one of the pair for later.
      const auto noise = 1 + 0.1 * at::randn({1}, at::kDouble).item<double>();
      optimizer_.zero_grad();
      auto loss = bed_.loss(params_, batch) * noise;
      // Breaks every scale gauge a little, so that there is something to do along the orbits.
      for (const auto& entry : params_) loss = loss + 1e-3 * entry.tensor.square().sum();
      loss.backward();
      optimizer_.step();
      scheduler_.step();
    }
  }

  void save(const std::string& path) const {
    ddc::save_checkpoint(
        path, params_, &optimizer_,
        {.rng = true, .notes = {{"step", std::to_string(scheduler_.current_step())}}});
  }

  void load(const std::string& path, bool rng) {
    const auto notes = ddc::load_checkpoint(path, params_, &optimizer_, {.rng = rng});
    scheduler_.resume(std::stoll(notes.at("step")));
  }

  void print() const {
    nlohmann::json tensors;
    for (const auto& [name, tensor] : params_) tensors["model/" + name] = digest(tensor);
    for (const auto& [name, tensor] : optimizer_.state_dict().tensors) {
      tensors["optimizer/" + name] = digest(tensor);
    }
    tensors["rng/cpu"] = digest(at::detail::getDefaultCPUGenerator().get_state());
    std::vector<double> lrs;
    for (const auto& group : optimizer_.param_groups()) lrs.push_back(group.options().get_lr());
    std::cout << nlohmann::json{{"step", scheduler_.current_step()},
                                {"lr", lrs},
                                {"tensors", tensors}}
                     .dump()
              << "\n";
  }

 private:
  ddc::testbeds::Testbed bed_ = ddc::testbeds::layer_norm_block();
  at::ScalarType type_;
  ddc::Parameters params_;
  ddc::DDCAdam optimizer_;
  ddc::WarmupScheduler scheduler_;
};

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() % 2 != 1) {
    std::cerr << "usage: resume_tool <mode> (train|save|load|load-without-rng <argument>)...\n";
    return 2;
  }
  Run training(parse_mode(arguments[0]));
  for (size_t i = 1; i < arguments.size(); i += 2) {
    const auto& command = arguments[i];
    const auto& argument = arguments[i + 1];
    if (command == "train") {
      training.train(std::stoll(argument));
    } else if (command == "save") {
      training.save(argument);
    } else {
      TORCH_CHECK(command == "load" || command == "load-without-rng", "unknown command '", command,
                  "'");
      training.load(argument, /*rng=*/command == "load");
    }
  }
  training.print();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "unexpected: " << error.what() << "\n";
    return 3;
  }
}
