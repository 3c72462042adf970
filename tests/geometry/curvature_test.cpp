// The zeros of the Fisher matrix are the directions of the group and of dead units, on networks whose group is known.

#include "ddc/geometry/curvature.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <iostream>
#include <ostream>

#include "ddc/discover/discover.h"
#include "ddc/testbeds/diagonal_network.h"
#include "ddc/testbeds/sparse_parity.h"
#include "ddc/testbeds/teacher_student.h"
#include "ddc/testbeds/zoo.h"
#include "support/errors.h"

namespace ddc {
namespace {

using testbeds::Testbed;
using tests::expect_error;

Evaluate evaluate_of(const Testbed& bed, const Parameters& params) {
  return [=](uint64_t number) {
    const auto batch = bed.batch(number + 1, at::kDouble);
    const auto outputs =
        bed.traced ? bed.traced(params, batch.inputs, {}) : bed.outputs(params, batch.inputs);
    return Evaluation(bed.criterion(outputs, batch.targets), outputs);
  };
}

struct Network {
  std::string name;
  Testbed bed;
  std::vector<Gauge> gauges;
  uint64_t seed = 1;
  /// Batches that tell all parameters apart which can be.
  int64_t batches = 1;
  /// Null directions that are no gauge's; the zoo says which.
  int64_t unexplained = 0;
};
void PrintTo(const Network& network, std::ostream* out) { *out << network.name; }

/// A testbed that lists the gauges that its experiment is about; the group is what discovery finds.
Network discovered(const std::string& name, const Testbed& bed) {
  const auto params = bed.init(1, at::kDouble);
  return {name, bed, discover(params, evaluate_of(bed, params)).gauges()};
}

/// The zoo, and the testbeds in small.
std::vector<Network> networks() {
  std::vector<Network> result;
  for (const auto& entry : testbeds::zoo()) {
    const auto params = entry.testbed.init(entry.seed, at::kDouble);
    result.push_back({"zoo_" + entry.name, entry.testbed, entry.testbed.gauges(params), entry.seed,
                      6, entry.unexplained});
  }
  result.push_back(discovered("relu_teacher_student", testbeds::relu_teacher_student(
                                                          {.d_hidden = 6, .per_channel = true})));
  result.push_back(discovered("norm_teacher_student", testbeds::norm_teacher_student()));
  result.push_back(discovered("diagonal_network", testbeds::diagonal_network({.dimension = 12})));
  result.push_back(
      discovered("sparse_parity", testbeds::sparse_parity({.bits = 6, .d_hidden = 8})));
  return result;
}

class FisherZeros : public testing::TestWithParam<Network> {};
INSTANTIATE_TEST_SUITE_P(All, FisherZeros, testing::ValuesIn(networks()), [](const auto& instance) {
  auto name = instance.param.name;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
});

TEST_P(FisherZeros, AreTheGroupAndDeadUnits) {
  const auto& [name, bed, gauges, seed, batches, unexplained] = GetParam();
  const auto params = bed.init(seed, at::kDouble);
  const Curvature fisher(params, evaluate_of(bed, params), {.batches = batches});
  const auto orbits = orbit_space(gauges, params, fisher);
  const auto found = spectrum(fisher, orbits, {.dense_up_to = 3000});
  ASSERT_EQ(found.method, "dense");
  EXPECT_EQ(found.zeros, unexplained) << found;
  // Of tangents of length one, relative to the largest eigenvalue.
  for (int64_t k = 0; k < orbits.dimension; ++k) {
    const auto image = fisher.product(orbits.basis.select(1, k).contiguous());
    EXPECT_LE(image.norm().item<double>(), 1e-14 * std::max(1.0, found.largest.value)) << k;
  }
  std::cout << name << ": " << found.parameters << " parameters, " << found.removed
            << " along orbits, " << found.dead << " dead, " << *found.zeros
            << " unexplained, smallest " << found.smallest.value << ", largest "
            << found.largest.value << '\n';
}

TEST(Curvature, CountsZerosOfTheDiagonalNetworkAndRefusesWhatDoesNotFit) {
  const auto bed = testbeds::diagonal_network({.dimension = 6});
  const auto params = bed.init(1, at::kDouble);
  const Curvature fisher(params, evaluate_of(bed, params));
  const auto all = spectrum(fisher, orbit_space(bed.gauges(params), params, fisher));
  EXPECT_EQ(all.removed, 6);
  EXPECT_EQ(spectrum(fisher).zeros, 6);
  EXPECT_EQ(all.zeros, 0);
  expect_error([&] { Curvature(params, evaluate_of(bed, params), {.tensors = {"w"}}); },
               {"there is no parameter 'w'"});
  expect_error([&] { Curvature(params, evaluate_of(bed, params), {.batches = 0}); },
               {"batches must be > 0"});
}

}  // namespace
}  // namespace ddc
