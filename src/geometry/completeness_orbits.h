#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ddc/gauge/gauge.h"
#include "geometry/loss_jacobian.h"

namespace ddc {

/// The tangents of all orbits of some gauges, as a map from the sum of their Lie algebras to the
/// trainable parameters: it is multiplied with, and nothing larger than a vector of parameters is stored.
/// Parameters are taken in units of `1 / scale`, elements of the algebra in such that tangents have length
/// one, roughly. Elements that move what is not trainable are left out, as far as no sum of them holds it
/// still.
class Orbits {
 public:
  Orbits(const std::vector<Gauge>& gauges, const Parameters& params, const Trainable& trainable,
         const at::Tensor& scale, const at::Generator& generator);

  /// The derivatives of `vector` (a gradient) along the orbits; their norm is that of one entry.
  at::Tensor charges(const at::Tensor& vector) const;
  /// The gauge that an entry of `charges` is of.
  const std::string& gauge_of(int64_t entry) const;

  /// The part of the vector that is orthogonal to all orbits.
  at::Tensor without(const at::Tensor& vector) const;
  /// One that is drawn; zero if all elements move what is not trainable.
  at::Tensor random_tangent(const at::Generator& generator) const;
  /// The dimension of their span.
  int64_t dimension(const at::Generator& generator) const;

 private:
  /// Where the elements of a gauge are in a vector of the algebra, and of what shape.
  struct Part {
    Gauge gauge;
    int64_t from;
    std::vector<int64_t> shape;
  };
  /// The orthogonal projection on the algebra.
  at::Tensor in_algebra(const at::Tensor& elements) const;
  /// Tangent of the trainable entries, then of the others that some gauge moves.
  at::Tensor tangent_of_all(const at::Tensor& elements) const;
  at::Tensor charges_of_all(const at::Tensor& vector) const;
  at::Tensor tangent(const at::Tensor& elements) const;
  /// Those that hold still what is not trainable.
  at::Tensor holding_still(const at::Tensor& elements) const;
  at::Tensor moves_frozen(const at::Tensor& elements) const;
  at::Tensor with_unit_tangents(const at::Generator& generator) const;

  std::vector<Part> parts_;
  /// In float64, each with the place of its entries in a vector of all.
  Parameters params_;
  std::map<std::string, int64_t> column_;
  int64_t trainable_size_ = 0;
  int64_t all_size_ = 0;
  int64_t algebra_size_ = 0;
  at::Tensor scale_;
  /// The inverse length of tangents; of rotations one number for all.
  at::Tensor units_;
};

}  // namespace ddc
