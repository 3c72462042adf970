#include "sums_of_rows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layers.h"

namespace ddc::testbeds {
namespace {

at::Tensor seeded(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(seed), at::kDouble);
}

/// As the header states it.
at::Tensor by_definition(const at::Tensor& table, const at::Tensor& rows, const at::Tensor& weights,
                         int64_t degree) {
  const auto picked = table.index_select(0, rows.flatten()).unflatten(0, rows.sizes());
  const auto sums = (picked * weights.unsqueeze(-1)).sum(1);
  return degree == 0 ? sums : relu_power(sums, degree);
}

/// Columns that fill blocks, that do not, and more than one block.
TEST(SumsOfRows, ValuesAndGradientsAreThoseOfTheDefinition) {
  for (const int64_t columns : {1, 64, 113, 200}) {
    for (const int64_t degree : {0, 1, 2}) {
      const auto rows = seeded({17, 3}, 1).mul(100).abs().to(at::kLong).remainder(5);
      at::Tensor grads[2][2];
      at::Tensor values[2];
      for (const bool fast : {false, true}) {
        const auto table = seeded({5, columns}, 2).requires_grad_();
        const auto weights = seeded({17, 3}, 3).requires_grad_();
        values[fast] = (fast ? sums_of_rows : by_definition)(table, rows, weights, degree);
        (values[fast] * seeded({17, columns}, 4)).sum().backward();
        grads[fast][0] = table.grad();
        grads[fast][1] = weights.grad();
      }
      EXPECT_TRUE(at::allclose(values[0], values[1], 1e-13, 1e-13)) << columns << " " << degree;
      EXPECT_TRUE(at::allclose(grads[0][0], grads[1][0], 1e-12, 1e-12)) << columns << " " << degree;
      EXPECT_TRUE(at::allclose(grads[0][1], grads[1][1], 1e-12, 1e-12)) << columns << " " << degree;
    }
  }
}

}  // namespace
}  // namespace ddc::testbeds
