// The zoo's reference answers are right: every gauge that an entry lists is one, together they span
// all that the loss cannot see, those it refuses are none, and optimizers can bind the list.

#include "ddc/testbeds/zoo.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <ostream>

#include "ddc/testbeds/null_space.h"
#include "ddc/testbeds/runs.h"
#include "support/testbeds.h"

namespace ddc::testbeds {

void PrintTo(const ZooEntry& entry, std::ostream* out) { *out << entry.name; }

namespace {

/// Relative to the largest output.
constexpr double exact = 1e-11;
constexpr double broken = 1e-4;
/// Between what is null and what is not, or the dimension is not to be trusted.
constexpr double clear_gap = 1e3;
constexpr double in_null_space = 1e-8;
/// Singular values of the stacked tangents (each of length 1) below this are zero.
constexpr double independent = 1e-8;

at::Tensor seen(const ZooEntry& entry, const Parameters& params, const at::Tensor& inputs) {
  const at::NoGradGuard no_grad;
  const auto outputs = entry.testbed.outputs(params, inputs);
  return entry.log_softmax ? outputs.log_softmax(-1) : outputs;
}

/// How far random elements move what the loss sees, relative to the largest of it: the most that any of
/// three did.
double change(const ZooEntry& entry, const Parameters& params, const std::vector<Gauge>& gauges) {
  const auto inputs = entry.testbed.batch(2, at::kDouble).inputs;
  const auto before = seen(entry, params, inputs);
  double largest = 0;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const auto moved = params.clone();
    act_(gauges, random_element(gauges, params, 0.5, test_generator(seed)), moved);
    const auto difference = (seen(entry, moved, inputs) - before).abs().max() / before.abs().max();
    if (difference.isnan().item<bool>()) return difference.item<double>();
    largest = std::max(largest, difference.item<double>());
  }
  return largest;
}

void expect_gauges_and_nothing_refused(const ZooEntry& entry) {
  SCOPED_TRACE(entry.name);
  const auto params = entry.testbed.init(entry.seed, at::kDouble);
  const auto gauges = entry.testbed.gauges(params);
  for (const auto& gauge : gauges) {
    EXPECT_LE(change(entry, params, {gauge}), exact) << gauge.name;
  }
  EXPECT_LE(change(entry, params, gauges), exact);
  const auto refused = entry.refused(params);
  EXPECT_FALSE(refused.empty());
  for (const auto& candidate : refused) {
    EXPECT_FALSE(candidate.reason.empty()) << candidate.gauge.name;
    EXPECT_GT(change(entry, params, {candidate.gauge}), broken)
        << candidate.gauge.name << ": " << candidate.reason;
  }
}

class Zoo : public testing::TestWithParam<ZooEntry> {
 protected:
  const ZooEntry& entry = GetParam();
  const Testbed& bed = entry.testbed;
  Parameters params = bed.init(entry.seed, at::kDouble);
};

INSTANTIATE_TEST_SUITE_P(All, Zoo, testing::ValuesIn(zoo()),
                         [](const auto& instance) { return instance.param.name; });

TEST_P(Zoo, GaugesLeaveTheOutputsAloneAndRefusedOnesDoNot) {
  expect_gauges_and_nothing_refused(entry);
}

TEST_P(Zoo, GaugesSpanTheNullSpace) {
  const auto gauges = bed.gauges(params);
  const auto space = null_space(bed, params, {.log_softmax = entry.log_softmax});
  ASSERT_GT(space.gap, clear_gap);
  std::vector<at::Tensor> rows;
  for (const auto& gauge : gauges) {
    rows.push_back(orbit_tangents(gauge, params));
    EXPECT_LE(distance_from(space, rows.back().t()), in_null_space) << gauge.name;
  }
  auto stacked = at::cat(rows);
  stacked = stacked / stacked.norm(2, {1}, /*keepdim=*/true);
  const auto [u, sigma, v] = at::linalg_svd(stacked, /*full_matrices=*/false);
  const auto rank = (sigma > sigma[0] * independent).sum().item<int64_t>();
  const auto span = v.narrow(0, 0, rank).t();
  const auto rest = space.basis - span.matmul(span.t().matmul(space.basis));
  std::string where;
  int64_t row = 0;
  for (const auto& [name, tensor] : params) {
    const auto share = rest.narrow(0, row, tensor.numel()).square().sum().item<double>();
    row += tensor.numel();
    if (share > 1e-6) where.append(name).append(": ").append(std::to_string(share)).append("\n");
  }
  EXPECT_EQ(space.dimension - rank, entry.unexplained) << "unexplained:\n" << where;
  std::cout << entry.name << ": " << space.parameters << " parameters, " << space.dimension
            << " null dimensions (gap " << space.gap << "), " << rank << " explained\n";
}

TEST_P(Zoo, OptimizersBindTheGauges) {
  const auto error = paired_error(bed, bed.gauges(params), ddc_adam(AdamOptions{.lr = 1e-3}),
                                  {.seed = entry.seed, .steps = 5});
  EXPECT_LE(error, 1e-9);
}

/// Several layers, and heads that share keys without all sharing one.
TEST(ZooTest, AnswersHoldInOtherShapes) {
  for (const auto& entry : zoo({.d_model = 16,
                           .heads = 4,
                           .d_ff = 9,
                           .layers = 2,
                           .sequence = 5,
                           .vocabulary = 19,
                           .batch_size = 4})) {
    expect_gauges_and_nothing_refused(entry);
  }
}

TEST(ZooTest, UnknownNamesAreAnErrorThatListsTheKnownOnes) {
  EXPECT_THROW(
      {
        try {
          zoo_entry("ln_tanh");
        } catch (const c10::Error& error) {
          EXPECT_NE(std::string(error.what()).find("'ln_tanh'; it has ln_relu, "),
                    std::string::npos);
          throw;
        }
      },
      c10::Error);
}

}  // namespace
}  // namespace ddc::testbeds
