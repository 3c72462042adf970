// BlockMap against plain loops over indices, in every layout that attention and residual streams use.

#include "gauge/block_map.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <ostream>

#include "support/matrices.h"

namespace ddc::tests {
namespace {

using Channels = std::vector<int64_t>;

struct Case {
  const char* name;
  Channels channel_of;
  int64_t channels;
  int64_t block;
  int64_t axis;
  std::vector<int64_t> sizes;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

/// The tensor in plain memory, and where index i of the axis and entry e of the others is in it.
struct Plain {
  Plain(const at::Tensor& tensor, int64_t axis) : length(tensor.size(axis)) {
    const auto dense = tensor.contiguous();
    data.assign(dense.const_data_ptr<double>(), dense.const_data_ptr<double>() + dense.numel());
    for (int64_t a = axis + 1; a < tensor.dim(); ++a) inner *= tensor.size(a);
    entries = tensor.numel() / length;
  }
  double& at(int64_t i, int64_t e) { return data[(e / inner * length + i) * inner + e % inner]; }

  std::vector<double> data;
  int64_t length;
  int64_t inner = 1;
  int64_t entries;
};

at::Tensor tensor_of(const std::vector<double>& data, at::IntArrayRef sizes) {
  return at::tensor(data, at::kDouble).view(sizes);
}

class BlockMaps : public ::testing::TestWithParam<Case> {
 protected:
  const Case& c = GetParam();
  BlockMap map{c.channel_of, c.channels, c.block, c.axis, c.sizes, at::kCPU};

  /// The k-th index that belongs to a channel.
  int64_t member(int64_t channel, int64_t k) const {
    for (int64_t i = 0; i < c.sizes[c.axis]; ++i) {
      if ((c.channel_of.empty() ? i : c.channel_of[i]) == channel && k-- == 0) return i;
    }
    return -1;
  }
  int64_t copies() const {
    int64_t count = 0;
    while (member(0, count) >= 0) ++count;
    return count;
  }
  int64_t entries() const { return at::zeros(c.sizes).numel() / c.sizes[c.axis]; }
  at::Tensor drawn(uint64_t seed) const { return normal(c.sizes, seed); }
  /// The same values, the axes in another order in memory.
  static at::Tensor permuted(const at::Tensor& tensor) {
    return tensor.movedim(-1, 0).contiguous().movedim(0, -1);
  }

