// The zeros of the Fisher matrix are the directions of the group and of dead units, on networks whose group is known.

#include "ddc/geometry/curvature.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <functional>
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

struct KnownNetwork {
  std::string name;
  Testbed bed;
  std::vector<Gauge> gauges;
  uint64_t seed = 1;
  /// Batches that tell all parameters apart which can be.
  int64_t batches = 1;
  /// Null directions that are no gauge's; the zoo says which.
  int64_t unexplained = 0;
};

/// Made when the test runs, and not when the list of tests is.
struct Maker {
  std::string name;
  std::function<KnownNetwork()> make;
};
void PrintTo(const Maker& maker, std::ostream* out) { *out << maker.name; }

/// A testbed that lists the gauges that its experiment is about; the group is what discovery finds.
Maker discovered(const std::string& name, const std::function<Testbed()>& make) {
  return {name, [=] {
            const auto bed = make();
            const auto params = bed.init(1, at::kDouble);
            return KnownNetwork{name, bed, discover(params, evaluate_of(bed, params)).gauges()};
          }};
}

Maker of_zoo(const testbeds::ZooEntry& entry) {
  return {"zoo_" + entry.name, [=] {
            const auto params = entry.testbed.init(entry.seed, at::kDouble);
            int64_t size = 0;
            for (const auto& [name, tensor] : params) size += tensor.numel();
            // Twice as many outputs as parameters.
            const auto inputs = entry.testbed.batch(1, at::kDouble).inputs;
            const auto outputs = entry.testbed.outputs(params, inputs).numel();
            return KnownNetwork{.name = entry.name,
                                .bed = entry.testbed,
                                .gauges = entry.testbed.gauges(params),
                                .seed = entry.seed,
                                .batches = std::max<int64_t>(6, 2 * size / outputs + 1),
                                .unexplained = entry.unexplained};
          }};
}

std::vector<Maker> whole_zoo() {
  std::vector<Maker> result;
  for (const auto& entry : testbeds::zoo()) result.push_back(of_zoo(entry));
  return result;
}

/// Two of the zoo, and the testbeds in small.
std::vector<Maker> some_networks() {
  using namespace testbeds;  // NOLINT: names of testbeds only
  return {of_zoo(zoo_entry("ln_relu")),
          of_zoo(zoo_entry("rms_swiglu_rope")),
          discovered("relu_teacher_student",
                     [] { return relu_teacher_student({.d_hidden = 6, .per_channel = true}); }),
          discovered("norm_teacher_student", [] { return norm_teacher_student(); }),
          discovered("diagonal_network", [] { return diagonal_network({.dimension = 12}); }),
          discovered("sparse_parity", [] { return sparse_parity({.bits = 8, .d_hidden = 6}); })};
}

void check_zeros(const KnownNetwork& network) {
  const auto& [name, bed, gauges, seed, batches, unexplained] = network;
  const auto params = bed.init(seed, at::kDouble);
  const Curvature fisher(params, evaluate_of(bed, params), {.batches = batches});
  const auto orbits = orbit_space(gauges, params, fisher);
  const auto found = spectrum(fisher, orbits, {.dense_up_to = 3000});
  ASSERT_EQ(found.method, "dense");
  EXPECT_EQ(found.zeros, unexplained) << found;
  // Images of tangents of length one, relative to the largest eigenvalue.
  for (int64_t k = 0; k < orbits.dimension; ++k) {
    const auto image = fisher.product(orbits.basis.select(1, k).contiguous());
    EXPECT_LE(image.norm().item<double>(), 1e-14 * std::max(1.0, found.largest.value)) << k;
  }
  std::cout << name << ": " << found.parameters << " parameters, " << found.removed
            << " along orbits, " << found.dead << " dead, " << *found.zeros
            << " unexplained, smallest " << found.smallest.value << ", largest "
            << found.largest.value << '\n';
}

std::string name_of(const testing::TestParamInfo<Maker>& instance) {
  auto name = instance.param.name;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

class FisherZeros : public testing::TestWithParam<Maker> {};
INSTANTIATE_TEST_SUITE_P(Some, FisherZeros, testing::ValuesIn(some_networks()), name_of);
TEST_P(FisherZeros, AreTheGroupAndDeadUnits) { check_zeros(GetParam().make()); }

class FisherZerosOfTheZoo : public testing::TestWithParam<Maker> {};
INSTANTIATE_TEST_SUITE_P(All, FisherZerosOfTheZoo, testing::ValuesIn(whole_zoo()), name_of);
TEST_P(FisherZerosOfTheZoo, AreTheGroupAndDeadUnitsLong) { check_zeros(GetParam().make()); }

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
