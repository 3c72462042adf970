#include "draw.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cmath>

namespace ddc::testbeds {
namespace {

/// The finalizer of SplitMix64. The Mersenne twister of ATen takes 32 bits of its seed and starts
/// from similar states for similar seeds; this spreads all 64 bits over them.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

at::Generator generator(uint64_t seed, Stream stream) {
  constexpr uint64_t golden_ratio = 0x9e3779b97f4a7c15ULL;
  return at::make_generator<at::CPUGeneratorImpl>(
      mix(mix(seed + golden_ratio) + static_cast<uint64_t>(stream) * golden_ratio));
}

at::Tensor normal(at::IntArrayRef shape, double spread, const at::Generator& source, double mean) {
  return at::randn(shape, source, at::kDouble) * spread + mean;
}

Initializer::Initializer(uint64_t seed, at::ScalarType dtype, Stream stream)
    : source_(generator(seed, stream)), dtype_(dtype) {}

void Initializer::add(const std::string& name, at::IntArrayRef shape, double spread, double mean) {
  parameters_.add(name, normal(shape, spread, source_, mean).to(dtype_).requires_grad_(true));
}

void Initializer::add_uniform(const std::string& name, at::IntArrayRef shape, double bound) {
  const auto drawn = at::rand(shape, source_, at::kDouble) * (2 * bound) - bound;
  parameters_.add(name, drawn.to(dtype_).requires_grad_(true));
}

void Initializer::add_linear(const std::string& name, int64_t out, int64_t in) {
  add(name + ".weight", {out, in}, 1 / std::sqrt(static_cast<double>(in)));
}

void Initializer::add_linear(const std::string& name, int64_t out, int64_t in, double bias_spread) {
  add_linear(name, out, in);
  add(name + ".bias", {out}, bias_spread);
}

}  // namespace ddc::testbeds
