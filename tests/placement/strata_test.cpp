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
  const auto first = bed.init(entry.seed, at::kDouble);
  const auto gauges = bed.gauges(first);
  const auto second = first.clone();
  act_(gauges, random_element(gauges, first, 0.5, generator(7)), second);
  const auto batch = bed.batch(1, at::kDouble);
  const double loss = loss_of(bed, first, batch);

  const Placement one(first, gauges);
  Placement two(second, gauges);
  EXPECT_NEAR(loss_of(bed, first, batch), loss, 1e-12 * std::abs(loss));
  EXPECT_NEAR(loss_of(bed, second, batch), loss, 1e-12 * std::abs(loss));
  EXPECT_LE(apart(second, first), 1e-11);
  two.to_original_();
  EXPECT_GT(apart(second, first), 1e-3);

  for (const int64_t every : {1, 3}) {
    const Treatment treatment{.placement = Place::canonical, .every = every};
    const PairedRun run{.seed = entry.seed, .steps = 20};
    EXPECT_LE(paired_error(bed, gauges, ddc_adam({.lr = 1e-3}, treatment), run), 1e-9) << every;
    EXPECT_LE(
        paired_error(bed, gauges, testbeds::ddc_muon({.lr = 1e-3}, {.lr = 1e-3}, treatment), run),
        1e-9)
        << every;
  }
}

}  // namespace
}  // namespace ddc::tests
