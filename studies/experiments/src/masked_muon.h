#pragma once

#include "ddc/optim/muon.h"

namespace ddc::experiments {

struct MaskedMuonOptions : MuonOptions {
  double threshold = 1e-3;

  OptionList options();
};

/// The paper's control "dead-direction-masking Muon" (appendix "Curvature of the converged minimum"), which
/// it does not define. Our reading: a direction is dead where the momentum has next to nothing. Of the
/// momentum (with the look-ahead) of a matrix the singular directions whose singular value is below
/// `threshold` times the largest are taken out, and Muon steps along what is left. Where nothing is dead
/// the step is Muon's to the last bit.
struct MaskedMuonRule : MuonRule {
  static constexpr const char* name = "MaskedMuon";
  using Options = MaskedMuonOptions;

  static at::Tensor step(const at::Tensor& gradient, int64_t step, const TensorView& view,
                         State& state, const Options& options);
};

/// The matrix without its singular directions below `threshold` times the largest singular value; the
/// matrix itself if there are none.
at::Tensor without_dead_directions(const at::Tensor& matrix, double threshold);

}  // namespace ddc::experiments