  /// Calls use(b, p, copy, e, the entry of the tensor).
  template <typename Use>
  void for_each(Plain& plain, const Use& use) const {
    for (int64_t b = 0; b < c.channels / c.block; ++b) {
      for (int64_t p = 0; p < c.block; ++p) {
        for (int64_t k = 0; k < copies(); ++k) {
          const int64_t i = member(b * c.block + p, k);
          for (int64_t e = 0; e < entries(); ++e) use(b, p, k, e, plain.at(i, e));
        }
      }
    }
  }
};

TEST_P(BlockMaps, KnowTheirShape) {
  EXPECT_EQ(map.axis(), c.axis);
  EXPECT_EQ(map.blocks(), c.channels / c.block);
  EXPECT_EQ(map.block(), c.block);
  EXPECT_EQ(map.copies(), copies());
  EXPECT_EQ(map.covers_axis(), c.channels * copies() == c.sizes[c.axis]);
}

TEST_P(BlockMaps, TakeCoordinatesWithCopiesSideBySide) {
  const auto tensor = drawn(1);
  Plain plain(tensor, c.axis);
  auto expected = at::zeros({map.blocks(), c.block, copies() * entries()}, at::kDouble);
  auto heads = at::zeros({map.blocks() * copies(), c.block, entries()}, at::kDouble);
  for_each(plain, [&](int64_t b, int64_t p, int64_t k, int64_t e, double value) {
    expected[b][p][k * entries() + e] = value;
    heads[b * copies() + k][p][e] = value;
  });
  for (const auto& layout : {tensor, permuted(tensor)}) {
    EXPECT_TRUE(map.take(layout).equal(expected));
    EXPECT_TRUE(map.take_heads(layout).equal(heads));
  }
}

TEST_P(BlockMaps, PutBackWhatTheyTakeAndLeaveTheRestAlone) {
  const auto values = normal({map.blocks(), c.block, copies() * entries()}, 2);
  const auto heads = normal({map.blocks() * copies(), c.block, entries()}, 3);
  const auto before = drawn(4);
  Plain put(before, c.axis);
  for_each(put, [&](int64_t b, int64_t p, int64_t k, int64_t e, double& entry) {
    entry = values[b][p][k * entries() + e].item<double>();
  });
  Plain put_heads(before, c.axis);
  for_each(put_heads, [&](int64_t b, int64_t p, int64_t k, int64_t e, double& entry) {
    entry = heads[b * copies() + k][p][e].item<double>();
  });
  for (const bool in_order : {true, false}) {
    // Values as a product of transposed matrices leaves them, too.
    const auto given = [&](const at::Tensor& all) { return in_order ? all : permuted(all); };
    auto tensor = in_order ? before.clone() : permuted(before);
    map.put_(tensor, given(values));
    EXPECT_TRUE(tensor.equal(tensor_of(put.data, c.sizes)));
    tensor = in_order ? before.clone() : permuted(before);
    map.put_heads_(tensor, given(heads));
    EXPECT_TRUE(tensor.equal(tensor_of(put_heads.data, c.sizes)));
  }
}

TEST_P(BlockMaps, MultiplyEveryCopyByTheMatrixOfItsBlock) {
  const auto tensor = drawn(5);
  const auto matrices = normal({map.blocks(), c.block, c.block}, 6);
  Plain from(tensor, c.axis);
  Plain expected(tensor, c.axis);
  for_each(expected, [&](int64_t b, int64_t p, int64_t k, int64_t e, double& entry) {
    entry = 0;
    for (int64_t q = 0; q < c.block; ++q) {
      entry += matrices[b][p][q].item<double>() * from.at(member(b * c.block + q, k), e);
    }
  });
  for (const auto& layout : {tensor, permuted(tensor)}) {
    const auto result = map.multiply(matrices, layout);
    EXPECT_LE((result - tensor_of(expected.data, c.sizes)).abs().max().item<double>(), 1e-14);
    EXPECT_TRUE(layout.equal(tensor)) << "the argument was changed";
  }
}

const Channels grouped{0, 1, 0, 1, 2, 3, 2, 3};
const Channels adjacent{0, 0, 1, 1, 2, 2, 3, 3};
const Channels partial{-1, -1, 0, 1, -1, -1, 2, 3};
const Channels partial_grouped{-1, 0, 1, -1, 0, 1, -1, -1, -1};
const Channels half_split{0, 2, 1, 3, 4, 6, 5, 7};

INSTANTIATE_TEST_SUITE_P(
    Layouts, BlockMaps,
    ::testing::Values(Case{"Rows", {}, 6, 3, 0, {6, 4}}, Case{"Columns", {}, 6, 3, 1, {4, 6}},
                      Case{"OneBlock", {}, 4, 4, 1, {3, 4}}, Case{"Vector", {}, 4, 2, 0, {4}},
                      Case{"GroupedRows", grouped, 4, 2, 0, {8, 3}},
                      Case{"GroupedColumns", grouped, 4, 2, 1, {3, 8}},
                      Case{"GroupedVector", grouped, 4, 2, 0, {8}},
                      Case{"AdjacentCopiesInRows", adjacent, 4, 2, 0, {8, 3}},
                      Case{"AdjacentCopiesInColumns", adjacent, 4, 2, 1, {3, 8}},
                      Case{"PartialRows", partial, 4, 2, 0, {8, 3}},
                      Case{"PartialColumns", partial, 4, 2, 1, {3, 8}},
                      Case{"PartialVector", partial, 4, 2, 0, {8}},
                      Case{"PartialGroupedColumns", partial_grouped, 2, 2, 1, {4, 9}},
                      Case{"PlanesInRows", half_split, 8, 2, 0, {8, 3}},
                      Case{"PlanesInColumns", half_split, 8, 2, 1, {3, 8}},
                      Case{"BlocksOfOne", {0, 0, 1, 1}, 2, 1, 1, {3, 4}},
                      Case{"MiddleAxisOfThree", grouped, 4, 2, 1, {2, 8, 3}}),
    [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace ddc::tests
