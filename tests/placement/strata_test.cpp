// Places for weights that are not generic: orthogonal, dead, zero on one side, with gains of either sign.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "ddc/placement.h"
#include "ddc/testbeds/zoo.h"
#include "support/apart.h"
#include "support/small_networks.h"

namespace ddc::tests {
namespace {

struct Stratum {
  std::string name;
  std::string network;
  std::function<void(const Parameters&)> change;
};

void PrintTo(const Stratum& stratum, std::ostream* out) { *out << stratum.name; }

/// Where all Gram matrices are multiples of the identity.
void make_orthogonal(const Parameters& params) {
  for (const auto& [name, tensor] : params) {
    if (tensor.dim() != 2) continue;
    const auto [u, s, v] = at::linalg_svd(tensor, /*full_matrices=*/false);
    at::Tensor(tensor).copy_(u.matmul(v));
  }
}

void flip_some_gains(const Parameters& params) {
  for (const auto& [name, tensor] : params) {
    if (tensor.dim() == 1 && name.find("norm.weight") != std::string::npos) {
      at::Tensor(tensor).slice(0, 0, {}, 3).neg_();
    }
  }
}

void kill_a_unit(const Parameters& params) {
  params["layers.0.mlp.up.weight"].tensor[3].zero_();
  params["layers.0.mlp.up.bias"].tensor[3].zero_();
  params["layers.0.mlp.down.weight"].tensor.select(1, 3).zero_();
}

void zero_branches(const Parameters& params) {
  for (const auto& [name, tensor] : params) {
    if (name.ends_with("attention.output.weight") || name.ends_with("mlp.down.weight")) {
      at::Tensor(tensor).zero_();
    }
  }
}

std::vector<Stratum> strata() {
  return {{"Orthogonal", "ln_squared_relu", make_orthogonal},
          {"OrthogonalPlanes", "rms_swiglu_rope", make_orthogonal},
          {"NegativeGains", "ln_squared_relu", flip_some_gains},
          {"NegativeGainsOfOnePlus", "gemma",
           [](const Parameters& params) {
             for (const auto& [name, tensor] : params) {
               if (tensor.dim() == 1) at::Tensor(tensor).slice(0, 0, {}, 3).sub_(2);
             }
           }},
          {"DeadUnit", "ln_squared_relu", kill_a_unit},
          {"ZeroBranches", "ln_squared_relu", zero_branches},
          {"ZeroBranchesAndPlanes", "rms_swiglu_rope", zero_branches}};
}

class PlacedStratum : public ::testing::TestWithParam<Stratum> {};

INSTANTIATE_TEST_SUITE_P(All, PlacedStratum, ::testing::ValuesIn(strata()),
                         [](const auto& instance) { return instance.param.name; });

TEST_P(PlacedStratum, CopiesBecomeEqualAndTrainAlike) {
  const auto entry = testbeds::zoo_entry(GetParam().network);
  const auto bed = starting_from(entry.testbed, GetParam().change);
  const auto gauges = bed.gauges(bed.init(entry.seed, at::kDouble));
  for (const auto type : {at::kDouble, at::kFloat}) {
    const bool wide = type == at::kDouble;
    const auto first = bed.init(entry.seed, type);
    const auto second = first.clone();
    act_(gauges, random_element(gauges, first, 0.5, generator(7)), second);
    const auto batch = bed.batch(1, type);
    const double loss = loss_of(bed, first, batch);
    const Placement one(first, gauges);
    Placement two(second, gauges);
    const double kept = std::abs(loss) * (wide ? 1e-12 : 1e-5);
    EXPECT_NEAR(loss_of(bed, first, batch), loss, kept);
    EXPECT_NEAR(loss_of(bed, second, batch), loss, kept);
    EXPECT_LE(apart(second, first), wide ? 1e-11 : 1e-4) << type;
    two.to_original_();
    EXPECT_GT(apart(second, first), 1e-3);
  }
  // (In place a zero that was moved is rounding in one copy and has a gradient, of which Adam and Muon make
  // steps of full size.)
  for (const auto& treatment : {placed({.every = 1}), placed({.every = 3})}) {
    const auto apart_under = [&](const OptimizerMaker& make) {
      const auto start = bed.init(entry.seed, at::kDouble);
      std::vector<Parameters> copies = {start.clone(), start.clone()};
      act_(gauges, random_element(gauges, start, 0.5, generator(7)), copies[1]);
      std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers;
      for (const auto& copy : copies) optimizers.push_back(make(copy, gauges));
      double largest = 0;
      for (uint64_t step = 0; step < 8; ++step) {
        std::vector<double> losses;
        for (size_t i = 0; i < 2; ++i) {
          losses.push_back(backward(bed, copies[i], bed.batch(step, at::kDouble)));
          optimizers[i]->step();
        }
        largest = std::max(largest, std::abs(losses[1] - losses[0]) / std::abs(losses[0]));
      }
      return largest;
    };
    EXPECT_LE(apart_under(ddc_adam({.lr = 1e-3}, treatment)), 1e-9) << to_string(treatment);
    EXPECT_LE(apart_under(testbeds::ddc_muon({.lr = 1e-3}, {.lr = 1e-3}, treatment)), 1e-9)
        << to_string(treatment);
  }
}

}  // namespace
}  // namespace ddc::tests
