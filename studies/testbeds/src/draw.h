#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "ddc/parameters.h"

namespace ddc::testbeds {

/// What random numbers are for. Each purpose has a stream of its own: the weights of seed 1 and the
/// batch of seed 1 must not be the same numbers.
enum class Stream : uint64_t { parameters = 1, batch, teacher, split, embedding };

at::Generator generator(uint64_t seed, Stream stream);

/// Normally distributed, drawn in float64.
at::Tensor normal(at::IntArrayRef shape, double spread, const at::Generator& source,
                  double mean = 0);

/// Draws the parameters of a network one after the other.
class Initializer {
 public:
  Initializer(uint64_t seed, at::ScalarType dtype, Stream stream = Stream::parameters);

  void add(const std::string& name, at::IntArrayRef shape, double spread, double mean = 0);
  /// Uniformly distributed between -bound and bound.
  void add_uniform(const std::string& name, at::IntArrayRef shape, double bound);
  /// `name`.weight of shape [out, in] with spread 1 / sqrt(in).
  void add_linear(const std::string& name, int64_t out, int64_t in);
  void add_linear(const std::string& name, int64_t out, int64_t in, double bias_spread);

  const Parameters& parameters() const { return parameters_; }

 private:
  at::Generator source_;
  at::ScalarType dtype_;
  Parameters parameters_;
};

}  // namespace ddc::testbeds
