// The pretend device itself: what tests on it can rely on.

#include "support/pretend_device.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/errors.h"

namespace ddc::tests {
namespace {

using pretend::kDevice;
using pretend::total;
using pretend::Traffic;

const auto kReals = at::TensorOptions(at::kDouble).device(kDevice);

at::Tensor drawn(at::IntArrayRef shape) { return at::randn(shape, at::kDouble); }

TEST(PretendDevice, ComputesWhatTheCpuDoes) {
  const auto a = drawn({4, 3});
  const auto b = drawn({4, 3});
  const auto there = a.to(kDevice);
  EXPECT_EQ(there.device(), kDevice);
  const auto expect_same = [&](const at::Tensor& actual, const at::Tensor& expected) {
    EXPECT_EQ(actual.device(), kDevice);
    EXPECT_TRUE(at::equal(actual.cpu(), expected));
  };
  const auto other = b.to(kDevice);
  expect_same(there + other, a + b);
  expect_same(there.matmul(other.mT()), a.matmul(b.mT()));
  expect_same(there.sum({1}, /*keepdim=*/true), a.sum({1}, /*keepdim=*/true));
  expect_same(at::arange(5, kReals), at::arange(5, at::kDouble));
  expect_same(at::stack({there, other}), at::stack({a, b}));
  expect_same(at::cat({there, other}).index_select(0, at::tensor({5, 1}, at::kLong).to(kDevice)),
              at::cat({a, b}).index_select(0, at::tensor({5, 1}, at::kLong)));
  const auto [values, vectors] = at::linalg_eigh(there.mT().matmul(there));
  expect_same(values, std::get<0>(at::linalg_eigh(a.mT().matmul(a))));
  expect_same(vectors, std::get<1>(at::linalg_eigh(a.mT().matmul(a))));
}

TEST(PretendDevice, WritesThroughViewsAndInPlace) {
  auto a = at::zeros({3, 4}, kReals);
  auto* const place = a.const_data_ptr();
  a.select(0, 1).add_(2);
  a.t().narrow(0, 1, 2).mul_(3);
  a.view({12}).narrow(0, 0, 1).fill_(7);
  EXPECT_EQ(a.const_data_ptr(), place);
  auto expected = at::zeros({3, 4}, at::kDouble);
  expected.select(0, 1).add_(2);
  expected.t().narrow(0, 1, 2).mul_(3);
  expected.view({12}).narrow(0, 0, 1).fill_(7);
  EXPECT_TRUE(at::equal(a.cpu(), expected));
  // Out of memory of the wrong size.
  auto out = at::empty({0}, kReals);
  at::mm_out(out, a, a.t());
  EXPECT_TRUE(at::equal(out.cpu(), expected.mm(expected.t())));
  a.resize_({5, 5}).zero_();
  EXPECT_EQ(a.sum().item<double>(), 0);
}

TEST(PretendDevice, RefusesTensorsFromBothSides) {
  const auto here = drawn({4, 4});
  auto there = here.to(kDevice);
  const auto refused = [](const auto& run) { EXPECT_THROW(run(), c10::Error); };
  refused([&] { there + here; });
  refused([&] { here + there; });
  refused([&] { there.add_(here); });
  refused([&] { at::Tensor(here.clone()).add_(there); });
  refused([&] { there.matmul(here); });
  refused([&] { at::where(here > 0, there, there); });
  refused([&] { at::stack({here, there}); });
  refused([&] { there.index_select(0, at::tensor({1}, at::kLong)); });
  refused([&] { at::linalg_solve(there, here); });
  refused([&] { at::zeros({}, at::kDouble).add_(there.sum()); });
  // As real devices do, it takes scalars.
  EXPECT_TRUE(at::equal((there * at::scalar_tensor(2, at::kDouble)).cpu(), here * 2));
}

TEST(PretendDeviceDeathTest, HasAddressesOfItsOwn) {
  const auto there = at::ones({4}, kReals);
  const volatile double* const first = there.const_data_ptr<double>();
  EXPECT_DEATH({ [[maybe_unused]] const double value = *first; }, "");
}

TEST(PretendDevice, CountsWhatCrosses) {
  const auto here = drawn({4, 4});
  auto there = here.to(kDevice);
  const auto crossing = [&](const auto& run) {
    const Traffic traffic;
    run();
    return std::array{total(traffic.waits()), total(traffic.decompositions()),
                      total(traffic.uploads())};
  };
  using Counts = std::array<int64_t, 3>;
  EXPECT_EQ(crossing([&] { there.matmul(there).add_(1).sum(); }), (Counts{0, 0, 0}));
  EXPECT_EQ(crossing([&] { at::eye(3, kReals); }), (Counts{0, 0, 0}));
  EXPECT_EQ(crossing([&] { at::full({2}, 3.0, kReals); }), (Counts{0, 0, 0}));
  EXPECT_EQ(crossing([&] { there.clone(); }), (Counts{0, 0, 0}));
  EXPECT_EQ(crossing([&] { there.to(at::kFloat); }), (Counts{0, 0, 0}));
  EXPECT_EQ(crossing([&] { at::linalg_inv_ex(there); }), (Counts{0, 0, 0}));
  EXPECT_EQ(crossing([&] { there.sum().item<double>(); }), (Counts{1, 0, 0}));
  EXPECT_EQ(crossing([&] { there.cpu(); }), (Counts{1, 0, 0}));
  EXPECT_EQ(crossing([&] { at::equal(there, there); }), (Counts{1, 0, 0}));
  EXPECT_EQ(crossing([&] { there.isfinite().all().is_nonzero(); }), (Counts{1, 0, 0}));
  EXPECT_EQ(crossing([&] { at::nonzero(there); }), (Counts{1, 0, 0}));
  EXPECT_EQ(crossing([&] { there.index({there > 0}); }), (Counts{1, 0, 0}));
  EXPECT_GE(crossing([&] { at::linalg_inv(there); })[0], 1);  // asks whether it is singular
  EXPECT_EQ(crossing([&] { at::linalg_eigh(there); }), (Counts{0, 1, 0}));
  EXPECT_EQ(crossing([&] { here.to(kDevice); }), (Counts{0, 0, 1}));
  EXPECT_EQ(crossing([&] { there.copy_(here); }), (Counts{0, 0, 1}));
  EXPECT_EQ(crossing([&] { at::where(there > 0, there, 0.0); }), (Counts{0, 0, 0}));
  const auto zero = at::zeros({}, at::kDouble);
  EXPECT_EQ(crossing([&] { at::where(there > 0, there, zero); }), (Counts{0, 0, 1}));
}

}  // namespace
}  // namespace ddc::tests
