// Weights held at their canonical place behind LibTorch's AdamW, saved after ten steps and gone on with.

#include <ATen/ATen.h>
#include <ddc/gauge/rescale.h>
#include <ddc/io/checkpoint.h>
#include <ddc/placement.h>
#include <torch/optim/adamw.h>
#include <torch/serialize.h>

#include <filesystem>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

struct Training {
  ddc::Parameters params;
  ddc::Placement placement;
  torch::optim::AdamW optimizer;

  explicit Training(ddc::Parameters initial)
      : params(std::move(initial)),
        placement(params, {ddc::relu_rescale({.in = params["fc1.weight"],
                                              .in_bias = params["fc1.bias"],
                                              .out = {params["fc2.weight"]}})}),
        optimizer(params.tensors(), torch::optim::AdamWOptions(1e-2)) {}

  double train(int64_t steps) {
    double last = 0;
    for (int64_t step = 0; step < steps; ++step) {
      const auto x = at::linspace(-1, 1, 32 * 8, at::kDouble).view({32, 8}).sin();
      const auto hidden =
          at::linear(x, params["fc1.weight"].tensor, params["fc1.bias"].tensor).relu();
      const auto loss =
          (at::linear(hidden, params["fc2.weight"].tensor) - x.narrow(1, 0, 4)).square().mean();
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      placement.restore_();
      last = loss.item<double>();
    }
    return last;
  }
};

ddc::Parameters drawn(uint64_t seed) {
  at::manual_seed(seed);
  const auto draw = [](at::IntArrayRef shape) {
    return at::randn(shape, at::kDouble).requires_grad_();
  };
  return ddc::Parameters(std::vector<ddc::NamedTensor>{
      {"fc1.weight", draw({16, 8})}, {"fc1.bias", draw({16})}, {"fc2.weight", draw({4, 16})}});
}

int main() {
  const auto folder = std::filesystem::temp_directory_path();
  const auto weights = folder / "held.safetensors";
  const auto state = (folder / "held-adamw.pt").string();

  Training first(drawn(1));
  first.train(10);
  ddc::save_checkpoint(weights, first.params, first.placement, {.notes = {{"step", "10"}}});
  torch::save(first.optimizer, state);

  Training second(drawn(2));
  const auto notes = ddc::load_checkpoint(weights, second.params, second.placement);
  torch::load(second.optimizer, state);

  const double one = first.train(20);
  const double two = second.train(20);
  first.placement.to_original_();  // the same function, for whoever reads the weights
  std::cout << "from step " << notes.at("step") << ": loss " << one << " and " << two << '\n';
  return one == two ? 0 : 1;
}
