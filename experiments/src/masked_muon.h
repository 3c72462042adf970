#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ddc/optim/lifted_rule.h"
#include "ddc/optim/rules/adam.h"
#include "ddc/optim/rules/muon.h"

namespace ddc::experiments {

/// The paper's control "dead-direction-masking Muon" (appendix "Curvature of the converged minimum"), which
/// it does not define. Our reading: a direction is dead where the momentum has next to nothing. Of the
/// momentum (with the look-ahead) of a matrix the singular directions whose singular value is below
/// `threshold` times the largest are taken out, and Muon steps along what is left. Where nothing is dead
/// the step is Muon's to the last bit.
struct MaskedMuonRule {
  static constexpr const char* name = "MaskedMuon";
  struct Settings {
    double lr = 0.02;
    double momentum = 0.95;
    bool nesterov = true;
    PolarMethod method = PolarMethod::newton_schulz;
    UpdateScale scale = UpdateScale::original;
    double threshold = 1e-3;
    /// Step by Adam, matrices too. Vectors always are.
    bool use_adam = false;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
  };
  struct State {
    at::Tensor momentum_buffer;
    rules::AdamMoments moments;
  };

  template <class Visit>
  static void options(Settings& settings, Visit&& visit) {
    visit("lr", settings.lr);
    visit("momentum", settings.momentum);
    visit("nesterov", settings.nesterov);
    auto method = static_cast<int64_t>(settings.method);
    visit("method", method);
    settings.method = static_cast<PolarMethod>(method);
    auto scale = static_cast<int64_t>(settings.scale);
    visit("scale", scale);
    settings.scale = static_cast<UpdateScale>(scale);
    visit("threshold", settings.threshold);
    visit("use_adam", settings.use_adam);
    visit("beta1", settings.beta1);
    visit("beta2", settings.beta2);
    visit("eps", settings.eps);
  }
  template <class Visit>
  static void tensors(State& state, Visit&& visit) {
    visit("momentum_buffer", state.momentum_buffer);
    visit("exp_avg", state.moments.exp_avg);
    visit("exp_avg_sq", state.moments.exp_avg_sq);
  }
  static void validate(const Settings& settings);
  static at::Tensor step(const at::Tensor& gradient, int64_t step, const TensorView& view,
                         State& state, const Settings& settings);
};

/// The matrix without its singular directions below `threshold` times the largest singular value; the
/// matrix itself if there are none.
at::Tensor without_dead_directions(const at::Tensor& matrix, double threshold);

struct MaskedMuonOptions {
  MaskedMuonRule::Settings settings = {};
  double weight_decay = 0.1;
  double adam_lr = 1e-3;
  double adam_weight_decay = 0.1;
};
/// Vectors and what is named in `adam` are stepped by Adam.
std::unique_ptr<Lifted<MaskedMuonRule>> masked_muon(const Parameters& params,
                                                    const MaskedMuonOptions& options,
                                                    const std::vector<std::string>& adam = {});

}  // namespace ddc::experiments
