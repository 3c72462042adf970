#pragma once

#include <string>
#include <vector>

#include "ddc/linalg/polar_factor.h"
#include "ddc/optim/adam.h"

namespace ddc {

/// Factor by which the polar factor of a rows x cols matrix M is multiplied:
///   original         sqrt(max(1, rows / cols)), K. Jordan's,
///                    https://kellerjordan.github.io/posts/muon
///   match_rms_adamw  0.2 sqrt(max(rows, cols)): entries of the size of AdamW's steps, so that its
///                    learning rates fit; "Muon is Scalable for LLM Training", arXiv:2502.16982
///   frobenius        ||M||_F / sqrt(rank), the paper's C. The rank is the number of singular values
///                    that the polar factor does not make zero (the smaller side with newton_schulz).
///                    The step follows the size of the gradient.
enum class UpdateScale { original, match_rms_adamw, frobenius };

template <>
inline constexpr std::array EnumNames<UpdateScale> = {"original", "match_rms_adamw", "frobenius"};

/// Options of a param group of Muon. A group with `use_adam` is stepped by Adam instead, with its own
/// learning rate and decay; vectors must be in such a group.
struct MuonOptions {
  double lr = 0.02;
  double weight_decay = 0.1;
  double momentum = 0.95;
  bool nesterov = true;
  PolarMethod method = PolarMethod::exact;
  UpdateScale scale = UpdateScale::original;
  bool use_adam = false;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool maximize = false;

  OptionList options();
  /// The options of a group that Adam steps.
  static MuonOptions adam(const AdamOptions& options);
};

/// Momentum of a matrix, or Adam's moments, in coordinates.
struct MuonMoments {
  at::Tensor momentum_buffer;
  AdamMoments moments;

  StateTensors tensors();
};

/// Muon: the polar factor of the momentum. It is taken per head of attention projections (of every leg
/// that names its `head_size`), of whole matrices elsewhere, of each matrix of a stack [count, rows, cols],
/// and of [out, rest] for convolutions. With no gauge and `newton_schulz` it is torch.optim.Muon: a moving
/// average, where the original has a sum, which differs by a factor that the polar factor does not see.
struct MuonRule {
  static constexpr const char* name = "DDCMuon";
  static constexpr const char* help =
      "Muon that respects gauges, with AdamW for vectors and embeddings";
  static constexpr bool keeps_second_moments = true;
  using Options = MuonOptions;
  using State = MuonMoments;

  static void check(const Options& options, const TensorView& view);
  static State init(const TensorView& view, const Options& options);
  static at::Tensor step(const at::Tensor& gradient, int64_t step, const TensorView& view,
                         State& state, const Options& options);
  /// `step` in two parts. The momentum is undefined for what Adam steps.
  static at::Tensor momentum(const at::Tensor& gradient, State& state, const Options& options);
  static at::Tensor displacement(const at::Tensor& momentum, const TensorView& view,
                                 const Options& options);
  static double flops(const TensorView& view, const Options& options);
  static bool computes_in_double(const Options& options);
  static void change_basis(State& state, const BasisChange& change);
  static StepSettings step_settings(const Options& options);
};

/// Displacement that Muon makes for `direction`, a matrix or a stack of them [..., rows, cols], each scaled
/// by itself; without decay.
at::Tensor muon_displacement(const at::Tensor& direction, const MuonOptions& options);

/// Muon on param groups that say themselves what Adam steps.
using Muon = Lifted<MuonRule>;

/// Parameters that Adam steps beside Muon, and its options.
struct AdamPart {
  std::vector<std::string> names = {};
  AdamOptions options = {};
};

/// Muon that respects gauges, rescale gauges among them: the polar factor is taken of the momentum in
/// coordinates. Vectors, and what is named in `adam` (embeddings and the unembedding usually), are in a
/// param group of their own, the last one, that Adam steps.
///
///     ddc::DDCMuon optimizer(params, gauges, {.lr = 0.02}, {},
///                            {.names = {"embedding.weight", "unembedding.weight"},
///                             .options = {.lr = 1e-3}});
class DDCMuon : public Muon {
 public:
  explicit DDCMuon(const Parameters& params, std::vector<Gauge> gauges = {},
                   MuonOptions options = {}, Treatments treatments = {}, const AdamPart& adam = {});
  using Muon::Muon;
};

}  // namespace ddc
