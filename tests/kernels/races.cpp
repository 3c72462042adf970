// A pass on threads that the ThreadSanitizer knows: `make tsan`. LibTorch's own threads come from an OpenMP that
// it does not, so the work is dealt out here; what is written to is decided in kernels/pass.cpp all the same.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "kernels/heads.h"
#include "kernels/pass.h"
#include "kernels/tensors.h"

namespace {

size_t threads = 1;

}  // namespace

namespace ddc::kernels {

void one_by_one(size_t count, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = 0;
  std::vector<std::thread> team;
  for (size_t t = 0; t < threads; ++t) {
    team.emplace_back([&] {
      for (size_t i = next++; i < count; i = next++) work(i);
    });
  }
  for (auto& each : team) each.join();
}

}  // namespace ddc::kernels

namespace ddc {
namespace {

at::Tensor random(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(seed));
}

/// Matrices with edges of all kinds, vectors, and what fits in no share; everything that a pass writes.
std::vector<at::Tensor> results(const kernels::Constants& constants, size_t states) {
  const std::vector<std::vector<int64_t>> shapes = {
      {900, 300}, {2000, 96}, {1, 400}, {300000}, {5}};
  std::vector<std::vector<at::Tensor>> tensors;
  std::vector<kernels::Edges> edges(shapes.size());
  std::vector<kernels::PassEntry> pass;
  for (size_t i = 0; i < shapes.size(); ++i) {
    auto& own = tensors.emplace_back();
    for (size_t k = 0; k < 2 + states; ++k) own.push_back(random(shapes[i], 10 * i + k).abs());
    const bool is_matrix = shapes[i].size() == 2;
    if (is_matrix) {
      const auto rows = static_cast<size_t>(shapes[i][0]);
      const auto columns = static_cast<size_t>(shapes[i][1]);
      auto& e = edges[i];
      for (int64_t r = 0; 2 * r + 1 < shapes[i][0] && i == 0; ++r) {
        e.items.push_back({r, r + shapes[i][0] / 2});
        e.turns.push_back({0.8, 0.6});
      }
      e.rows.assign(rows, 1.5);
      e.columns.assign(columns, 0.7);
      e.column_shift.assign(columns, 0.1);
      e.column_pattern.assign(rows, 1);
      e.out_columns.assign(columns, 1.1);
      e.wants_row_squares = e.wants_column_squares = true;
      e.wants_overlaps = i == 0;
      e.row_dots[0].weights.assign(columns, 1);
      e.column_dots[0].weights.assign(rows, 1);
      e.column_dots[1].weights.assign(rows, 2);
      if (i == 1) e.centre_pattern.assign(columns, 1);
    }
    pass.push_back(
        {own[0], own[1], {own.begin() + 2, own.end()}, constants, is_matrix ? &edges[i] : nullptr});
  }
  kernels::run(pass);
  std::vector<at::Tensor> all;
  for (const auto& own : tensors) all.insert(all.end(), own.begin(), own.end());
  for (const auto& e : edges) {
    for (const auto* sums : {&e.row_squares, &e.column_squares, &e.row_dots[0].sums,
                             &e.column_dots[0].sums, &e.column_dots[1].sums}) {
      all.push_back(at::tensor(*sums, at::kDouble));
    }
    for (const auto& [cosine, sine] : e.overlaps)
      all.push_back(at::tensor({cosine, sine}, at::kDouble));
  }
  return all;
}

/// Heads side by side in the tensors of a gauge.
std::vector<at::Tensor> moves() {
  const auto given = random({8, 24, 60}, 1).to(at::kDouble);
  const auto grams = given.bmm(given.mT()).contiguous();
  const auto others = random({8, 24, 24}, 2).to(at::kDouble).mul_(1e-2).add_(grams).contiguous();
  auto factor = at::empty_like(grams);
  auto dual = at::empty_like(grams);
  kernels::one_by_one(8, [&](size_t block) {
    const auto at_block = static_cast<int64_t>(block) * 24 * 24;
    const auto of = [&](const at::Tensor& x) { return x.const_data_ptr<double>() + at_block; };
    kernels::find_move(
        {24, of(grams), of(grams), of(others), of(others),
         factor.mutable_data_ptr<double>() + at_block, dual.mutable_data_ptr<double>() + at_block},
        1e-14);
  });
  return {factor, dual};
}

std::vector<at::Tensor> everything() {
  auto all =
      results(kernels::AdamConstants{.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8}, 2);
  for (const auto& one : {results(kernels::SgdConstants{.lr = 1e-2, .momentum = 0.9}, 1),
                          results(kernels::SgdConstants{.lr = 1e-2}, 0), moves()}) {
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

}  // namespace
}  // namespace ddc

int main() {
  at::set_num_threads(1);
  const auto alone = ddc::everything();
  for (threads = 2; threads <= 8; ++threads) {
    const auto together = ddc::everything();
    for (size_t i = 0; i < alone.size(); ++i) {
      if (at::equal(alone[i], together[i])) continue;
      std::printf("%zu threads: result %zu of %zu differs\n", threads, i, alone.size());
      return 1;
    }
  }
  std::printf("%zu results are the same bits with 1 to 8 threads\n", alone.size());
  return 0;
}
