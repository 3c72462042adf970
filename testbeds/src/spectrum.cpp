#include "spectrum.h"

#include <ATen/ATen.h>

namespace ddc::testbeds {

Spectrum activation_spectrum(const at::Tensor& activations) {
  const auto matrix = activations.reshape({-1, activations.size(-1)}).to(at::kDouble);
  const auto values = at::linalg_svdvals(matrix);
  const auto shares = values / values.sum();
  return {.sigma_min = values.min().item<double>(),
          .effective_rank = at::xlogy(shares, shares).sum().neg().exp().item<double>()};
}

}  // namespace ddc::testbeds
