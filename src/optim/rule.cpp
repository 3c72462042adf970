#include "ddc/optim/rule.h"

#include <ATen/ATen.h>

#include "gauge/block_map.h"

namespace ddc {

at::ScalarType TensorView::compute_type() const {
  return parameter.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor TensorView::zeros() const {
  return at::zeros_like(parameter.detach(), parameter.options().dtype(compute_type()),
                        at::MemoryFormat::Preserve);
}

at::Tensor TensorView::zeros(at::IntArrayRef shape) const { return zeros(shape, compute_type()); }

at::Tensor TensorView::zeros(at::IntArrayRef shape, at::ScalarType type) const {
  return at::zeros(shape, parameter.options().dtype(type).requires_grad(false));
}

void BasisChange::apply_(at::Tensor& vector) const {
  if (!vector.defined()) return;
  vector.copy_(map_.multiply(basis_.transpose(-1, -2).to(vector.options()), vector));
}

void BasisChange::apply_to_squares_(at::Tensor& squares) const {
  if (!squares.defined()) return;
  squares.copy_(map_.multiply(basis_.square().transpose(-1, -2).to(squares.options()), squares));
}

}  // namespace ddc
