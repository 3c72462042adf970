#pragma once

#include "coordinates/maps/map.h"

namespace ddc {

/// Outermost map: vectors v that only add to biases (a norm's shift, a value bias) are absorbed into them,
///
///     b -> b + W v     or, where v is added as it is,   b + v
///
/// The vector stays, for the centring inside to subtract. In a chain (norm's shift -> value bias -> output
/// bias) a vector has received all it gets before it is absorbed itself.
class AbsorbBias : public CoordinateMap {
 public:
  explicit AbsorbBias(const ComponentView& view);

  void read(const ValueOf& outside) override;
  void to_coordinates_(size_t tensor, at::Tensor& x) const override;
  void pull_back_(Tensors& g) const override;
  void to_weights_(const std::vector<size_t>& which, Tensors& x) override;

 private:
  struct Absorbed {
    const Drain& drain;
    /// v along the axis of the matrix that reads it, and what it adds to the bias.
    at::Tensor source;
    at::Tensor added;

    void take(const at::Tensor& vector) { source = drain.given(vector); }
    at::Tensor read_through(const at::Tensor& matrix) const {
      return drain.matrix ? (matrix * source).sum(drain.map.axis()) : source;
    }
  };
  std::vector<Absorbed> absorbed_;
};

}  // namespace ddc
