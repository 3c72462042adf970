// Kernels of a step beside torch's fused AdamW, on tensors of the same sizes, and polar factors.
//
//     make bench
//
// Bytes are those that have to be moved; one thread unless OMP_NUM_THREADS says otherwise.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "ddc/linalg/polar_factor.h"
#include "kernels/heads.h"
#include "kernels/pass.h"
#include "kernels/tensors.h"

namespace ddc {
namespace {

constexpr int64_t kBytesOfAdam = 28;

at::Tensor random(at::IntArrayRef shape) {
  static auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
  return at::randn(shape, generator);
}

/// Twelve matrices, more than the caches hold.
struct Model {
  std::vector<at::Tensor> weights, gradients, first, second;
  explicit Model(int64_t rows = 1024, int64_t columns = 1024, int count = 12) {
    for (int i = 0; i < count; ++i) {
      weights.push_back(random({rows, columns}));
      gradients.push_back(random({rows, columns}).mul_(1e-3));
      first.push_back(at::zeros({rows, columns}));
      second.push_back(at::zeros({rows, columns}));
    }
  }
  int64_t entries() const { return weights.front().numel() * static_cast<int64_t>(weights.size()); }

  std::vector<kernels::PassEntry> pass(std::vector<kernels::Edges>* edges = nullptr) const {
    std::vector<kernels::PassEntry> result;
    for (size_t i = 0; i < weights.size(); ++i) {
      result.push_back({weights[i],
                        gradients[i],
                        {first[i], second[i]},
                        kernels::AdamConstants{.lr = 1e-4,
                                               .beta1 = 0.9,
                                               .beta2 = 0.999,
                                               .eps = 1e-8,
                                               .weight_decay = 1e-2,
                                               .correction1 = 0.1,
                                               .correction2 = 1e-3},
                        edges == nullptr ? nullptr : &(*edges)[i]});
    }
    return result;
  }
};

void count(benchmark::State& state, const Model& model, int64_t bytes) {
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * model.entries() * bytes);
  state.counters["threads"] = at::get_num_threads();
}

void TorchFusedAdamW(benchmark::State& state) {
  const Model model;
  const std::vector<at::Tensor> counts(model.weights.size(), at::ones({}));
  for (auto _ : state) {
    at::_fused_adamw_(model.weights, model.gradients, model.first, model.second, {}, counts, 1e-4,
                      0.9, 0.999, 1e-2, 1e-8, false, false);
  }
  count(state, model, kBytesOfAdam);
}
BENCHMARK(TorchFusedAdamW)->Unit(benchmark::kMillisecond);

void Plain(benchmark::State& state) {
  const Model model;
  const auto pass = model.pass();
  for (auto _ : state) kernels::run(pass);
  count(state, model, kBytesOfAdam);
}
BENCHMARK(Plain)->Unit(benchmark::kMillisecond);

void CheckOfGradients(benchmark::State& state) {
  const Model model;
  for (auto _ : state) benchmark::DoNotOptimize(kernels::all_finite(model.gradients));
  count(state, model, 4);
}
BENCHMARK(CheckOfGradients)->Unit(benchmark::kMillisecond);

void CheckAndPlain(benchmark::State& state) {
  const Model model;
  const auto pass = model.pass();
  for (auto _ : state) {
    benchmark::DoNotOptimize(kernels::all_finite(model.gradients));
    kernels::run(pass);
  }
  count(state, model, kBytesOfAdam);
}
BENCHMARK(CheckAndPlain)->Unit(benchmark::kMillisecond);

/// A pass with edges: 0 none, 1 factors of rows and their squares, 2 the same of columns, 3 a mean over the
/// rows, 4 all of it, 5 rows that turn in pairs.
void Edged(benchmark::State& state) {
  const Model model;
  std::vector<kernels::Edges> edges(model.weights.size());
  const int64_t kind = state.range(0);
  for (size_t i = 0; i < edges.size(); ++i) {
    const auto ones = std::vector<double>(1024, 1.0);
    const auto zeros = std::vector<double>(1024, 0.0);
    auto& own = edges[i];
    if (kind == 1 || kind >= 4) own.rows = ones, own.wants_row_squares = true;
    if (kind == 2 || kind == 4) own.columns = ones, own.wants_column_squares = true;
    if (kind == 3 || kind == 4) {
      own.column_shift = zeros;
      own.column_pattern = ones;
      own.column_dots[0].weights = ones;
    }
    if (kind == 4) own.out_columns = ones;
    if (kind == 5) {
      for (int64_t row = 0; row < 512; ++row) own.items.push_back({row, row + 512});
      own.turns.assign(512, {1, 0});
      own.wants_overlaps = true;
    }
  }
  const auto pass = model.pass(&edges);
  for (auto _ : state) kernels::run(pass);
  count(state, model, kBytesOfAdam);
}
BENCHMARK(Edged)->DenseRange(0, 5)->Unit(benchmark::kMillisecond);

/// Both sides of a head after a step of a thousandth, balanced and turned back as for float32 weights.
void MoveOfHead(benchmark::State& state) {
  const int64_t size = state.range(0);
  const auto before = random({size, 6 * size}).to(at::kDouble);
  const auto moved = [&] { return before + random({size, 6 * size}).mul_(1e-3); };
  const auto plus = moved();
  const auto minus = moved();
  const auto p = plus.mm(plus.t());
  const auto m = minus.mm(minus.t());
  const auto turned_plus = before.mm(plus.t());
  const auto turned_minus = before.mm(minus.t());
  auto factor = at::empty_like(p);
  auto dual = at::empty_like(p);
  for (auto _ : state) {
    kernels::find_move({size, p.const_data_ptr<double>(), m.const_data_ptr<double>(),
                        turned_plus.const_data_ptr<double>(), turned_minus.const_data_ptr<double>(),
                        factor.mutable_data_ptr<double>(), dual.mutable_data_ptr<double>()},
                       /*rounding=*/1e-6);
  }
}
BENCHMARK(MoveOfHead)->Arg(32)->Arg(64)->Arg(128)->Unit(benchmark::kMicrosecond);

void ManySmall(benchmark::State& state) {
  const Model model(1, 256, 1000);
  const auto pass = model.pass();
  for (auto _ : state) kernels::run(pass);
  count(state, model, kBytesOfAdam);
}
BENCHMARK(ManySmall)->Unit(benchmark::kMillisecond);

/// Polar factors of 24 heads (0), of square matrices (1) and of wide ones (2).
void Polar(benchmark::State& state, PolarMethod method) {
  const std::vector<std::vector<int64_t>> shapes{{24, 64, 768}, {2, 768, 768}, {2, 768, 3072}};
  const auto& shape = shapes[state.range(0)];
  const auto matrices = random(shape);
  for (auto _ : state) benchmark::DoNotOptimize(polar_factor(matrices, method));
  state.counters["threads"] = at::get_num_threads();
  state.counters["flops"] = benchmark::Counter(
      static_cast<double>(shape[0]) *
          polar_flops(static_cast<double>(shape[1]), static_cast<double>(shape[2]), method),
      benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK_CAPTURE(Polar, exact, PolarMethod::exact)
    ->DenseRange(0, 2)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Polar, newton_schulz, PolarMethod::newton_schulz)
    ->DenseRange(0, 2)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace ddc

int main(int argc, char** argv) {
  if (std::getenv("OMP_NUM_THREADS") == nullptr) at::set_num_threads(1);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
