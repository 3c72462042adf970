// The symmetries of a network, found, stored and bound: the program of docs/explanation/discovery.md.

#include <ddc/discover/discover.h>
#include <ddc/optim/adam.h>
#include <torch/nn.h>

#include <iostream>

int main() {
  torch::nn::Sequential model(torch::nn::Linear(8, 16), torch::nn::ReLU(),
                              torch::nn::Linear(16, 4));
  const ddc::Parameters params(model->named_parameters());

  const auto evaluate = ddc::reseeded([&] {  // seeds torch's generator with the batch's number
    const auto inputs = at::randn({32, 8});
    const auto targets = at::randint(4, {32});
    const auto logits = model->forward(inputs);
    return ddc::Evaluation(at::cross_entropy_loss(logits, targets), logits);
  });
  const auto group =
      ddc::discover(params, evaluate, {.engagement_steps = 10, .completeness = true});
  std::cout << group;
  group.save("model.symmetries.json");

  const auto stored = ddc::SymmetryGroup::load("model.symmetries.json", params);
  ddc::DDCAdam optimizer(params, stored.gauges(), {.lr = 1e-3});
}
