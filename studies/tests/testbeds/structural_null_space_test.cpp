// Every direction in which the weights of a transformer can be moved without any output noticing is
// the direction of a bound gauge. The null space is found by brute force, without knowing a gauge;
// the gauges' tangents without knowing the network. That they span the same space is checked both
// ways: each tangent lies in the null space, and there are as many independent ones as it has
// dimensions.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <ostream>

#include "ddc/testbeds/blocks.h"
#include "ddc/testbeds/null_space.h"
#include "support/testbeds.h"

namespace ddc::testbeds {
namespace {

/// Between what is null and what is not, or the dimension is not to be trusted.
constexpr double clear_gap = 1e3;
/// How far a tangent may stick out of the null space.
constexpr double in_null_space = 1e-8;
/// Singular values of the stacked tangents (each of length 1) below this are zero.
constexpr double independent = 1e-8;

struct Network {
  std::string name;
  Testbed bed;
  /// Picked for its ReLUs. All that enters or leaves a unit that is never active is null, and so is a
  /// part of it for a unit so seldom active that the inputs do not tell all its weights apart; neither
  /// is a symmetry. The first kind is counted by `dead_units`, and there is none at these seeds. The
  /// second is there if the dimension falls with more batches, or has singular values between the two
  /// sides of the gap: `null_space` draws until the rank stands still, and the gap is asked for.
  uint64_t seed;
};
void PrintTo(const Network& network, std::ostream* out) { *out << network.name; }

/// A fixed embedding leaves no rotation of the residual stream, learned ones do. The norms' eps is
/// large, or the scale of the residual stream, which they see by it alone, would be all but null.
std::vector<Network> networks() {
  std::vector<Network> result;
  for (const bool fixed : {true, false}) {
    const auto set = fixed ? GaugeSet::full : GaugeSet::with_residual_rotation;
    const std::string suffix = fixed ? "Fixed" : "Learned";
    for (const bool relu : {false, true}) {
      result.push_back({(relu ? "LayerNormWithRelu" : "LayerNorm") + suffix,
                        layer_norm_block({.d_model = 8,
                                          .heads = 2,
                                          .d_ff = 10,
                                          .relu_part = relu,
                                          .fixed_embedding = fixed,
                                          .norm_eps = 0.1,
                                          .gauges = set}),
                        1});
    }
    result.push_back({"RmsNorm" + suffix,
                      rms_norm_block({.d_model = 8,
                                      .heads = 2,
                                      .kv_heads = 1,
                                      .d_ff = 10,
                                      .fixed_embedding = fixed,
                                      .norm_eps = 0.1,
                                      .gauges = set}),
                      1});
    result.push_back({"Vit" + suffix,
                      vit_block({.d_model = 8,
                                 .heads = 2,
                                 .d_ff = 10,
                                 .batch_size = 64,
                                 .fixed_embedding = fixed,
                                 .norm_eps = 0.1,
                                 .gauges = set}),
                      fixed ? 1U : 3U});
  }
  return result;
}

/// Rows of length 1.
at::Tensor stacked_tangents(const std::vector<Gauge>& gauges, const Parameters& params) {
  std::vector<at::Tensor> rows;
  for (const auto& gauge : gauges) rows.push_back(orbit_tangents(gauge, params));
  const auto stacked = at::cat(rows);
  return stacked / stacked.norm(2, {1}, /*keepdim=*/true);
}

struct Span {
  int64_t rank = 0;
  /// Smallest singular value that counts over the largest that does not.
  double gap = 0;
  /// Orthonormal columns.
  at::Tensor basis;
};

Span span_of(const at::Tensor& rows) {
  const auto [u, sigma, v] = at::linalg_svd(rows, /*full_matrices=*/false);
  Span span;
  span.rank = (sigma > sigma[0] * independent).sum().item<int64_t>();
  const auto beyond = span.rank < sigma.numel() ? sigma[span.rank].item<double>() : 0.0;
  span.gap = sigma[span.rank - 1].item<double>() / std::max(beyond, 1e-300);
  span.basis = v.narrow(0, 0, span.rank).t();
  return span;
}

/// The share of the null directions that no tangent explains, by the tensors they lie in.
std::string unexplained(const NullSpace& space, const Span& span, const Parameters& params) {
  const auto rest = space.basis - span.basis.matmul(span.basis.t().matmul(space.basis));
  std::string result;
  int64_t row = 0;
  for (const auto& [name, tensor] : params) {
    const auto share = rest.narrow(0, row, tensor.numel()).square().sum().item<double>();
    row += tensor.numel();
    if (share > 1e-6) result += name + ": " + std::to_string(share) + "\n";
  }
  return result;
}

class StructuralNullSpace : public testing::TestWithParam<Network> {};

INSTANTIATE_TEST_SUITE_P(All, StructuralNullSpace, testing::ValuesIn(networks()),
                         [](const auto& instance) { return instance.param.name; });

TEST_P(StructuralNullSpace, IsSpannedByTheBoundGauges) {
  const auto& [name, bed, seed] = GetParam();
  const auto params = bed.init(seed, at::kDouble);
  const auto gauges = bed.gauges(params);
  const auto space = null_space(bed, params);
  ASSERT_GT(space.gap, clear_gap);
  for (const auto& [tensor_name, tensor] : params) {
    if (!tensor_name.ends_with("mlp.up.weight")) continue;
    EXPECT_EQ(dead_units(space, params, tensor_name), 0) << tensor_name;
  }

  int64_t dimensions = 0;
  for (const auto& gauge : gauges) {
    dimensions += dimension(gauge, params);
    EXPECT_LE(distance_from(space, orbit_tangents(gauge, params).t()), in_null_space) << gauge.name;
  }
  const auto tangents = stacked_tangents(gauges, params);
  EXPECT_EQ(tangents.size(0), dimensions);
  const auto span = span_of(tangents);
  EXPECT_GT(span.gap, clear_gap);
  EXPECT_EQ(span.rank, space.dimension) << "unexplained:\n" << unexplained(space, span, params);

  std::cout << name << ": " << space.parameters << " parameters, " << space.dimension
            << " null dimensions (gap " << space.gap << "), gauges of " << dimensions
            << " dimensions, of which " << span.rank << " are independent (gap " << span.gap
            << ")\n";
  RecordProperty("null_dimension", static_cast<int>(space.dimension));
  RecordProperty("gauge_dimension", static_cast<int>(dimensions));
  RecordProperty("tangent_rank", static_cast<int>(span.rank));
}

/// The test above notices a gauge that is missing, and one that is wrong.
TEST(StructuralNullSpaceTest, NoticesWhatIsMissingAndWhatIsWrong) {
  const auto [name, bed, seed] = networks()[2];
  const auto params = bed.init(seed, at::kDouble);
  const auto space = null_space(bed, params);
  auto gauges = bed.gauges(params);
  for (size_t k = 0; k < gauges.size(); ++k) {
    auto others = gauges;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(k));
    const auto span = span_of(stacked_tangents(others, params));
    EXPECT_LT(span.rank, space.dimension) << gauges[k].name;
    EXPECT_FALSE(unexplained(space, span, params).empty()) << gauges[k].name;
  }
  const auto wrong = without_leg(gauges.front(), gauges.front().legs.size() - 1);
  EXPECT_GT(distance_from(space, orbit_tangents(wrong, params).t()), 1e-2);
}

}  // namespace
}  // namespace ddc::testbeds
